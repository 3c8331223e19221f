"""The legend by itself: what a click, a double click and the keys ask for, and what it says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics

from app.render.theme import theme
from app.views.legend import ROW_PX, Legend, LegendRow, column_edges, folded, title_width

LEFT = Qt.MouseButton.LeftButton
ROWS = [
    LegendRow(0, "Tide", 12, 3, 5_529_600, "s0", "active", 0.5),
    LegendRow(1, "Lisbon", 4, 0, 1_474_560, "s1", "shared"),
    LegendRow(9, "A deleted chat", 0, 7, 2_580_480),
]


class Key:
    """A legend, and what it asked for."""

    def __init__(self, qtbot) -> None:
        self.legend, self.qtbot = Legend(), qtbot
        qtbot.addWidget(self.legend)
        self.legend.resize(384, 200)
        self.legend.set_rows(list(ROWS))
        self.legend.show()
        self.asked: list[object] = []
        self.legend.owner_chosen.connect(self.asked.append)
        self.legend.chat_opened.connect(self.asked.append)
        self.legend.fold_toggled.connect(lambda: self.asked.append("fold"))

    def at(self, row: int):
        return self.legend.visualRect(self.legend.model().index(row, 0)).center()

    def click(self, row: int) -> None:
        self.qtbot.mouseClick(self.legend.viewport(), LEFT, pos=self.at(row))

    def key(self, *keys: Qt.Key) -> None:
        for one in keys:
            self.qtbot.keyClick(self.legend, one)


@pytest.fixture
def key(qtbot) -> Key:
    return Key(qtbot)


def test_a_click_chooses_and_a_click_on_the_chosen_one_shows_all(key: Key) -> None:
    key.click(1)
    key.legend.set_rows([ROWS[0], replace(ROWS[1], is_chosen=True), ROWS[2]])
    key.click(1)
    key.click(2)  # a chat that is gone still holds blocks, and can be looked at
    assert key.asked == [1, -1, 9]


def test_a_double_click_opens_a_chat_that_exists(key: Key, qtbot) -> None:
    key.click(0)
    qtbot.mouseDClick(key.legend.viewport(), LEFT, pos=key.at(0))
    assert "s0" in key.asked
    key.asked.clear()
    key.click(2)
    qtbot.mouseDClick(key.legend.viewport(), LEFT, pos=key.at(2))
    assert [one for one in key.asked if isinstance(one, str)] == []


@pytest.mark.parametrize("enter", [Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space])
def test_the_keys_do_what_clicks_do(key: Key, enter) -> None:
    key.legend.setFocus()
    key.legend.setCurrentIndex(key.legend.model().index(0, 0))
    key.key(Qt.Key.Key_Down, enter)
    assert key.asked == [1]
    key.key(Qt.Key.Key_Escape)
    assert key.asked == [1]  # nothing is chosen: Escape is for others
    key.legend.set_rows([ROWS[0], replace(ROWS[1], is_chosen=True), ROWS[2]])
    key.key(Qt.Key.Key_Escape)
    assert key.asked == [1, -1]


def test_a_change_of_figures_keeps_row_and_focus_and_a_new_chat_does_not_lose_them(key) -> None:
    key.legend.setCurrentIndex(key.legend.model().index(1, 0))
    key.legend.set_rows([replace(ROWS[0], in_use=99), *ROWS[1:]])
    assert key.legend.currentIndex().row() == 1
    assert [row.in_use for row in key.legend.rows] == [99, 4, 0]


def test_the_line_of_folded_chats_asks_to_unfold(key: Key) -> None:
    idle = [LegendRow(n, f"Idle {n}", 0, n, n * 100, f"i{n}") for n in range(2, 9)]
    rows = folded([*ROWS[:2], *idle], is_open=False)
    assert len(rows) == 6
    last = rows[-1]
    assert (last.owner, last.title) == (None, "4 more, cached")
    assert (last.cached, last.num_bytes) == (5 + 6 + 7 + 8, 2600)
    key.legend.set_rows(rows)
    key.click(5)
    key.legend.setCurrentIndex(key.legend.model().index(5, 0))
    key.key(Qt.Key.Key_Return)
    assert key.asked == ["fold", "fold"]
    opened = folded([*ROWS[:2], *idle], is_open=True)
    assert [row.title for row in opened[-2:]] == ["Idle 8", "Show fewer"]


@pytest.mark.parametrize("num_busy", [0, 5, 6, 9])
def test_no_busy_chat_is_ever_folded_away(num_busy) -> None:
    busy = [LegendRow(n, f"Busy {n}", 1, 0, 1) for n in range(num_busy)]
    idle = [LegendRow(50 + n, f"Idle {n}", 0, 1, 1) for n in range(3)]
    shown = folded([*busy, *idle], is_open=False)
    assert [row for row in shown if row.in_use] == busy
    assert sum(row.cached for row in shown) == 3  # and what is folded is counted


def test_a_screen_reader_hears_the_figures(key: Key) -> None:
    words = [
        key.legend.model().index(row, 0).data(Qt.ItemDataRole.AccessibleTextRole)
        for row in range(3)
    ]
    assert words[0] == "Tide, 12 blocks in use, 3 cached, 5.27 MiB"
    assert words[2].startswith("A deleted chat, 0 blocks in use, 7 cached")


@pytest.mark.parametrize("width", [320, 384, 400, 544])
def test_columns_and_title_do_not_touch(key: Key, width) -> None:
    in_use, cached, memory = column_edges(width)
    figures = QFontMetrics(theme().font("small"))
    assert title_width(width) > 60
    assert cached - in_use >= figures.horizontalAdvance("16,384") + 4
    assert memory - cached >= figures.horizontalAdvance("85.5 MiB") + 4
    assert memory < width


def test_chosen_hovered_and_focused_rows_look_different(key: Key, qtbot) -> None:
    pictures = []

    def shoot() -> None:
        pictures.append(key.legend.viewport().grab().toImage())

    shoot()
    key.legend.set_rows([replace(ROWS[0], is_chosen=True), *ROWS[1:]])
    shoot()
    qtbot.mouseMove(key.legend.viewport(), key.at(2))
    qtbot.mouseMove(key.legend.viewport(), key.at(1))
    shoot()
    assert all(one != two for one, two in itertools.pairwise(pictures))
    assert key.legend.wanted_height == 3 * ROW_PX
