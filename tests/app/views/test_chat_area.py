"""The middle of the window: pages for tabs, drafts, where banner and toasts stand."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt

from app.records import SessionRecord
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.chat_area import ChatArea

LEFT = Qt.MouseButton.LeftButton


class Middle:
    """The area with three chats of which none is open."""

    def __init__(self, qtbot) -> None:
        self.sessions, self.status, self.intents = Sessions(), AppStatus(), Intents()
        self.status.update(phase="ready")
        for number in range(3):
            self.sessions.insert(Session(SessionRecord(f"s{number}", f"Chat {number}", 0, 0)))
        self.area = ChatArea(self.sessions, self.status, self.intents)
        qtbot.addWidget(self.area)
        self.area.resize(800, 700)
        self.area.show()
        self.area.activateWindow()
        qtbot.waitExposed(self.area)

    def in_front(self) -> object:
        return self.area.stack.currentWidget()


@pytest.fixture
def middle(qtbot) -> Middle:
    return Middle(qtbot)


def test_the_page_of_the_chat_in_front_is_shown_and_ready_to_type(middle: Middle) -> None:
    assert middle.in_front() is middle.area.welcome
    assert middle.area.current_page is None
    middle.sessions.open_tab("s1")
    assert middle.in_front() is middle.area.current_page is middle.area.page("s1")
    assert middle.area.current_page.composer.edit.hasFocus()
    middle.sessions.open_tab("s2", make_current=False)
    assert middle.in_front() is middle.area.page("s1")
    middle.sessions.close_tab("s1")
    assert middle.in_front() is middle.area.page("s2")
    middle.sessions.close_tab("s2")
    assert middle.in_front() is middle.area.welcome
    assert middle.area.page("s1") is None


def test_drafts_outlive_their_tabs(middle: Middle, qtbot) -> None:
    for name in ("s0", "s1"):
        middle.sessions.open_tab(name)
        qtbot.keyClicks(middle.area.current_page.composer.edit, f"draft of {name}")
    middle.area.current_page.composer.keep_pasted("p" * 30_000)
    middle.sessions.close_tab("s0")
    middle.sessions.close_tab("s1")
    middle.sessions.open_tab("s1")
    text = middle.area.current_page.composer.text()
    assert text == "draft of s1\n\n" + "p" * 30_000
    middle.sessions.open_tab("s0")
    assert middle.area.current_page.composer.text() == "draft of s0"


def test_the_buttons_of_the_tab_row_ask(middle: Middle, qtbot) -> None:
    for button, signal in (
        (middle.area.new_button, middle.intents.new_chat),
        (middle.area.panel_button, middle.area.panel_wanted),
    ):
        with qtbot.waitSignal(signal):
            qtbot.mouseClick(button, LEFT)
    middle.area.list_button.show()
    with qtbot.waitSignal(middle.area.list_wanted):
        qtbot.mouseClick(middle.area.list_button, LEFT)


def test_a_failed_load_is_said_once_over_a_chat_or_in_the_model_row(middle: Middle) -> None:
    middle.status.update(phase="failed", message="a.gguf ends too early.")
    assert not middle.area.banner.isVisible()  # the welcome page says it
    assert middle.area.welcome.model_row.reason.isVisible()
    middle.sessions.open_tab("s0")
    assert middle.area.banner.isVisible()
    middle.sessions.close_tab("s0")
    middle.status.update(phase="stopped", message="Out of memory.")
    assert middle.area.banner.isVisible()  # with the button that starts it again


@pytest.mark.parametrize("width", [420, 800])
def test_a_long_reason_is_shown_whole_and_the_chat_gives_way(middle, qtbot, width) -> None:
    middle.area.resize(width, 700)
    middle.sessions.open_tab("s0")
    top = middle.area.stack.y()
    middle.status.update(phase="failed", message="A sentence that says a good deal. " * 12)
    banner = middle.area.banner
    assert banner.words.height() >= banner.words.heightForWidth(banner.words.width())
    assert banner.geometry().bottom() < middle.area._banner_room.height()
    qtbot.waitUntil(lambda: middle.area.stack.y() > top)
    banner.close_button.click()
    qtbot.waitUntil(lambda: middle.area.stack.y() == top)


def test_the_banner_and_the_model_row_ask_for_another_model(middle: Middle, qtbot) -> None:
    middle.status.update(phase="failed", message="x")
    with qtbot.waitSignal(middle.area.open_model_wanted):
        qtbot.mouseClick(middle.area.welcome.model_row.open_button, LEFT)
    middle.sessions.open_tab("s0")
    with qtbot.waitSignal(middle.area.open_model_wanted):
        qtbot.mouseClick(middle.area.banner.button, LEFT)


def test_toasts_stand_above_the_composer_and_move_with_it(middle: Middle) -> None:
    middle.sessions.open_tab("s0")
    middle.status.toast.emit("Exported.", "")
    (toast,) = middle.area.toasts.shown
    composer = middle.area.current_page.composer

    def composer_top() -> int:
        return composer.mapTo(middle.area, composer.rect().topLeft()).y()

    assert toast.geometry().bottom() < composer_top()
    foot = toast.geometry().bottom()
    composer.edit.set_text("a\n" * 8)
    assert toast.geometry().bottom() < composer_top()
    assert toast.geometry().bottom() < foot
    middle.area.resize(420, 500)
    assert middle.area.rect().contains(toast.geometry())


@pytest.mark.parametrize(
    ("phase", "is_shown"),
    [("none", False), ("fetching", True), ("loading", True), ("ready", False), ("failed", False)],
)
def test_the_line_under_the_tabs_shows_only_progress(middle: Middle, phase, is_shown) -> None:
    middle.status.update(phase=phase, fraction=0.5)
    assert middle.area.progress.isVisible() == is_shown
    if is_shown:
        picture = middle.area.progress.grab().toImage()
        assert picture.pixel(100, 1) != picture.pixel(700, 1)
        assert picture.pixel(100, 1) == picture.pixel(380, 1)
