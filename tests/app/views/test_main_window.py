"""The window: tabs, list, welcome, banner, toasts, keys, and what gives way when it is narrow."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QAbstractButton, QLineEdit

from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.main_window import MainWindow
from app.views.toasts import Toast


class House:
    """A window on models that obey the intents as the application does."""

    def __init__(self, qtbot, themes, num_chats: int = 3, num_tabs: int = 3) -> None:
        self.sessions, self.pool = Sessions(), PoolModel()
        self.status, self.intents = AppStatus(), Intents()
        self.status.update(phase="ready", starter_name="Starter", starter_bytes=98_000_000)
        self.themes = themes
        self.themes.set_choice("light")
        for number in range(num_chats):
            turn = TurnRecord("t", "hi", 0, (ReplyRecord("r", "hello", "complete"),))
            record = SessionRecord(f"s{number}", f"Chat {number}", 0, 0, turns=(turn,))
            self.sessions.insert(Session(record), number)
        self.intents.open_chat.connect(self.sessions.open_tab)
        self.intents.close_tab.connect(self.sessions.close_tab)
        self.intents.move_tab.connect(self.sessions.move_tab)
        self.intents.delete.connect(self._delete)
        self.intents.rename.connect(self._rename)
        self.window = MainWindow(self.sessions, self.pool, self.status, self.intents, self.themes)
        self.qtbot = qtbot
        qtbot.addWidget(self.window, before_close_func=lambda w: w.allow_close())
        for number in range(num_tabs):
            self.sessions.open_tab(f"s{number}", make_current=False)
        if num_tabs:
            self.sessions.set_current("s0")
        self.window.show()
        self.window.activateWindow()
        qtbot.waitExposed(self.window)

    @property
    def tabs(self):
        return self.window.chat_area.tabs

    def order(self) -> list[str]:
        return [self.tabs.session_id(i) for i in range(self.tabs.count())]

    def key(self, key: Qt.Key, *modifiers: Qt.KeyboardModifier) -> None:
        combined = Qt.KeyboardModifier.NoModifier
        for modifier in modifiers:
            combined |= modifier
        self.qtbot.keyClick(self.window, key, combined)

    def _delete(self, session_id: str) -> None:
        self.sessions.close_tab(session_id)
        self.sessions.remove(session_id)
        self.status.toast.emit("gone", "Undo")

    def _rename(self, session_id: str, title: str) -> None:
        session = self.sessions.get(session_id)
        assert session is not None
        session.set_record(title=title)


@pytest.fixture
def house(qtbot, look):
    return House(qtbot, look)


CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier


def test_tabs_follow_the_model(house):
    assert house.order() == ["s0", "s1", "s2"]
    house.sessions.set_current("s2")
    assert house.tabs.currentIndex() == 2
    assert house.window.chat_area.current_page.session.session_id == "s2"
    house.sessions.close_tab("s1")
    assert house.order() == ["s0", "s2"]
    house.sessions.open_tab("s1", index=0)
    assert house.order() == ["s1", "s0", "s2"]


def test_closing_with_key_middle_button_and_cross(house, qtbot):
    house.key(Qt.Key.Key_W, CTRL)
    assert house.sessions.tabs == ["s1", "s2"]
    middle = house.tabs.tabRect(1).center()
    qtbot.mouseClick(house.tabs, Qt.MouseButton.MiddleButton, pos=middle)
    assert house.sessions.tabs == ["s1"]
    cross = house.tabs._close_box(0).center()
    qtbot.mouseClick(house.tabs, Qt.MouseButton.LeftButton, pos=cross)
    assert house.sessions.tabs == []
    assert house.window.chat_area.stack.currentWidget() is house.window.chat_area.welcome
    with qtbot.waitSignal(house.intents.reopen_tab):
        house.key(Qt.Key.Key_T, CTRL, SHIFT)


def test_a_dragged_tab_is_asked_for_and_the_page_stays(house, qtbot):
    house.tabs.moveTab(0, 2)  # what a drag does
    assert house.sessions.tabs == ["s1", "s2", "s0"]
    assert house.order() == ["s1", "s2", "s0"]
    assert house.window.chat_area.current_page.session.session_id == "s0"


def test_keys_go_round_the_tabs(house):
    house.key(Qt.Key.Key_Tab, CTRL)
    assert house.sessions.current_id == "s1"
    house.key(Qt.Key.Key_PageUp, CTRL)
    house.key(Qt.Key.Key_PageUp, CTRL)
    assert house.sessions.current_id == "s2"


@pytest.mark.parametrize(
    ("key", "modifiers", "signal"),
    [
        (Qt.Key.Key_T, (CTRL,), "new_chat"),
        (Qt.Key.Key_N, (CTRL,), "new_chat"),
        (Qt.Key.Key_R, (CTRL,), "regenerate"),
        (Qt.Key.Key_Q, (CTRL,), "quit"),
    ],
)
def test_keys_ask(house, qtbot, key, modifiers, signal):
    with qtbot.waitSignal(getattr(house.intents, signal)):
        house.key(key, *modifiers)


def test_escape_stops_only_what_runs(house, qtbot):
    edit = house.window.chat_area.current_page.composer.edit
    with qtbot.assertNotEmitted(house.intents.stop):
        qtbot.keyClick(edit, Qt.Key.Key_Escape)
    house.sessions.current.set_status("running")
    with qtbot.waitSignal(house.intents.stop) as asked:
        qtbot.keyClick(edit, Qt.Key.Key_Escape)
    assert asked.args == ["s0"]


def test_a_draft_survives_closing_the_tab(house):
    house.window.chat_area.current_page.composer.edit.set_text("half a thought")
    house.sessions.close_tab("s0")
    house.sessions.open_tab("s0")
    assert house.window.chat_area.current_page.composer.text() == "half a thought"


def test_rename_in_place(house, qtbot):
    house.key(Qt.Key.Key_F2)
    editor = next(e for e in house.window.chat_list.list.findChildren(QLineEdit) if e.isVisible())
    editor.selectAll()
    qtbot.keyClicks(editor, "New title")
    qtbot.keyClick(editor, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: house.sessions.get("s0").title == "New title")
    assert house.tabs.tabText(0) == "New title"
    assert "New title" in house.window.windowTitle()


def test_delete_offers_undo(house, qtbot):
    chats = house.window.chat_list.list
    chats.setCurrentIndex(chats.model().index(house.window.chat_list.model.row_of("s1"), 0))
    qtbot.keyClick(chats, Qt.Key.Key_Delete)
    assert house.sessions.get("s1") is None
    (toast,) = house.window.chat_area.toasts.shown
    with qtbot.waitSignal(house.intents.undo_delete):
        toast.undo_button.click()
    assert house.window.chat_area.toasts.shown == []


def test_a_click_in_the_list_opens(house, qtbot):
    house.sessions.close_tab("s2")
    view = house.window.chat_list
    box = view.list.visualRect(view.model.index(view.model.row_of("s2")))
    qtbot.mouseClick(view.list.viewport(), Qt.MouseButton.LeftButton, pos=box.center())
    assert house.sessions.current_id == "s2"


def test_search_by_title(house, qtbot):
    house.key(Qt.Key.Key_K, CTRL)
    qtbot.keyClicks(house.window.chat_list.search, "chat 2")
    assert house.window.chat_list.model.num_chats == 1
    house.window.chat_list.search.setText("nowhere")
    assert house.window.chat_list.empty.text() == "Nothing found for “nowhere”."


def test_errors_stay_and_toasts_go(house, qtbot):
    house.status.error.emit("No space is left.")
    house.status.toast.emit("Exported.", "")
    errors = [toast for toast in house.window.chat_area.toasts.shown if toast.is_error]
    assert len(house.window.chat_area.toasts.shown) == 2
    other = next(t for t in house.window.chat_area.toasts.shown if not t.is_error)
    assert other._timer.isActive()
    assert not errors[0]._timer.isActive()
    other._timer.timeout.emit()
    assert house.window.chat_area.toasts.shown == errors
    for number in range(9):
        house.status.toast.emit(f"{number}", "")
    assert errors[0] in house.window.chat_area.toasts.shown
    assert len(house.window.findChildren(Toast)) < 12


def test_the_banner_offers_restart(house, qtbot):
    banner = house.window.chat_area.banner
    assert not banner.isVisible()
    house.status.update(phase="stopped", message="Out of memory.")
    assert banner.isVisible()
    assert "Out of memory." in banner.words.text()
    with qtbot.waitSignal(house.intents.restart_engine):
        banner.button.click()
    house.status.update(phase="ready", message="")
    assert not banner.isVisible()
    house.status.update(phase="failed", message="model.gguf ends too early.")
    assert banner.isVisible()
    banner.close_button.click()
    assert not banner.isVisible()


def test_the_welcome_page_sends_three_once(qtbot, look):
    house = House(qtbot, look, num_chats=0, num_tabs=0)
    welcome = house.window.chat_area.welcome
    assert welcome.isVisible()
    sent = []
    house.intents.send_all.connect(sent.append)
    qtbot.keyClick(welcome.prompts[1].edit, Qt.Key.Key_Return)
    assert [len(texts) for texts in sent] == [3]
    welcome.prompts[0].edit.clear()
    assert welcome.send_button.text() == "Send both"
    house.status.update(phase="none")
    assert not welcome.send_button.isEnabled()
    with qtbot.waitSignal(house.intents.new_chat):
        welcome.empty_button.click()


def test_the_model_row_follows_the_model(qtbot, look):
    house = House(qtbot, look, num_chats=0, num_tabs=0)
    row = house.window.chat_area.welcome.model_row
    house.status.update(phase="none")
    with qtbot.waitSignal(house.intents.get_starter):
        row.fetch_button.click()
    house.status.update(phase="fetching", fraction=0.4, note="39 of 98 MB")
    assert row.bar.isVisible()
    assert row.bar.value() == 400
    assert row.note.text() == "39 of 98 MB"
    with qtbot.waitSignal(house.intents.cancel_starter):
        row.cancel_button.click()
    house.status.update(phase="failed", message="The file is not a model.")
    assert row.reason.text() == "The file is not a model."
    assert row.open_button.isVisible()


@pytest.mark.parametrize(
    ("width", "kind", "has_panel", "has_strip"),
    [(1920, "wide", True, False), (1440, "wide", True, False), (1100, "rail", True, False),
     (1000, "rail", False, True), (700, "hidden", False, True), (640, "hidden", False, True)],
)  # fmt: skip
def test_what_gives_way(house, width, kind, has_panel, has_strip):
    window = house.window
    window.resize(width, 700)
    assert window._mode == (kind, has_panel)
    assert window.panel.isVisible() == has_panel
    assert window.strip.isVisible() == has_strip
    assert window.chat_list.isVisible() == (kind != "hidden")
    assert window.width() == width


def test_panes_slide_over_a_narrow_window_and_go_back(house, qtbot):
    window = house.window
    window.resize(700, 600)
    house.key(Qt.Key.Key_B, CTRL)
    assert window.chat_list.isVisible()
    assert not window.chat_list.is_rail
    house.key(Qt.Key.Key_J, CTRL)
    assert window.panel.isVisible()
    assert not window.chat_list.isVisible()
    qtbot.mouseClick(window._scrim, Qt.MouseButton.LeftButton, pos=QPoint(5, 100))
    assert not window.panel.isVisible()
    window.resize(1440, 900)
    assert window.panel.isVisible()
    assert window.splitter.indexOf(window.chat_list) == 0
    assert window.splitter.indexOf(window.panel) == 2


def test_the_panel_can_be_hidden_and_the_choice_is_kept(house, look, qtbot):
    house.key(Qt.Key.Key_J, CTRL)
    assert not house.window.panel.isVisible()
    saved = house.window.save_state()
    other = House(qtbot, look)
    other.window.restore_state(saved)
    assert not other.window.panel.isVisible()
    other.window.chat_area.panel_button.click()
    assert other.window.panel.isVisible()


@pytest.mark.parametrize("saved", [b"", b"\xff\x00", b"{}", b'{"version": 1}', b"[1]", b"null"])
def test_a_damaged_state_is_ignored(house, saved):
    house.window.restore_state(saved)
    assert house.window.panel.isVisible()


def test_closing_asks_first(house, qtbot):
    with qtbot.waitSignal(house.window.close_requested):
        house.window.close()
    assert house.window.isVisible()
    house.window.allow_close()
    assert house.window.close()


def test_export_menu_has_four_formats_and_asks(house, qtbot):
    menu = house.window.actions_of.export_menu()
    assert [action.data() for action in menu.actions()] == ["md", "json", "html", "pdf"]
    menu.actions()[0].trigger()
    dialog = house.window.actions_of._dialog
    assert dialog is not None
    assert dialog.isVisible()
    with qtbot.waitSignal(house.intents.export) as asked:
        dialog.fileSelected.emit("/tmp/x.md")
    assert asked.args == ["s0", "md", "/tmp/x.md"]
    dialog.close()


def test_menus_and_the_list_of_keys_do_not_block(house, qtbot):
    house.window.actions_of.pop_up_settings(QPoint(10, 700))
    menu = house.window.actions_of.settings_menu()
    theme_menu = next(a.menu() for a in menu.actions() if a.text() == "Theme")
    dark = next(a for a in theme_menu.actions() if a.data() == "dark")
    with qtbot.waitSignal(house.intents.set_theme) as asked:
        dark.trigger()
    assert asked.args == ["dark"]
    house.window.actions_of.show_keys()
    assert house.window.actions_of._dialog is not None
    house.window.actions_of._dialog.close()


def test_a_theme_change_repaints_everything(house):
    before = house.window.grab().toImage().pixelColor(700, 300)
    house.themes.set_choice("dark")
    after = house.window.grab().toImage().pixelColor(700, 300)
    assert before.lightness() > 200
    assert after.lightness() < 60


def test_every_button_has_a_name(house):
    nameless = [
        button
        for button in house.window.findChildren(QAbstractButton)
        if not (button.accessibleName() or button.text() or button.toolTip())
        and button.objectName() != "qt_toolbar_ext_button"
        and not button.inherits("QLineEditIconButton")
        and button.objectName() not in ("ScrollLeftButton", "ScrollRightButton")
    ]
    assert nameless == []
