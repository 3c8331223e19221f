"""The memory panel: figures that add up, a legend that filters, and room for both."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QPushButton, QToolButton, QWidget

from app.records import SessionRecord
from app.render.theme import theme
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.legend import LegendRow, folded
from app.views.memory_figures import STATES
from app.views.memory_panel import LEAST_GRID_PX, MemoryPanel
from app.views.style import FocusRing, TesseraStyle
from engine.messages import NO_OWNER, PoolSnapshot


def pool_snapshot(
    runs: list[tuple[int, int, int]], num_blocks: int = 4096, saved: int = 0, **more: int
) -> PoolSnapshot:
    """A pool whose first blocks are runs of (blocks, owner, state); the rest is free."""
    states, owners = np.zeros(num_blocks, np.uint8), np.full(num_blocks, NO_OWNER, np.uint16)
    at = 0
    for length, owner, state in runs:
        states[at : at + length], owners[at : at + length] = state, owner
        at += length
    return PoolSnapshot(
        num_blocks, 16, 368_640, states.tobytes(), owners.tobytes(), bytes(num_blocks), saved, 0.0,
        **more,
    )  # fmt: skip


class Bench:
    """A panel with its models, and three chats that own 0, 1 and 2."""

    def __init__(self, qtbot) -> None:
        self.pool, self.sessions = PoolModel(), Sessions()
        self.intents, self.status = Intents(), AppStatus()
        for owner, title in enumerate(("Ring buffer", "Lease", "Lisbon")):
            self.add(title, owner)
        self.panel = MemoryPanel(self.pool, self.sessions, self.intents, self.status)
        qtbot.addWidget(self.panel)
        self.panel.resize(416, 868)
        self.panel.show()
        qtbot.waitExposed(self.panel)

    def add(self, title: str, owner: int | None) -> Session:
        session = Session(SessionRecord(f"id-{title}", title, 0, 0))
        session.owner = owner
        self.sessions.insert(session)
        return session

    def show(self, *runs: tuple[int, int, int], **more: int) -> None:
        self.pool.set_snapshot(pool_snapshot(list(runs), **more))

    def rows(self) -> list[tuple[str, int, int]]:
        return [(row.title, row.in_use, row.cached) for row in self.panel.legend.rows]


@pytest.fixture
def bench(qtbot) -> Bench:
    return Bench(qtbot)


def test_four_figures_add_up_to_the_pool(bench: Bench) -> None:
    bench.show((100, 0, 2), (30, 1, 3), (7, 2, 1))
    texts = bench.panel.figures.texts
    assert texts == [
        ("Free", "3,959", "1.36 GiB"),
        ("Cached", "7", "2.46 MiB"),
        ("Active", "100", "35.2 MiB"),
        ("Shared", "30", "10.5 MiB"),
    ]
    assert [name for _, name in STATES] == [text[0] for text in texts]
    assert sum(int(text[1].replace(",", "")) for text in texts) == 4096


def test_legend_lists_chats_by_use_then_idle_ones(bench: Bench) -> None:
    bench.show((10, 0, 2), (30, 1, 2), (5, 1, 1), (50, 2, 1))
    assert bench.rows() == [("Lease", 30, 5), ("Ring buffer", 10, 0), ("Lisbon", 0, 50)]


def test_rows_do_not_move_while_counts_change(bench: Bench) -> None:
    bench.show((10, 0, 2), (30, 1, 2))
    bench.show((60, 0, 2), (30, 1, 2))
    assert [row[0] for row in bench.rows()] == ["Lease", "Ring buffer"]
    bench.show((60, 0, 2), (30, 1, 2), (1, 2, 2))  # a chat came: now they may
    assert [row[0] for row in bench.rows()] == ["Ring buffer", "Lease", "Lisbon"]


def test_titles_follow_renames_new_chats_and_deletions(bench: Bench) -> None:
    bench.show((10, 0, 2), (4, 9, 1))
    assert [row[0] for row in bench.rows()] == ["Ring buffer", "A deleted chat"]
    bench.sessions.get("id-Ring buffer").set_record(title="Queue")
    late = bench.add("Late", 9)
    assert [row[0] for row in bench.rows()] == ["Queue", "Late"]
    late.set_record(title="Later")
    assert [row[0] for row in bench.rows()] == ["Queue", "Later"]
    bench.sessions.remove("id-Late")
    assert [row[0] for row in bench.rows()] == ["Queue", "A deleted chat"]


def test_a_click_in_the_legend_shows_only_that_chat(qtbot, bench: Bench) -> None:
    bench.show((100, 0, 2), (30, 1, 2))
    legend, grid = bench.panel.legend, bench.panel.grid
    row = legend.visualRect(legend.model().index(1, 0)).center()
    qtbot.mouseClick(legend.viewport(), Qt.MouseButton.LeftButton, pos=row)
    assert bench.pool.filter_owner == 1
    assert [row.is_chosen for row in legend.rows] == [False, True]
    image = grid.grab().toImage()
    assert image.pixelColor(grid.view.rect_of(0).center()) == theme().color("pool.dimmed")
    assert image.pixelColor(grid.view.rect_of(110).center()) == theme().owner(1, "active")
    assert bench.panel.caption[0] == "Only Lease"
    qtbot.keyClick(legend, Qt.Key.Key_Escape)
    assert bench.pool.filter_owner is None
    qtbot.mouseClick(legend.viewport(), Qt.MouseButton.LeftButton, pos=row)
    qtbot.mouseClick(legend.viewport(), Qt.MouseButton.LeftButton, pos=row)
    assert bench.pool.filter_owner is None


def test_the_filter_ends_with_the_last_block_of_its_chat(bench: Bench) -> None:
    bench.show((100, 0, 2), (30, 1, 2))
    bench.panel.show_only(1)
    bench.show((100, 0, 2))
    assert bench.pool.filter_owner is None


def test_a_double_click_in_the_grid_filters_and_the_button_ends_it(qtbot, bench: Bench) -> None:
    bench.show((100, 0, 2), (30, 1, 2))
    grid = bench.panel.grid
    button = next(
        one for one in bench.panel.findChildren(QToolButton) if "all chats" in one.toolTip()
    )
    assert not button.isVisible()
    qtbot.mouseDClick(grid, Qt.MouseButton.LeftButton, pos=grid.view.rect_of(120).center())
    assert bench.pool.filter_owner == 1
    assert button.isVisible()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert bench.pool.filter_owner is None


def test_a_double_click_in_the_legend_opens_the_chat(qtbot, bench: Bench) -> None:
    bench.show((100, 0, 2))
    legend = bench.panel.legend
    row = legend.visualRect(legend.model().index(0, 0)).center()
    with qtbot.waitSignal(bench.intents.open_chat) as opened:
        legend.doubleClicked.emit(legend.indexAt(row))
    assert opened.args == ["id-Ring buffer"]


def test_caption_and_what_stands_below_the_legend_are_words(bench: Bench) -> None:
    bench.show((100, 0, 3), saved=300)
    assert bench.panel.caption == (
        "64 columns, 16 tokens in a block of 360 KiB",
        "0 – 4,095",  # noqa: RUF001
    )
    notes = bench.panel.notes
    assert notes.texts == ["Sharing saves 300 blocks, 105 MiB"]
    bench.show((100, 0, 2), saved=1)
    assert notes.texts[0].startswith("Sharing saves 1 block,")
    bench.show((100, 0, 2))
    assert notes.texts == []
    assert not notes.isVisible()
    bench.show((100, 0, 2), saved=2, num_pinned=24, num_copies=5)
    assert notes.texts[1:] == [
        "24 blocks, 8.44 MiB kept in memory",
        "5 shared blocks copied to go separate ways",
    ]
    bench.show((100, 0, 2), num_pinned=1, num_copies=1)
    assert notes.texts == [
        "1 block, 0.35 MiB kept in memory",
        "1 shared block copied to go separate ways",
    ]
    assert notes.accessibleName() == "; ".join(notes.texts)


@pytest.mark.parametrize(("height", "num_shown"), [(420, 0), (460, 1), (560, 3), (868, 3)])
def test_the_lines_below_the_legend_give_way_in_a_low_window(
    bench: Bench, height, num_shown
) -> None:
    bench.panel.resize(288, height)
    bench.show((100, 0, 2), (10, 1, 2), (10, 2, 1), saved=2, num_pinned=24, num_copies=5)
    legend, notes = bench.panel.legend.geometry(), bench.panel.notes.geometry()
    assert notes.top() == legend.bottom() + 1
    assert bench.panel.notes.isVisible() == (num_shown > 0)
    assert notes.height() == num_shown * 24
    assert notes.bottom() <= bench.panel.height()
    assert legend.height() >= min(3 * 24, (height - legend.top() - 4) // 24 * 24)


def test_chip_of_a_running_chat_shows_the_block_being_written(bench: Bench) -> None:
    bench.show((100, 0, 2), (3, 1, 1))
    session = bench.sessions.get("id-Ring buffer")
    session.fill = 4
    session.set_status("running")
    first, second = bench.panel.legend.rows
    assert (first.chip, first.fill) == ("active", 0.25)
    assert second.chip == "cached"


def test_nothing_to_show_is_said_in_a_sentence(bench: Bench) -> None:
    assert bench.panel.empty_words[0] == "No model is open"
    assert not bench.panel.grid.isVisible()
    bench.status.update(phase="loading")
    assert bench.panel.empty_words[0] == "The model is loading"
    bench.show()
    assert bench.panel.empty_words[0] == "No chat holds a block yet"
    assert bench.panel.grid.isVisible()
    assert not bench.panel.legend.isVisible()
    bench.show((1, 0, 2))
    assert bench.panel.legend.isVisible()


def legend_row(owner: int, in_use: int, cached: int) -> LegendRow:
    return LegendRow(owner, f"Chat {owner}", in_use, cached, (in_use + cached) * 10)


def test_many_idle_chats_fold_into_one_line() -> None:
    rows = [legend_row(n, 5, 0) for n in range(4)] + [legend_row(n, 0, n) for n in range(4, 8)]
    short = folded(rows, is_open=False)
    assert [row.title for row in short[4:]] == ["Chat 4", "3 more, cached"]
    assert (short[-1].cached, short[-1].num_bytes) == (5 + 6 + 7, 180)
    assert folded(rows, is_open=True)[:-1] == rows
    assert folded(rows[:6], is_open=False) == rows[:6]
    busy = [legend_row(n, 5, 0) for n in range(9)]
    assert folded(busy, is_open=False) == busy


def test_the_fold_opens_with_a_click(qtbot, bench: Bench) -> None:
    bench.show(*[(3, owner, 1) for owner in range(9)])
    legend = bench.panel.legend
    assert bench.rows()[-1] == ("4 more, cached", 0, 12)
    last = legend.visualRect(legend.model().index(len(legend.rows) - 1, 0)).center()
    qtbot.mouseClick(legend.viewport(), Qt.MouseButton.LeftButton, pos=last)
    assert len(bench.rows()) == 10
    assert bench.rows()[-1][0] == "Show fewer"


@pytest.mark.parametrize(("width", "pitch"), [(288, 4), (352, 5), (416, 6), (544, 8), (600, 8)])
def test_the_grid_takes_its_pitch_from_the_width(bench: Bench, width: int, pitch: int) -> None:
    bench.show((100, 0, 2))
    bench.panel.resize(width, 1000)
    layout = bench.panel.grid.view.layout
    assert (layout.columns, layout.pitch) == (64, pitch)
    assert bench.panel.grid.geometry().right() < bench.panel.width()


@pytest.mark.parametrize("height", [868, 600, 520, 460, 400, 360])
@pytest.mark.parametrize("width", [288, 352, 416])
def test_low_windows_keep_grid_and_legend_apart(bench: Bench, width: int, height: int) -> None:
    bench.show(*[(30, owner, 2) for owner in range(12)], saved=4)
    bench.panel.resize(width, height)
    grid, legend = bench.panel.grid.geometry(), bench.panel.legend.geometry()
    assert grid.bottom() < legend.top()
    shown = min(bench.panel.grid.view.layout.height, LEAST_GRID_PX - 4)
    assert grid.height() >= shown
    assert legend.height() >= 24
    bench.panel.grab()


def test_zoom_buttons_zoom_and_return_to_the_fit(qtbot, bench: Bench) -> None:
    bench.show((100, 0, 2))
    tips = {one.toolTip().split(" (")[0]: one for one in bench.panel.findChildren(QToolButton)}
    larger, smaller = tips["Larger tiles"], tips["Smaller tiles"]
    height = bench.panel.grid.height()
    assert not smaller.isEnabled()
    qtbot.mouseClick(larger, Qt.MouseButton.LeftButton)
    assert bench.panel.grid.view.layout.pitch == 8
    assert bench.panel.grid.height() == height
    assert smaller.isEnabled()
    qtbot.mouseClick(smaller, Qt.MouseButton.LeftButton)
    assert bench.panel.grid.view.layout.pitch == 6
    with qtbot.waitSignal(bench.panel.close_requested):
        qtbot.mouseClick(tips["Hide the memory panel"], Qt.MouseButton.LeftButton)


def test_buttons_have_names_and_are_large_enough(bench: Bench) -> None:
    for button in bench.panel.findChildren(QToolButton):
        assert button.accessibleName()
        assert not button.isVisible() or min(button.width(), button.height()) >= 24


def test_the_focus_ring_follows_the_keyboard_only(qtbot, qapp: QApplication) -> None:
    ring = FocusRing(qapp)
    window = QWidget()  # the frame lies in the window of its widget: a button alone has none
    qtbot.addWidget(window)
    button = QPushButton("Send", window)
    button.setStyle(TesseraStyle())
    window.show()
    button.setFocus(Qt.FocusReason.TabFocusReason)
    ring._on_focus(None, button)
    assert ring.target is button
    ring._on_focus(button, None)
    assert ring.target is None
    qapp.focusChanged.disconnect(ring._on_focus)
