"""The grid: every block where it belongs, at every zoom, for pointer and keyboard, in a frame."""

from __future__ import annotations

import statistics
import time

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, QRect, QSize, Qt
from PySide6.QtGui import QImage, QWheelEvent

from app.render.grid_layout import (
    ZOOM_STEPS,
    GridLayout,
    fit_layout,
    next_zoom,
    overview_layout,
    pitch_for_width,
)
from app.render.grid_painter import GridPicture
from app.render.theme import make_theme, theme
from app.state.pool import PoolModel
from app.views.block_grid import BlockGrid
from app.views.grid_view import MARGIN, GridView
from engine.messages import NO_OWNER, PoolSnapshot

pytestmark = pytest.mark.usefixtures("qapp")


def striped_pool(num_blocks: int, seed: int = 0) -> PoolModel:
    """Runs of owners 0 to 11 in all states, the last quarter free, block 5 being written."""
    rng = np.random.default_rng(seed)
    states = rng.integers(1, 4, num_blocks).astype(np.uint8)
    owners = (np.arange(num_blocks) // 7 % 12).astype(np.uint16)
    states[num_blocks * 3 // 4 :] = 0
    owners[states == 0] = NO_OWNER
    unfilled = np.zeros(num_blocks, np.uint8)
    if num_blocks > 20:
        states[5], unfilled[5] = 2, 5
    model = PoolModel()
    model.set_snapshot(
        PoolSnapshot(
            num_blocks, 16, 368_640, states.tobytes(), owners.tobytes(), unfilled.tobytes(), 0, 0.0
        )
    )
    return model


def shown_grid(qtbot, pool: PoolModel, panel_width: int = 416, room: int = 500) -> BlockGrid:
    grid = BlockGrid(pool, lambda owner: f"Chat {owner}")
    qtbot.addWidget(grid)
    height = grid.height_for(panel_width, room)
    grid.resize(panel_width - 2 * (16 - MARGIN), height)
    grid.show()
    qtbot.waitExposed(grid)
    return grid


def tone_at(pool: PoolModel, block: int) -> str:
    facts = pool.block(block)
    return ("free", "cached", "active", "shared")[facts.state]


def colour_of(pool: PoolModel, block: int):
    facts = pool.block(block)
    if facts.owner is None:
        return theme().color("pool.free")
    return theme().owner(facts.owner, tone_at(pool, block))


# --- which zoom fits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "pitch"), [(288, 4), (351, 4), (352, 5), (416, 6), (480, 7), (544, 8), (900, 8)]
)
def test_pitch_comes_from_the_width_of_the_panel(width: int, pitch: int) -> None:
    assert pitch_for_width(width) == pitch


def test_64_columns_then_128_then_the_overview() -> None:
    ordinary = fit_layout(4096, 6, 384, 400)
    assert (ordinary.columns, ordinary.pitch, ordinary.level) == (64, 6, "map")
    large = fit_layout(16_384, 6, 384, 400)
    assert (large.columns, large.pitch, large.height) == (128, 3, 384)
    huge = fit_layout(1_048_576, 6, 384, 400)
    assert huge.level == "overview"
    assert huge.blocks_per_cell in (4, 16, 64, 256)
    assert huge.height <= 400


def test_a_low_window_pans_the_map_rather_than_losing_it() -> None:
    layout = fit_layout(4096, 5, 320, 200)
    assert (layout.columns, layout.level) == (64, "map")
    assert layout.height > 200


@pytest.mark.parametrize("num_blocks", [1, 64, 65, 4095, 100_003])
def test_overview_holds_every_block_once(num_blocks: int) -> None:
    layout = overview_layout(num_blocks, 320, 60)
    blocks = [block for cell in range(layout.num_cells) for block in layout.blocks_of(cell)]
    assert blocks == list(range(num_blocks))


@pytest.mark.parametrize("ratio", [1.0, 1.25, 1.5, 2.0])
@pytest.mark.parametrize("pitch", ZOOM_STEPS)
def test_a_point_finds_its_block_at_every_zoom(pitch: int, ratio: float) -> None:
    layout = GridLayout(1000, 64, pitch, ratio)
    for block in (0, 63, 64, 500, 999):
        x, y = layout.corner_of(block)
        assert layout.cell_at((x + 0.5) / ratio, (y + 0.5) / ratio) == block
    assert layout.cell_at(layout.width + 1, 0) is None
    assert layout.cell_at(-1, 0) is None
    assert layout.cell_at(layout.width - 1, layout.height - 1) is None  # 1000 = 15 rows and 40


def test_zoom_steps_end_at_both_ends() -> None:
    assert [next_zoom(pitch, 1) for pitch in (3, 6, 7, 64)] == [4, 8, 8, 64]
    assert [next_zoom(pitch, -1) for pitch in (3, 8, 7, 64)] == [3, 6, 6, 48]


# --- pixels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pitch", [3, 4, 5, 6, 7, 8, 12, 16, 24, 64])
@pytest.mark.parametrize("ratio", [1.0, 1.5])
def test_tile_colours_and_gaps(pitch: int, ratio: float) -> None:
    pool = striped_pool(300)
    layout = GridLayout(300, 64, pitch, ratio)
    image = GridPicture(theme(), layout).image(pool.indexed_bytes(), QRect(0, 0, 64, layout.rows))
    assert (image.width(), image.height()) == (64 * layout.cell, layout.rows * layout.cell)
    for block in (0, 5, 70, 130, 299):
        x, y = layout.corner_of(block)
        inside = QPoint(x + (layout.cell - layout.gap) // 4, y + (layout.cell - layout.gap) // 2)
        assert image.pixelColor(inside) == colour_of(pool, block), block
        assert image.pixelColor(x + layout.cell - 1, y) == theme().color("pool.well")
    past_the_end = layout.corner_of(300)
    assert image.pixelColor(*past_the_end) == theme().color("pool.well")


@pytest.mark.parametrize(
    ("pitch", "lacks_corner"), [(3, False), (4, False), (5, True), (7, True), (16, True)]
)
def test_shared_blocks_lack_a_corner_where_there_is_room(pitch: int, lacks_corner: bool) -> None:
    pool = striped_pool(64)
    states = pool.states()
    shared = int(np.flatnonzero(states == 3)[0])
    layout = GridLayout(64, 64, pitch)
    image = GridPicture(theme(), layout).image(pool.indexed_bytes(), QRect(0, 0, 64, 1))
    x, y = layout.corner_of(shared)
    corner = image.pixelColor(x + layout.cell - layout.gap - 1, y)
    assert (corner == theme().color("pool.well")) == lacks_corner


def test_a_part_of_the_picture_equals_that_part_of_the_whole() -> None:
    pool = striped_pool(1000)
    for pitch in (6, 16):
        layout = GridLayout(1000, 64, pitch)
        picture = GridPicture(theme(), layout)
        whole = picture.image(pool.indexed_bytes(), QRect(0, 0, 64, layout.rows))
        part = picture.image(pool.indexed_bytes(), QRect(10, 3, 20, 5))
        cell = layout.cell
        assert part == whole.copy(10 * cell, 3 * cell, 20 * cell, 5 * cell)


def test_overview_takes_the_commonest_owner_and_mixes_with_free() -> None:
    owners = np.array([1] * 12 + [2] * 4 + [1] * 4 + [NO_OWNER] * 12 + [NO_OWNER] * 16, np.uint16)
    states = np.where(owners == NO_OWNER, 0, 2).astype(np.uint8)
    pool = PoolModel()
    pool.set_snapshot(
        PoolSnapshot(48, 16, 1, states.tobytes(), owners.tobytes(), bytes(48), 0, 0.0)
    )
    layout = GridLayout(48, 3, 5, 1.0, blocks_per_cell=16)
    image = GridPicture(theme(), layout).image(pool.indexed_bytes(), QRect(0, 0, 3, 1))
    active, free = theme().owner(1, "active"), theme().color("pool.free")
    assert image.pixelColor(1, 1) == active
    quarter = image.pixelColor(6, 1)
    assert quarter.red() == pytest.approx(free.red() * 0.75 + active.red() * 0.25, abs=1)
    assert image.pixelColor(11, 1) == free


def test_dimmed_blocks_and_free_blocks_differ() -> None:
    pool = striped_pool(128)
    pool.set_filter_owner(3)
    layout = GridLayout(128, 64, 6)
    image = GridPicture(theme(), layout).image(pool.indexed_bytes(), QRect(0, 0, 64, 2))
    assert image.pixelColor(*layout.corner_of(0)) == theme().color("pool.dimmed")
    assert image.pixelColor(*layout.corner_of(21)) == colour_of(pool, 21)
    assert image.pixelColor(*layout.corner_of(127)) == theme().color("pool.free")


# --- the widget ---------------------------------------------------------------------------------


def picture_of(grid: BlockGrid) -> QImage:
    return grid.grab().toImage()


def test_the_block_being_written_has_a_ring(qtbot) -> None:
    pool = striped_pool(640)
    grid = shown_grid(qtbot, pool)
    rect = grid.view.rect_of(5)
    image = picture_of(grid)
    ring = theme().color("pool.ring")
    assert image.pixelColor(rect.left() - 1, rect.center().y()) == ring
    assert image.pixelColor(rect.center().x(), rect.bottom() + 1) == ring
    other = grid.view.rect_of(9)
    assert image.pixelColor(other.left() - 1, other.center().y()) == theme().color("pool.well")


def test_fill_of_the_written_block_rises_from_the_bottom(qtbot) -> None:
    pool = striped_pool(640)  # block 5: 11 of 16 slots
    grid = shown_grid(qtbot, pool)
    for _ in range(4):
        grid.zoom(1, QPointF(0, 0))
    assert grid.view.layout.pitch == 16
    rect, image = grid.view.rect_of(5), picture_of(grid)
    owner = pool.block(5).owner
    assert image.pixelColor(rect.center().x(), rect.top() + 2) == theme().owner(owner, "cached")
    assert image.pixelColor(rect.center().x(), rect.bottom() - 3) == theme().owner(owner, "active")


def test_hover_names_block_state_owner_and_fill(qtbot) -> None:
    pool = striped_pool(640)
    grid = shown_grid(qtbot, pool)
    with qtbot.waitSignal(grid.hovered) as hovered:
        qtbot.mouseMove(grid, grid.view.rect_of(5).center())
    assert hovered.args == [5]
    qtbot.waitUntil(lambda: grid.cards.is_shown)
    text = grid.cards.card.text
    assert text == "Block 5, Active, one owner\nChat: Chat 0\nFilled: 11 of 16 slots"


def test_the_card_never_covers_its_block(qtbot) -> None:
    pool = striped_pool(4096)
    grid = shown_grid(qtbot, pool)
    for block in (0, 63, 2080, 4032, 4095):
        qtbot.mouseMove(grid, grid.view.rect_of(block).center())
        qtbot.waitUntil(lambda: grid.cards.is_shown)
        assert not grid.cards.card.geometry().intersects(grid.view.rect_of(block)), block
        assert grid.rect().adjusted(0, -1, 0, 1).contains(grid.cards.card.geometry())


def test_the_card_goes_when_the_pointer_leaves_the_blocks(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(640))
    qtbot.mouseMove(grid, grid.view.rect_of(0).center())
    qtbot.waitUntil(lambda: grid.cards.is_shown)
    qtbot.mouseMove(grid, QPoint(5, grid.height() - 1))
    assert not grid.cards.is_shown
    assert grid.hovered_block == -1


def test_a_smaller_pool_takes_hover_and_selection_away(qtbot) -> None:
    pool = striped_pool(640)
    grid = shown_grid(qtbot, pool)
    grid.select(600)
    qtbot.mouseMove(grid, grid.view.rect_of(600).center())
    qtbot.waitUntil(lambda: grid.cards.is_shown)
    with qtbot.waitSignal(grid.layout_changed):
        pool.set_snapshot(striped_pool(21).snapshot)
    assert (grid.selected_block, grid.hovered_block) == (-1, -1)
    assert not grid.cards.is_shown
    grid.height_for(416, 500)
    assert grid.view.layout.num_blocks == 21
    picture_of(grid)


def test_clicks_select_and_double_clicks_choose_the_owner(qtbot) -> None:
    pool = striped_pool(640)
    grid = shown_grid(qtbot, pool)
    with qtbot.waitSignal(grid.selected) as selected:
        qtbot.mouseClick(grid, Qt.MouseButton.LeftButton, pos=grid.view.rect_of(30).center())
    assert selected.args == [30]
    assert "Block 30" in grid.accessibleDescription()
    assert "violet" in grid.accessibleDescription()
    with qtbot.waitSignal(grid.owner_chosen) as chosen:
        qtbot.mouseDClick(grid, Qt.MouseButton.LeftButton, pos=grid.view.rect_of(30).center())
    assert chosen.args == [4]
    with qtbot.assertNotEmitted(grid.owner_chosen):
        qtbot.mouseDClick(grid, Qt.MouseButton.LeftButton, pos=grid.view.rect_of(639).center())


def test_keys_walk_the_grid_and_stop_at_its_ends(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(100))
    key = Qt.Key
    walk = [
        (key.Key_Right, 0), (key.Key_Right, 1), (key.Key_Left, 0), (key.Key_Left, 0),
        (key.Key_Up, 0), (key.Key_Down, 64), (key.Key_Down, 64), (key.Key_End, 99),
        (key.Key_Right, 99), (key.Key_Up, 35), (key.Key_PageDown, 99), (key.Key_Home, 0),
        (key.Key_N, 1),
    ]  # fmt: skip
    for pressed, block in walk:
        qtbot.keyClick(grid, pressed)
        assert grid.selected_block == block, pressed
    with qtbot.waitSignal(grid.owner_chosen) as chosen:
        qtbot.keyClick(grid, key.Key_Return)
    assert chosen.args == [0]
    with qtbot.waitSignal(grid.owner_chosen) as ended:
        qtbot.keyClick(grid, key.Key_Escape)
    assert ended.args == [-1]
    assert grid.selected_block == -1


def turn_wheel(grid: BlockGrid, at: QPoint, delta: int, modifier=Qt.KeyboardModifier.NoModifier):
    event = QWheelEvent(
        QPointF(at), QPointF(grid.mapToGlobal(at)), QPoint(), QPoint(0, delta),
        Qt.MouseButton.NoButton, modifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    grid.wheelEvent(event)
    return event


def test_ctrl_wheel_zooms_about_the_pointer(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(4096))
    block = 2080  # in the middle, where no edge holds the grid
    at = grid.view.rect_of(block).center()
    for pitch in (8, 10, 12, 16, 24):
        turn_wheel(grid, at, 120, Qt.KeyboardModifier.ControlModifier)
        assert grid.view.layout.pitch == pitch
        assert grid.view.layout.columns == 64
        assert grid.view.cell_at(QPointF(at)) == block
    for _ in range(5):
        turn_wheel(grid, at, -120, Qt.KeyboardModifier.ControlModifier)
    grid.height_for(416, 500)
    assert not grid.view.is_zoomed
    assert grid.view.layout.pitch == 6


def test_a_zoomed_grid_pans_and_stops_at_its_edges(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(4096))
    event = turn_wheel(grid, QPoint(50, 50), -120)
    assert not event.isAccepted()  # everything fits: the wheel is somebody else's
    qtbot.keyClick(grid, Qt.Key.Key_Plus)
    qtbot.keyClick(grid, Qt.Key.Key_Plus)
    assert grid.view.can_pan
    for _ in range(50):
        turn_wheel(grid, QPoint(50, 50), -120)
    assert grid.view.offset.y() == grid.view.largest_offset.y()
    start, middle = QPoint(200, 200), QPoint(230, 260)
    before = QPoint(grid.view.offset)
    qtbot.mousePress(grid, Qt.MouseButton.LeftButton, pos=start)
    qtbot.mouseMove(grid, middle)
    qtbot.mouseRelease(grid, Qt.MouseButton.LeftButton, pos=middle)
    assert grid.view.offset.y() == before.y() - 60
    assert grid.selected_block == -1  # a drag is not a click


def test_selecting_brings_the_block_into_view(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(4096))
    for _ in range(6):
        grid.zoom(1)
    grid.select(4095)
    assert grid.rect().contains(grid.view.rect_of(4095))
    grid.select(0)
    assert grid.rect().contains(grid.view.rect_of(0))


@pytest.mark.parametrize("num_blocks", [0, 1, 63, 65, 4096, 262_144])
def test_every_pool_is_painted_at_every_zoom(qtbot, num_blocks: int) -> None:
    pool = striped_pool(num_blocks) if num_blocks else PoolModel()
    grid = shown_grid(qtbot, pool)
    for _ in range(len(ZOOM_STEPS) + 1):
        assert picture_of(grid).size() == grid.size()
        if num_blocks:
            grid.zoom(1)


def test_zooming_out_of_the_overview_and_back(qtbot) -> None:
    grid = shown_grid(qtbot, striped_pool(262_144))
    assert grid.view.layout.level == "overview"
    middle = QPointF(grid.rect().center())
    cell = grid.view.cell_at(middle)
    blocks = grid.view.layout.blocks_of(cell)
    grid.zoom(1, middle)
    assert grid.view.layout.level == "map"
    assert grid.view.cell_at(middle) in range(blocks.start, blocks.stop + 64)
    for _ in range(20):
        grid.zoom(-1)
        grid.height_for(416, 500)
    assert grid.view.layout.level == "overview"


def test_a_new_theme_repaints_the_tiles(qtbot, monkeypatch) -> None:
    grid = shown_grid(qtbot, striped_pool(640))
    before = picture_of(grid)
    dark = make_theme("dark")
    monkeypatch.setattr("app.views.block_grid.theme", lambda: dark)
    after = picture_of(grid)
    spot = grid.view.rect_of(0).center()
    assert after.pixelColor(spot) != before.pixelColor(spot)
    assert after.pixelColor(grid.view.rect_of(639).center()) == dark.color("pool.free")


def test_view_and_ratio_agree() -> None:
    view = GridView()
    view.ratio = 1.5
    size = QSize(416 - 2 * (16 - MARGIN), view.fit(4096, 416, 500))
    view.resize(size, 1.5)
    for block in (0, 63, 64, 2047, 4095):
        assert view.cell_at(QPointF(view.rect_of(block).center())) == block
    assert view.layout.width <= size.width()


@pytest.mark.parametrize("pitch", [3, 4, 5, 6])
def test_16k_blocks_are_painted_within_a_frame(qtbot, pitch: int) -> None:
    pool = striped_pool(16_384)
    snapshot = pool.snapshot
    grid = shown_grid(qtbot, pool)
    columns = 128 if pitch == 3 else 64
    grid.view.layout = GridLayout(16_384, columns, pitch)
    grid.resize(columns * pitch + 4, 16_384 // columns * pitch + 4)
    target = QImage(grid.size(), QImage.Format.Format_RGB32)
    took_ms = []
    for _ in range(11):
        pool.set_snapshot(snapshot)  # a new picture each time: nothing is cached
        start = time.perf_counter()
        grid.render(target)
        took_ms.append((time.perf_counter() - start) * 1000)
    assert statistics.median(took_ms) < 20, took_ms
