"""The one primary button of the composer: it says what it does, in words and in its picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLineEdit, QWidget

from app.views.send_button import SIDE, SendButton


@pytest.fixture
def button(qtbot) -> Iterator[SendButton]:
    host = QWidget()
    qtbot.addWidget(host)
    host.resize(100, 60)
    edit, made = QLineEdit(host), SendButton(host)
    made.show_stop(False)
    made.move(60, 10)
    host.show()
    host.activateWindow()
    edit.setFocus()
    yield made
    host.close()


def test_words_and_picture_follow_the_state(button: SendButton) -> None:
    send = button.grab().toImage()
    assert (button.accessibleName(), button.toolTip()) == ("Send (Enter)", "Send (Enter)")
    button.show_stop(True)
    stop = button.grab().toImage()
    assert (button.accessibleName(), button.toolTip()) == ("Stop (Esc)", "Stop (Esc)")
    assert stop != send
    button.show_stop(False)
    assert button.grab().toImage() == send
    button.setEnabled(False)
    assert button.grab().toImage() not in (send, stop)


@pytest.mark.parametrize("key", [None, Qt.Key.Key_Space])
def test_it_is_pressed_by_mouse_and_space_but_not_when_disabled(button, qtbot, key) -> None:
    def press() -> None:
        if key is None:
            qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        else:
            qtbot.keyClick(button, key)

    with qtbot.waitSignal(button.clicked):
        press()
    button.setEnabled(False)
    with qtbot.assertNotEmitted(button.clicked):
        press()


def test_a_click_leaves_the_focus_with_the_message(button: SendButton, qtbot) -> None:
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert not button.hasFocus()
    assert button.focusPolicy() == Qt.FocusPolicy.TabFocus
    assert (button.width(), button.height()) == (SIDE, SIDE)


def test_the_focus_is_seen(button: SendButton, qtbot) -> None:
    before = button.grab().toImage()
    button.setFocus(Qt.FocusReason.TabFocusReason)
    qtbot.waitUntil(button.hasFocus)
    assert button.grab().toImage() != before
