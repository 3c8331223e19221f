"""The welcome page: three prompts to edit, sent together by one press or one Enter."""

from __future__ import annotations

import itertools

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton

from app.records import SessionRecord
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.welcome import PROMPTS, WelcomePage

LEFT = Qt.MouseButton.LeftButton
ENTERS = [Qt.Key.Key_Return, Qt.Key.Key_Enter]


class Door:
    """The page, and what it asked for."""

    def __init__(self, qtbot, phase: str = "ready") -> None:
        self.sessions, self.status, self.intents = Sessions(), AppStatus(), Intents()
        self.status.update(phase=phase)
        self.page = WelcomePage(self.sessions, self.status, self.intents)
        qtbot.addWidget(self.page)
        self.page.resize(900, 700)
        self.page.show()
        self.page.activateWindow()
        qtbot.waitExposed(self.page)
        self.sent: list[list[str]] = []
        self.new: list[int] = []
        self.intents.send_all.connect(self.sent.append)
        self.intents.new_chat.connect(lambda: self.new.append(1))


@pytest.fixture
def door(qtbot) -> Door:
    return Door(qtbot)


def test_the_primary_button_sends_all_prompts_once(door: Door, qtbot) -> None:
    qtbot.mouseClick(door.page.send_button, LEFT)
    assert door.sent == [list(PROMPTS)]


@pytest.mark.parametrize("key", ENTERS)
def test_enter_in_a_prompt_or_on_the_button_sends_once(door: Door, qtbot, key) -> None:
    qtbot.keyClick(door.page.prompts[2].edit, key)
    assert len(door.sent) == 1
    door.page.send_button.setFocus()
    qtbot.keyClick(door.page.send_button, key)
    assert len(door.sent) == 2


@pytest.mark.parametrize("key", [*ENTERS, Qt.Key.Key_Space])
def test_a_key_on_another_button_presses_that_button(door: Door, qtbot, key) -> None:
    door.page.empty_button.setFocus()
    qtbot.keyClick(door.page.empty_button, key)
    assert (door.sent, door.new) == ([], [1])
    with qtbot.waitSignal(door.page.open_model_wanted):
        door.page.model_row.open_button.setFocus()
        qtbot.keyClick(door.page.model_row.open_button, key)
    assert door.sent == []


def test_prompts_are_edited_in_place_and_sent_as_they_stand(door: Door, qtbot) -> None:
    row = door.page.prompts[1]
    pencil = row.findChild(QToolButton)
    qtbot.mouseClick(pencil, LEFT)
    assert row.edit.hasFocus()
    assert row.edit.selectedText() == PROMPTS[1]
    qtbot.keyClicks(row.edit, "  Why is the sea salt?  ")
    qtbot.mouseClick(door.page.send_button, LEFT)
    assert door.sent == [[PROMPTS[0], "Why is the sea salt?", PROMPTS[2]]]


@pytest.mark.parametrize(
    ("cleared", "words"), [(0, "Send all three"), (1, "Send both"), (2, "Send one"), (3, "Send")]
)
def test_the_button_counts_the_prompts(door: Door, qtbot, cleared, words) -> None:
    for row in door.page.prompts[:cleared]:
        row.edit.selectAll()
        qtbot.keyClicks(row.edit, "  ")
    assert door.page.send_button.text() == words
    assert door.page.send_button.isEnabled() == (cleared < 3)
    assert door.page.enter_hint.isVisible() == (cleared < 3)
    qtbot.keyClick(door.page.prompts[0].edit, Qt.Key.Key_Return)
    assert [len(texts) for texts in door.sent] == ([3 - cleared] if cleared < 3 else [])


@pytest.mark.parametrize("phase", ["none", "fetching", "loading", "failed", "stopped"])
def test_without_a_model_nothing_is_sent_and_an_empty_chat_opens(qtbot, phase) -> None:
    door = Door(qtbot, phase)
    assert not door.page.send_button.isEnabled()
    qtbot.keyClick(door.page.prompts[0].edit, Qt.Key.Key_Return)
    qtbot.mouseClick(door.page.send_button, LEFT)
    assert door.sent == []
    qtbot.mouseClick(door.page.empty_button, LEFT)
    assert door.new == [1]
    door.status.update(phase="ready")
    assert door.page.send_button.isEnabled()


def test_the_chips_have_the_colours_that_the_chats_will_get(door: Door) -> None:
    assert [row.chip.owner for row in door.page.prompts] == [0, 1, 2]
    for number, owner in enumerate((1, 3)):
        session = Session(SessionRecord(f"s{number}", "Chat", 0, 0))
        session.owner = owner
        door.sessions.insert(session)
    door.page.hide()
    door.page.show()
    assert [row.chip.owner for row in door.page.prompts] == [0, 2, 4]


def test_a_low_or_narrow_window_scrolls_and_covers_nothing(door: Door) -> None:
    door.page.resize(420, 300)
    assert door.page.verticalScrollBar().maximum() > 0
    assert door.page.horizontalScrollBar().maximum() == 0
    rows = [row.geometry() for row in door.page.prompts]
    assert all(one.bottom() < two.top() for one, two in itertools.pairwise(rows))
