"""The list of chats: what it asks for by mouse and keys, renaming in place, search, the rail."""

from __future__ import annotations

import time

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QApplication, QLineEdit, QStyleOptionViewItem, QToolTip

from app.records import SessionRecord
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.views.session_list import SessionListView

LEFT = Qt.MouseButton.LeftButton
Key = Qt.Key


class Shelf:
    """A list with chats on it, and everything that it asked for."""

    def __init__(self, qtbot, titles: tuple[str, ...] = ("Tide", "Lisbon", "Lease")) -> None:
        self.sessions, self.intents, self.qtbot = Sessions(), Intents(), qtbot
        for number, title in enumerate(titles):
            record = SessionRecord(f"s{number}", title, 0, int(time.time() * 1000))
            self.sessions.insert(Session(record), number)
        self.view = SessionListView(self.sessions, self.intents)
        qtbot.addWidget(self.view)
        self.view.resize(280, 600)
        self.view.show()
        self.view.activateWindow()
        qtbot.waitExposed(self.view)
        self.asked: list[tuple[str, ...]] = []
        self.intents.open_chat.connect(lambda *args: self.asked.append(("open", *args)))
        self.intents.delete.connect(lambda *args: self.asked.append(("delete", *args)))
        self.intents.rename.connect(lambda *args: self.asked.append(("rename", *args)))
        self.intents.new_chat.connect(lambda: self.asked.append(("new",)))

    @property
    def list(self):
        return self.view.list

    def place(self, session_id: str) -> QPoint:
        index = self.view.model.index(self.view.model.row_of(session_id))
        return self.list.visualRect(index).center()

    def click(self, session_id: str) -> None:
        self.qtbot.mouseClick(self.list.viewport(), LEFT, pos=self.place(session_id))

    def titles(self) -> list[str]:
        rows = [self.view.model.session_at(row) for row in range(self.view.model.rowCount())]
        return [session.title for session in rows if session is not None]

    def editor(self) -> QLineEdit:
        (editor,) = (one for one in self.editors() if one.isVisible())
        return editor

    def editors(self) -> list[QLineEdit]:
        return self.list.findChildren(QLineEdit)


@pytest.fixture
def shelf(qtbot) -> Shelf:
    return Shelf(qtbot)


def test_a_click_and_enter_open_and_a_heading_does_nothing(shelf: Shelf, qtbot) -> None:
    shelf.click("s1")
    qtbot.keyClick(shelf.list, Key.Key_Down)
    qtbot.keyClick(shelf.list, Key.Key_Return)
    heading = shelf.list.visualRect(shelf.view.model.index(0)).center()
    qtbot.mouseClick(shelf.list.viewport(), LEFT, pos=heading)
    assert shelf.asked == [("open", "s1"), ("open", "s2")]


def test_delete_asks_and_the_list_waits_for_the_answer(shelf: Shelf, qtbot) -> None:
    shelf.list.setCurrentIndex(shelf.view.model.index(shelf.view.model.row_of("s1")))
    qtbot.keyClick(shelf.list, Key.Key_Delete)
    assert shelf.asked == [("delete", "s1")]
    assert shelf.titles() == ["Tide", "Lisbon", "Lease"]
    shelf.sessions.remove("s1")
    assert shelf.titles() == ["Tide", "Lease"]


def test_f2_renames_the_row_with_the_focus(shelf: Shelf, qtbot) -> None:
    shelf.sessions.set_current("s0")
    shelf.click("s2")
    shelf.asked.clear()
    qtbot.keyClick(shelf.list, Key.Key_F2)
    editor = shelf.editor()
    assert editor.selectedText() == "Lease"
    qtbot.keyClicks(editor, "  Rent  ")
    qtbot.keyClick(editor, Key.Key_Return)
    qtbot.waitUntil(lambda: shelf.asked == [("rename", "s2", "Rent")])
    assert shelf.titles()[2] == "Lease"  # until the answer comes
    shelf.sessions.get("s2").set_record(title="Rent")
    assert shelf.titles()[2] == "Rent"


@pytest.mark.parametrize(
    ("text", "key"),
    [("", Key.Key_Return), ("   ", Key.Key_Return), ("Tide", Key.Key_Return),
     ("Other", Key.Key_Escape)],
)  # fmt: skip
def test_renaming_to_nothing_or_the_same_or_escape_changes_nothing(shelf, qtbot, text, key) -> None:
    shelf.view.list.edit_title("s0")
    editor = shelf.editor()
    editor.selectAll()
    qtbot.keyClick(editor, Key.Key_Delete)
    qtbot.keyClicks(editor, text)
    qtbot.keyClick(editor, key)
    qtbot.waitUntil(lambda: not any(one.isVisible() for one in shelf.editors()))
    assert shelf.asked == []


def test_a_title_that_grows_while_one_renames_does_not_end_the_renaming(shelf, qtbot) -> None:
    shelf.view.list.edit_title("s0")
    qtbot.keyClicks(shelf.editor(), "Half")
    for name in ("s0", "s1"):
        shelf.sessions.get(name).set_status("running")  # a chip fills
    shelf.sessions.set_current("s1")  # another tab came to the front
    assert shelf.editor().text() == "Half"


def test_the_menu_of_a_row_pops_up_and_offers_four_things(shelf: Shelf, qtbot) -> None:
    menu = shelf.list.menu_for("s1")
    words = [action.text().split("\t")[0] for action in menu.actions() if not action.isSeparator()]
    assert words == ["Open", "Rename", "Keep in memory", "Delete"]
    for action in menu.actions():
        if action.text().startswith(("Open", "Delete")):
            action.trigger()
    assert shelf.asked == [("open", "s1"), ("delete", "s1")]
    shelf.list.customContextMenuRequested.emit(shelf.place("s1"))
    popup = QApplication.activePopupWidget()
    assert popup is not None  # popup() has come back at once
    popup.close()
    shelf.list.customContextMenuRequested.emit(QPoint(5, 590))  # below the last row
    assert QApplication.activePopupWidget() is None


def test_search_filters_by_title_and_escape_clears(shelf: Shelf, qtbot) -> None:
    shelf.view.focus_search()
    assert shelf.view.search.hasFocus()
    qtbot.keyClicks(shelf.view.search, "LE")
    assert shelf.titles() == ["Lease"]
    qtbot.keyClicks(shelf.view.search, "zz")
    assert shelf.titles() == []
    assert shelf.view.empty.isVisible()
    assert shelf.view.empty.text() == "Nothing found for “LEzz”."
    qtbot.keyClick(shelf.view.search, Key.Key_Escape)
    assert shelf.view.search.text() == ""
    assert len(shelf.titles()) == 3
    assert not shelf.view.empty.isVisible()


@pytest.mark.parametrize("key", [Key.Key_Down, Key.Key_Return])
def test_from_the_search_one_goes_to_the_first_hit_and_opens_it(shelf, qtbot, key) -> None:
    shelf.view.focus_search()
    qtbot.keyClicks(shelf.view.search, "l")
    qtbot.keyClick(shelf.view.search, key)
    assert shelf.list.hasFocus()
    qtbot.keyClick(shelf.list, Key.Key_Return)
    assert shelf.asked == [("open", "s1")]


def test_without_chats_it_says_so(qtbot) -> None:
    shelf = Shelf(qtbot, ())
    assert shelf.view.empty.text() == "Your chats will be listed here, newest first."
    assert shelf.view.empty.isVisible()
    shelf.sessions.insert(Session(SessionRecord("n", "New", 0, 0)))
    assert not shelf.view.empty.isVisible()
    assert shelf.list.isVisible()


def test_the_chat_in_front_is_the_selected_row(shelf: Shelf) -> None:
    shelf.sessions.set_current("s2")
    assert shelf.list.currentIndex().data() == "Lease"
    shelf.sessions.insert(Session(SessionRecord("n", "New", 0, int(time.time() * 1000))))
    assert shelf.list.currentIndex().data() == "Lease"  # the rows moved, the chat did not


def test_the_rail_keeps_chips_and_two_tools(shelf: Shelf, qtbot) -> None:
    wide = shelf.view.sizeHint().width()
    shelf.view.set_rail(True)
    assert shelf.view.sizeHint().width() < wide / 3
    assert not shelf.view.search.isVisible()
    assert shelf.view.rail_new.isVisible()
    shelf.view.resize(shelf.view.sizeHint().width(), 600)
    shelf.view.grab()
    with qtbot.waitSignal(shelf.view.search_wanted):
        qtbot.mouseClick(shelf.view.rail_search, LEFT)
    qtbot.mouseClick(shelf.view.rail_new, LEFT)
    assert shelf.asked == [("new",)]
    shelf.click("s1")
    assert shelf.asked[-1] == ("open", "s1")
    shelf.view.set_rail(False)
    assert shelf.view.search.isVisible()
    assert not shelf.view.rail_new.isVisible()


def test_the_buttons_ask(shelf: Shelf, qtbot) -> None:
    qtbot.mouseClick(shelf.view.new, LEFT)
    assert shelf.asked == [("new",)]
    with qtbot.waitSignal(shelf.view.toggle_wanted):
        qtbot.mouseClick(shelf.view.toggle, LEFT)
    with qtbot.waitSignal(shelf.view.settings_wanted) as asked:
        qtbot.mouseClick(shelf.view.settings, LEFT)
    assert asked.args == [shelf.view.settings.mapToGlobal(QPoint(0, 0))]


@pytest.mark.parametrize("status", ["idle", "waiting", "reading", "running", "paused", "failed"])
def test_every_state_is_painted_and_spoken(shelf: Shelf, status) -> None:
    session = shelf.sessions.get("s1")
    before = shelf.list.grab().toImage()
    session.owner, session.unread = 5, status == "idle"
    session.set_status(status, "2nd in line" if status == "waiting" else "")
    session.changed.emit()
    assert shelf.list.grab().toImage() != before
    spoken = shelf.view.model.index(shelf.view.model.row_of("s1")).data(
        Qt.ItemDataRole.AccessibleTextRole
    )
    words = {"idle": "Lisbon, unread", "waiting": "Lisbon, 2nd in line"}
    assert spoken == words.get(status, f"Lisbon, {status}")


def test_a_tip_shows_the_whole_title_as_it_was_written(qtbot) -> None:
    shelf = Shelf(qtbot, ("<b>bold</b> & <img src='/x.png'>", "plain"))
    shown = []
    for session_id in ("s0", "s1"):
        place = shelf.place(session_id)
        event = QHelpEvent(QHelpEvent.Type.ToolTip, place, shelf.list.viewport().mapToGlobal(place))
        option = QStyleOptionViewItem()
        index = shelf.view.model.index(shelf.view.model.row_of(session_id))
        assert shelf.list.rows.helpEvent(event, shelf.list, option, index)
        shown.append(QToolTip.text())
    QToolTip.hideText()
    assert shown == [
        "<span>&lt;b&gt;bold&lt;/b&gt; &amp; &lt;img src=&#x27;/x.png&#x27;&gt;</span>", "plain",
    ]  # fmt: skip


def test_the_tip_says_what_a_chat_does_and_that_it_is_kept(shelf: Shelf) -> None:
    session = shelf.sessions.get("s1")
    index = shelf.view.model.index(shelf.view.model.row_of("s1"))
    tip = Qt.ItemDataRole.ToolTipRole
    assert index.data(tip) == "Lisbon"
    session.set_status("reading", "Reading 25 %", "Reading the prompt: 1,024 of 4,000 tokens")
    assert index.data(tip) == "Lisbon\nReading the prompt: 1,024 of 4,000 tokens"
    session.set_status("paused", "Paused", "The pool is full.", time.monotonic() - 12.2)
    session.is_pinned = True
    assert index.data(tip) == "Lisbon\nPaused 12 s: the pool is full.\nKept in memory"
    spoken = index.data(Qt.ItemDataRole.AccessibleTextRole)
    assert spoken == "Lisbon, Paused 12 s: the pool is full., kept in memory"


def test_keep_in_memory_is_an_entry_that_is_checked_when_it_is_so(shelf: Shelf) -> None:
    asked = []
    shelf.intents.set_pinned.connect(lambda *args: asked.append(args))
    session = shelf.sessions.get("s1")
    for was in (False, True):
        session.is_pinned = was
        menu = shelf.list.menu_for("s1")
        (pin,) = (one for one in menu.actions() if one.text() == "Keep in memory")
        assert pin.isCheckable()
        assert pin.isChecked() == was
        pin.trigger()
        menu.close()
        assert session.is_pinned == was  # it asks, and waits for the answer
    assert asked == [("s1", True), ("s1", False)]


@pytest.mark.parametrize("is_rail", [False, True])
@pytest.mark.parametrize("status", ["idle", "waiting", "paused"])
def test_a_kept_chat_bears_a_pin_where_there_is_room(shelf: Shelf, status, is_rail) -> None:
    session = shelf.sessions.get("s1")
    shelf.view.set_rail(is_rail)
    session.set_status(status, "3rd in line" if status == "waiting" else "")
    before = shelf.list.grab().toImage()
    session.is_pinned = True
    session.changed.emit()
    assert (shelf.list.grab().toImage() != before) == (not is_rail)


def test_words_too_long_for_a_row_end_in_dots(shelf: Shelf) -> None:
    """Cut at their end, not at their beginning."""
    session = shelf.sessions.get("s1")
    shelf.view.resize(200, 600)
    pictures = []
    for words in (
        "Waiting for the model, a very long one",
        "aiting for the model, a very long one",
    ):
        session.set_status("waiting", words)
        pictures.append(shelf.list.grab().toImage())
    assert pictures[0] != pictures[1]
