"""The banner: which state shows it, what its button asks for, and when it comes back."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QPixmap

from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.banners import IconLabel, StatusBanner

LEFT = Qt.MouseButton.LeftButton


@pytest.fixture
def parts(qtbot) -> tuple[StatusBanner, AppStatus, Intents]:
    status, intents = AppStatus(), Intents()
    banner = StatusBanner(status, intents)
    qtbot.addWidget(banner)
    banner.resize(600, 60)
    return banner, status, intents


@pytest.mark.parametrize("phase", ["none", "fetching", "loading", "ready"])
def test_it_is_hidden_while_nothing_is_wrong(parts, phase) -> None:
    banner, status, _ = parts
    status.update(phase="failed", message="x")
    status.update(phase=phase)
    assert not banner.isVisible()
    assert not banner.is_needed


def test_a_failed_load_says_why_and_offers_another_model(parts, qtbot) -> None:
    banner, status, intents = parts
    status.update(phase="failed", message="a.gguf ends too early.")
    assert banner.isVisible()
    assert banner.words.text() == "a.gguf ends too early."
    assert banner.close_button.isVisible()
    with (
        qtbot.waitSignal(banner.open_model_wanted),
        qtbot.assertNotEmitted(intents.restart_engine),
    ):
        qtbot.mouseClick(banner.button, LEFT)


def test_a_stopped_engine_offers_a_restart_and_cannot_be_closed(parts, qtbot) -> None:
    banner, status, intents = parts
    status.update(phase="stopped", message="Out of memory.")
    assert banner.words.text() == "The engine stopped. Out of memory. Your chats are kept."
    assert not banner.close_button.isVisible()
    with (
        qtbot.waitSignal(intents.restart_engine),
        qtbot.assertNotEmitted(banner.open_model_wanted),
    ):
        qtbot.keyClick(banner.button, Qt.Key.Key_Space)
    status.update(message="")
    assert banner.words.text() == "The engine stopped. Your chats are kept."


@pytest.mark.parametrize("message", ["a.gguf ends too early.", ""])
def test_a_closed_banner_comes_back_with_the_next_failure(parts, qtbot, message) -> None:
    banner, status, _ = parts
    status.update(phase="failed", message=message)
    assert banner.isVisible()  # without a reason too: something must be said
    assert banner.words.text()
    qtbot.mouseClick(banner.close_button, LEFT)
    assert not banner.isVisible()
    status.update(num_generating=0)  # any other change
    assert not banner.isVisible()
    status.update(message="Another reason.")
    assert banner.isVisible()
    qtbot.mouseClick(banner.close_button, LEFT)
    status.update(phase="loading")
    status.update(phase="failed", message="Another reason.")
    assert banner.isVisible()  # the same reason again is news: the user has tried again


def test_the_reason_is_text_and_not_html(parts) -> None:
    banner, status, _ = parts
    status.update(phase="failed", message="<b>x</b> & y")
    assert banner.words.text() == "<b>x</b> & y"
    assert banner.words.textFormat() == Qt.TextFormat.PlainText


def test_an_icon_is_drawn_again_in_another_theme(qtbot, look) -> None:
    label = IconLabel("check", "text.primary", None)  # type: ignore[arg-type]
    qtbot.addWidget(label)
    label.show()
    before: QPixmap = label.pixmap()
    look.set_choice("dark")
    in_dark = label.pixmap().toImage()
    look.set_choice("light")
    assert in_dark != before.toImage()
    assert label.pixmap().toImage() == before.toImage()
    label.set_picture("triangle-alert", "error.base")
    assert label.pixmap().toImage() != before.toImage()
