"""One chat's page: transcript above composer, both on the reading column, at every size."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt

from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.state.intents import Intents
from app.state.session import Session
from app.state.status import AppStatus
from app.views.chat_page import BOTTOM, INSET, ChatPage
from app.views.transcript_canvas import column_of


class Leaf:
    """A page of a chat without turns."""

    def __init__(self, qtbot) -> None:
        self.session = Session(SessionRecord("s", "Chat", 0, 0))
        self.status, self.intents = AppStatus(), Intents()
        self.status.update(phase="ready")
        self.page = ChatPage(self.session, self.status, self.intents)
        qtbot.addWidget(self.page)
        self.page.resize(784, 700)
        self.page.show()
        self.page.activateWindow()
        qtbot.waitExposed(self.page)

    def add_turn(self) -> None:
        reply = ReplyRecord("r", "hello", "complete")
        self.session.add_turn(TurnRecord("t", "hi", 0, (reply,)))


@pytest.fixture
def leaf(qtbot) -> Leaf:
    return Leaf(qtbot)


def test_an_empty_chat_says_how_to_begin_and_the_first_turn_takes_its_place(leaf: Leaf) -> None:
    assert leaf.page.empty.isVisible()
    assert "Shift+Enter" in leaf.page.empty.text()
    assert not leaf.page.transcript.isVisible()
    leaf.add_turn()
    assert not leaf.page.empty.isVisible()
    assert leaf.page.transcript.isVisible()
    leaf.page.transcript.select_all()
    assert leaf.page.transcript.selected_text() == "hi\n\nhello"


def test_a_chat_with_turns_opens_with_them(qtbot) -> None:
    turn = TurnRecord("t", "hi", 0, ())
    session = Session(SessionRecord("s", "Chat", 0, 0, turns=(turn,)))
    page = ChatPage(session, AppStatus(), Intents())
    qtbot.addWidget(page)
    page.show()
    assert not page.empty.isVisible()
    assert page.transcript.isVisible()


@pytest.mark.parametrize(("width", "height"), [(360, 300), (784, 700), (1500, 500), (2000, 900)])
def test_composer_and_transcript_share_the_column_and_never_overlap(leaf, width, height) -> None:
    leaf.add_turn()
    leaf.page.resize(width, height)
    left, column = column_of(width, width)
    composer, transcript = leaf.page.composer.geometry(), leaf.page.transcript.geometry()
    assert (composer.left(), composer.width()) == (left - INSET, column + 2 * INSET)
    assert composer.bottom() + 1 == height - BOTTOM
    assert transcript.width() == width
    assert transcript.bottom() < composer.top()
    assert leaf.page.rect().contains(composer)


def test_a_growing_message_takes_room_from_the_transcript_only(leaf: Leaf, qtbot) -> None:
    leaf.add_turn()
    foot, top = leaf.page.composer.geometry().bottom(), leaf.page.composer.geometry().top()
    for _ in range(5):
        qtbot.keyClicks(leaf.page.composer.edit, "line")
        shift = Qt.KeyboardModifier.ShiftModifier
        qtbot.keyClick(leaf.page.composer.edit, Qt.Key.Key_Return, shift)
    assert leaf.page.composer.geometry().bottom() == foot
    assert leaf.page.composer.geometry().top() < top
    assert leaf.page.transcript.geometry().bottom() < leaf.page.composer.geometry().top()
    leaf.page.composer.edit.set_text("a\n" * 60)
    leaf.page.resize(784, 300)  # a low window keeps a strip of the transcript
    assert leaf.page.transcript.height() > 80


def test_typing_goes_to_the_composer_wherever_the_page_has_the_focus(leaf: Leaf, qtbot) -> None:
    leaf.page.setFocus()
    assert leaf.page.composer.edit.hasFocus()
    qtbot.keyClicks(leaf.page.composer.edit, "hello")
    with qtbot.waitSignal(leaf.intents.send) as asked:
        qtbot.keyClick(leaf.page.composer.edit, Qt.Key.Key_Return)
    assert asked.args == ["s", "hello"]


def test_tab_goes_from_the_message_through_every_control(leaf: Leaf, qtbot, qapp) -> None:
    qtbot.keyClicks(leaf.page.composer.edit, "x")
    seen = []
    for _ in range(6):
        seen.append(qapp.focusWidget().accessibleName())
        qtbot.keyClick(qapp.focusWidget(), Qt.Key.Key_Tab)
    assert {"Message", "Send (Enter)"} <= set(seen)
    assert seen.count("Message") >= 2  # and round again
