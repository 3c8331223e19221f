"""The strip of a narrow window: it opens the panel, and says and shows what the pool holds."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import Qt

from app.render.theme import theme
from app.state.pool import PoolModel
from app.views.pool_strip import BAR, HEIGHT, PAD, PoolStrip
from engine.messages import NO_OWNER, PoolSnapshot


def strip_of(qtbot, width: int = 700) -> tuple[PoolStrip, PoolModel]:
    pool = PoolModel()
    strip = PoolStrip(pool)
    qtbot.addWidget(strip)
    strip.resize(width, HEIGHT)
    strip.show()
    return strip, pool


def fill(pool: PoolModel, held: list[tuple[int, int, int]], num_blocks: int = 100) -> None:
    """`held` lists (blocks, owner, state)."""
    states, owners = np.zeros(num_blocks, np.uint8), np.full(num_blocks, NO_OWNER, np.uint16)
    at = 0
    for number, owner, state in held:
        states[at : at + number], owners[at : at + number] = state, owner
        at += number
    pool.set_snapshot(PoolSnapshot(
        num_blocks, 16, 1 << 20, states.tobytes(), owners.tobytes(), bytes(num_blocks), 0, 0.0
    ))  # fmt: skip


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space])
def test_it_opens_the_panel_by_click_and_key(qtbot, key) -> None:
    strip, _ = strip_of(qtbot)
    with qtbot.waitSignal(strip.clicked):
        qtbot.mouseClick(strip, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(strip.clicked):
        qtbot.keyClick(strip, key)
    with qtbot.assertNotEmitted(strip.clicked):
        qtbot.mouseClick(strip, Qt.MouseButton.RightButton)
        qtbot.keyClick(strip, Qt.Key.Key_A)
    assert strip.focusPolicy() == Qt.FocusPolicy.TabFocus


def test_it_tells_a_screen_reader_the_four_figures(qtbot) -> None:
    strip, pool = strip_of(qtbot)
    fill(pool, [(20, 0, 2), (10, 1, 1), (5, 1, 3)])
    assert strip.accessibleDescription() == "65 free, 10 cached, 20 active, 5 shared blocks"


def test_the_bar_gives_each_chat_its_share_in_its_colour(qtbot) -> None:
    strip, pool = strip_of(qtbot)
    fill(pool, [(50, 0, 2), (30, 1, 1)])
    image = strip.grab().toImage()
    row = [image.pixelColor(x, HEIGHT // 2) for x in range(PAD, 500)]
    num = {
        name: sum(one == colour for one in row)
        for name, colour in (
            ("active", theme().owner(0, "active")),
            ("cached", theme().owner(1, "cached")),
            ("free", theme().color("pool.free")),
        )
    }
    assert num["active"] / num["cached"] == pytest.approx(50 / 30, rel=0.05)
    assert num["active"] / num["free"] == pytest.approx(50 / 20, rel=0.15)
    assert BAR < HEIGHT


@pytest.mark.parametrize("width", [640, 899, 900, 1099])
def test_an_empty_and_a_huge_pool_are_painted_at_every_width(qtbot, width) -> None:
    strip, pool = strip_of(qtbot, width)
    empty = strip.grab().toImage()
    fill(pool, [(16_000, n % 3, 2) for n in range(4)], num_blocks=65_535)
    assert strip.grab().toImage() != empty
    pool.set_snapshot(None)
    assert strip.grab().toImage() == empty
