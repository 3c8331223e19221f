"""Keys and menus of the window: every key does its one thing, menus and dialogs never block."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog, QLabel, QLineEdit, QMenu

from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.main_window import MainWindow

CTRL = Qt.KeyboardModifier.ControlModifier
SHIFT = Qt.KeyboardModifier.ShiftModifier
Key = Qt.Key


@pytest.fixture(scope="module", autouse=True)
def whole_style(look) -> None:
    """The style sheet of a manager that lives: the images of another one go with it."""
    look.set_choice("dark")
    look.set_choice("light")


class Desk:
    """A whole window with two chats, and everything that was asked for."""

    def __init__(self, qtbot, themes) -> None:
        self.sessions, self.status, self.intents = Sessions(), AppStatus(), Intents()
        self.qtbot = qtbot
        turn = TurnRecord("t", "hi", 0, (ReplyRecord("r", "hello", "complete"),))
        for number in range(2):
            record = SessionRecord(f"s{number}", f"Chat {number}", 0, 0, turns=(turn,))
            self.sessions.insert(Session(record), number)
        self.asked: list[tuple[object, ...]] = []
        for name in (
            "new_chat", "close_tab", "reopen_tab", "open_chat", "stop", "regenerate", "export",
            "import_chat", "open_model", "set_theme", "quit", "rename",
        ):  # fmt: skip
            signal = getattr(self.intents, name)
            signal.connect(lambda *args, name=name: self.asked.append((name, *args)))
        self.window = MainWindow(self.sessions, PoolModel(), self.status, self.intents, themes)
        qtbot.addWidget(self.window, before_close_func=lambda window: window.allow_close())
        for name in ("s0", "s1"):
            self.sessions.open_tab(name, make_current=False)
        self.sessions.set_current("s0")
        self.window.show()
        self.window.activateWindow()
        qtbot.waitExposed(self.window)

    @property
    def actions(self):
        return self.window.actions_of

    def key(self, key: Qt.Key, modifiers=CTRL) -> None:
        self.qtbot.keyClick(self.window, key, modifiers)

    def dialogs(self) -> list[QDialog]:
        return [one for one in self.window.findChildren(QDialog) if one.isVisible()]


@pytest.fixture
def desk(qtbot, look) -> Desk:
    return Desk(qtbot, look)


@pytest.mark.parametrize(
    ("key", "modifiers", "asked"),
    [
        (Key.Key_T, CTRL, [("new_chat",)]),
        (Key.Key_N, CTRL, [("new_chat",)]),
        (Key.Key_W, CTRL, [("close_tab", "s0")]),
        (Key.Key_T, CTRL | SHIFT, [("reopen_tab",)]),
        (Key.Key_Tab, CTRL, [("open_chat", "s1")]),
        (Key.Key_PageDown, CTRL, [("open_chat", "s1")]),
        (Key.Key_Tab, CTRL | SHIFT, [("open_chat", "s1")]),
        (Key.Key_PageUp, CTRL, [("open_chat", "s1")]),
        (Key.Key_R, CTRL, [("regenerate", "s0")]),
        (Key.Key_Q, CTRL, [("quit",)]),
    ],
)
def test_a_key_asks_for_its_one_thing(desk: Desk, key, modifiers, asked) -> None:
    desk.key(key, modifiers)
    assert desk.asked == asked


def test_keys_that_need_a_chat_do_nothing_without_one(desk: Desk) -> None:
    desk.sessions.close_tab("s0")
    desk.sessions.close_tab("s1")
    for key in (Key.Key_W, Key.Key_Tab, Key.Key_R, Key.Key_E, Key.Key_L):
        desk.key(key)
    desk.key(Key.Key_F2, Qt.KeyboardModifier.NoModifier)
    desk.key(Key.Key_Escape, Qt.KeyboardModifier.NoModifier)
    assert desk.asked == []
    assert desk.dialogs() == []
    assert QApplication.activePopupWidget() is None


def test_no_key_is_given_twice_and_each_is_in_the_list(desk: Desk) -> None:
    keys = [key for action in desk.window.actions() for key in action.shortcuts()]
    assert len(keys) == len(set(keys)) > 15
    native = QKeySequence.SequenceFormat.NativeText
    listed = ", ".join(shown for shown, _ in desk.actions.listed)
    assert [key.toString() for key in keys if key.toString(native) not in listed] == []
    desk.actions.show_keys()
    (dialog,) = desk.dialogs()
    words = [label.text() for label in dialog.findChildren(QLabel)]
    assert {"Send", "New line", "Stop the answer", "New chat"} <= set(words)
    desk.qtbot.keyClick(dialog, Key.Key_Escape)
    desk.qtbot.waitUntil(lambda: desk.dialogs() == [])


def test_f2_in_the_list_renames_the_row_with_the_focus(desk: Desk) -> None:
    """The window's own F2 renames the chat in front; in the list the row is meant."""
    chats = desk.window.chat_list
    chats.list.setFocus()
    chats.list.setCurrentIndex(chats.model.index(chats.model.row_of("s1")))
    desk.qtbot.keyClick(chats.list, Key.Key_F2)
    (editor,) = (one for one in chats.list.findChildren(QLineEdit) if one.isVisible())
    desk.qtbot.keyClicks(editor, "Other")
    desk.qtbot.keyClick(editor, Key.Key_Return)
    desk.qtbot.waitUntil(lambda: ("rename", "s1", "Other") in desk.asked)
    assert not [one for one in desk.asked if one[0] == "open_chat"]


def test_the_export_menu_is_reached_by_keys_alone(desk: Desk, tmp_path: Path) -> None:
    desk.key(Key.Key_E)
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    desk.qtbot.keyClick(menu, Key.Key_Down)
    desk.qtbot.keyClick(menu, Key.Key_Return)
    (dialog,) = desk.dialogs()
    assert isinstance(dialog, QFileDialog)
    assert dialog.acceptMode() == QFileDialog.AcceptMode.AcceptSave
    assert Path(dialog.selectedFiles()[0]).name == "Chat 0.json"
    desk.sessions.set_current("s1")  # the export is of the chat for which it was asked
    path = str(tmp_path / "kept.json")
    dialog.fileSelected.emit(path)
    assert desk.asked == [("export", "s0", "json", path)]
    dialog.close()
    desk.key(Key.Key_O, CTRL | SHIFT)
    (again,) = desk.dialogs()
    assert again.directory().path() == str(tmp_path)  # where the last file went


def test_there_is_one_dialog_at_a_time(desk: Desk) -> None:
    for ask in (desk.actions.ask_import, desk.actions.ask_model_file, desk.actions.show_keys,
                desk.actions.ask_model_folder):  # fmt: skip
        ask()
        desk.qtbot.wait(1)  # closed ones go on the next turn of the loop
        assert len(desk.dialogs()) == 1
    desk.dialogs()[0].close()
    desk.qtbot.waitUntil(lambda: desk.window.findChildren(QDialog) == [])


@pytest.mark.parametrize(
    ("ask", "intent", "mode"),
    [
        ("ask_import", "import_chat", QFileDialog.FileMode.ExistingFile),
        ("ask_model_file", "open_model", QFileDialog.FileMode.ExistingFile),
        ("ask_model_folder", "open_model", QFileDialog.FileMode.Directory),
    ],
)
def test_what_a_dialog_chose_is_asked_for(desk: Desk, ask, intent, mode) -> None:
    getattr(desk.actions, ask)()
    (dialog,) = desk.dialogs()
    assert dialog.fileMode() == mode
    dialog.fileSelected.emit("/some/where")
    assert desk.asked == [(intent, "/some/where")]
    dialog.reject()
    desk.qtbot.waitUntil(lambda: desk.dialogs() == [])
    assert len(desk.asked) == 1


def test_the_settings_menu_holds_the_rest_and_leaves_nothing_behind(desk: Desk) -> None:
    desk.actions.pop_up_settings(QPoint(300, 700))
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    words = [one.text().split("\t")[0] for one in menu.actions() if not one.isSeparator()]
    assert words == [
        "Open a model", "Export chat", "Import a chat…", "Theme", "Keyboard shortcuts", "Quit",
    ]  # fmt: skip
    assert menu.geometry().bottom() <= 700
    menu.close()
    desk.qtbot.waitUntil(lambda: desk.window.findChildren(QMenu) == [])


@pytest.mark.parametrize("choice", ["system", "light", "dark"])
def test_a_theme_is_asked_for_and_the_present_one_is_marked(desk: Desk, look, choice) -> None:
    menu = desk.actions.settings_menu()
    themes = next(one.menu() for one in menu.actions() if one.text() == "Theme")
    assert [one.data() for one in themes.actions() if one.isChecked()] == [look.choice]
    next(one for one in themes.actions() if one.data() == choice).trigger()
    assert desk.asked == [("set_theme", choice)]


def test_without_a_chat_there_is_nothing_to_export(desk: Desk) -> None:
    assert desk.actions.export_menu().isEnabled()
    desk.sessions.close_tab("s0")
    desk.sessions.close_tab("s1")
    assert not desk.actions.export_menu().isEnabled()


def test_other_work_goes_on_while_a_menu_and_a_dialog_are_open(run, desk: Desk) -> None:
    """Trap 14: opened inside a coroutine they come back at once and turn no loop of their own."""

    async def scene() -> list[str]:
        ticks: list[str] = []

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.002)
                ticks.append("tick")

        other = asyncio.ensure_future(tick())
        acts = desk.actions
        for open_it, name in ((acts.pop_up_export, "menu"), (acts.ask_import, "dialog")):
            open_it()
            ticks.append(name)
            while len(ticks) < ticks.index(name) + 4:
                await asyncio.sleep(0.002)
            popup = QApplication.activePopupWidget()
            for one in [*desk.dialogs(), *([popup] if popup else [])]:
                one.close()
        other.cancel()
        return ticks

    ticks = run(scene())
    assert ticks.index("menu") < ticks.index("dialog")
    assert ticks[-1] == "tick"


def test_the_menu_of_models_offers_the_starter(desk: Desk) -> None:
    assert len(desk.actions.model_menu().actions()) == 2
    desk.status.update(starter_name="Tiny", starter_bytes=98_000_000)
    asked: list[bool] = []
    desk.intents.get_starter.connect(lambda: asked.append(True))
    action = desk.actions.model_menu().actions()[2]
    assert action.text() == "Tiny (starter, 98 MB)"
    action.trigger()
    assert asked == [True]
    desk.status.update(phase="fetching")
    assert not desk.actions.model_menu().actions()[2].isEnabled()
