"""The list of chats: groups, filter, chips, and following the model."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

from PySide6.QtCore import QPersistentModelIndex, Qt

from app.records import SessionRecord
from app.state.session import Session, Sessions
from app.state.session_list import Chip, Role, SessionListModel, chip_of

TODAY = date(2026, 11, 30)


def listed_chat(number: int, days_ago: int, title: str = "") -> Session:
    noon = datetime.combine(TODAY - timedelta(days=days_ago), time(12))
    at_ms = int(noon.timestamp() * 1000)
    return Session(SessionRecord(f"s{number}", title or f"Chat {number}", at_ms, at_ms))


def list_of(*days_ago: int) -> tuple[Sessions, SessionListModel]:
    sessions = Sessions()
    for number, days in enumerate(days_ago):
        sessions.insert(listed_chat(number, days), number)
    return sessions, SessionListModel(sessions, today=lambda: TODAY)


def rows_of(model: SessionListModel) -> list[str]:
    return [str(model.index(row).data()) for row in range(model.rowCount())]


def test_chats_are_grouped_by_day():
    _, model = list_of(0, 0, 1, 3, 7, 8, 400)
    assert rows_of(model) == [
        "Today", "Chat 0", "Chat 1", "Yesterday", "Chat 2",
        "Last week", "Chat 3", "Chat 4", "Older", "Chat 5", "Chat 6",
    ]  # fmt: skip
    assert model.num_chats == 7
    assert model.flags(model.index(0)) == Qt.ItemFlag.NoItemFlags
    assert model.row_of("s2") == 4


def test_the_filter_ignores_case_and_leaves_no_empty_group():
    sessions, model = list_of(0, 1)
    sessions.insert(listed_chat(9, 0, "Straße nach Lissabon"))
    model.set_filter("  STRASSE ")
    assert rows_of(model) == ["Today", "Straße nach Lissabon"]
    model.set_filter("nothing")
    assert model.rowCount() == 0
    model.set_filter("")
    assert model.num_chats == 3


def test_it_follows_insert_remove_and_rename(qtbot):
    sessions, model = list_of(0, 1)
    added = listed_chat(5, 0)
    with qtbot.waitSignal(model.rebuilt):
        sessions.insert(added)
    assert rows_of(model)[:2] == ["Today", "Chat 5"]
    added.set_record(title="Renamed")
    assert rows_of(model)[1] == "Renamed"
    sessions.remove("s5")
    assert "Renamed" not in rows_of(model)
    sessions.insert(added)  # Undo brings the same object back
    with qtbot.waitSignals([model.dataChanged], timeout=1000):
        added.set_status("waiting", "2nd in line")
    assert model.index(model.row_of("s5")).data(Role.STATUS_TEXT) == "2nd in line"


def test_a_chip_that_fills_does_not_rebuild_the_list(qtbot):
    sessions, model = list_of(0, 1)
    with qtbot.assertNotEmitted(model.rebuilt):
        sessions.all[0].changed.emit()


def test_chips_tell_what_a_chat_does():
    session = listed_chat(0, 0)
    assert chip_of(session) == Chip(None, "none")
    session.owner, session.fill = 7, 8
    session.set_status("running")
    assert chip_of(session) == Chip(7, "active", 0.5)
    session.set_status("paused")
    assert chip_of(session).state == "cached"
    session.set_status("idle")
    assert chip_of(session) == Chip(None, "none")
    session.has_cached_blocks = True
    assert chip_of(session) == Chip(7, "cached")


def test_a_screen_reader_hears_the_state():
    sessions, model = list_of(0)
    sessions.all[0].unread = True
    sessions.all[0].set_status("waiting", "2nd in line")
    spoken = model.index(1).data(Qt.ItemDataRole.AccessibleTextRole)
    assert spoken == "Chat 0, 2nd in line, unread"


def test_a_change_moves_rows_and_resets_nothing(qtbot):
    """A reset closes the field in which another chat is being renamed."""
    sessions, model = list_of(0, 1, 1, 8)
    renamed = QPersistentModelIndex(model.index(model.row_of("s2")))
    with qtbot.assertNotEmitted(model.modelReset):
        today_ms = sessions.all[0].record.updated_ms
        sessions.all[3].set_record(updated_ms=today_ms)
        assert rows_of(model) == [
            "Today", "Chat 0", "Chat 3", "Yesterday", "Chat 1", "Chat 2",
        ]  # fmt: skip
        sessions.all[0].set_record(updated_ms=sessions.all[1].record.updated_ms)
        assert rows_of(model) == [
            "Today", "Chat 3", "Yesterday", "Chat 0", "Chat 1", "Chat 2",
        ]  # fmt: skip
    assert renamed.isValid()
    assert renamed.data() == "Chat 2"


def test_many_chats_come_at_once(qtbot):
    sessions, model = list_of()
    with qtbot.waitSignal(sessions.inserted):
        sessions.extend([listed_chat(number, number) for number in range(500)])
    assert model.num_chats == 500
    sessions.extend([])
    assert [session.title for session in sessions.all[:2]] == ["Chat 0", "Chat 1"]
