"""Chats: what happens when the user asks for something with a chat. Intents in, state changed."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from dataclasses import dataclass, replace

from PySide6.QtCore import QObject, Slot

from app.history_file import Loaded
from app.journal import Journal
from app.prompt import NEW_TITLE, clean, title_of
from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord
from app.replies import Replies
from app.running import Running
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.tasks import Tasks

MAX_CLOSED = 50


@dataclass(frozen=True, slots=True)
class Deleted:
    """A chat that Undo can bring back."""

    session: Session
    index: int  # in the list
    tab_index: int  # -1: it had no tab
    was_pinned: bool


class Chats(QObject):
    """Creates, opens, sends, regenerates, renames, deletes. Everything it changes it also writes.

    `default_sampling` is what a new chat starts with.
    """

    def __init__(
        self,
        intents: Intents,
        sessions: Sessions,
        status: AppStatus,
        journal: Journal,
        replies: Replies,
        tasks: Tasks,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self.default_sampling = Sampling()
        self._sessions = sessions
        self._status = status
        self._journal = journal
        self._replies = replies
        self._tasks = tasks
        self._closed: list[str] = []
        self._deleted: list[Deleted] = []
        self._in_line: dict[str, list[int]] = {}  # session id -> turns that wait for their reply
        self._keeps_tabs = False  # not before the tabs of the last run are back
        self._connect(intents)

    def _connect(self, intents: Intents) -> None:
        intents.new_chat.connect(self.new_chat)
        intents.open_chat.connect(self._open)
        intents.close_tab.connect(self._close_tab)
        intents.move_tab.connect(self._sessions.move_tab)
        intents.reopen_tab.connect(self._reopen_tab)
        intents.send.connect(self._send)
        intents.send_all.connect(self._send_all)
        intents.stop.connect(self._stop)
        intents.regenerate.connect(self._regenerate)
        intents.choose_version.connect(self._choose_version)
        intents.rename.connect(self._rename)
        intents.delete.connect(self._delete)
        intents.undo_delete.connect(self._undo_delete)
        intents.set_pinned.connect(self._set_pinned)
        intents.set_system_prompt.connect(self._set_system_prompt)
        intents.set_sampling.connect(self._set_sampling)
        self._replies.ended.connect(self._send_next)
        self._sessions.tab_opened.connect(self.save_tabs)
        self._sessions.tab_closed.connect(self.save_tabs)
        self._sessions.tab_moved.connect(self.save_tabs)
        self._sessions.current_changed.connect(self._on_current)

    # --- start ----------------------------------------------------------------------------------

    def show(self, loaded: Loaded) -> None:
        """Put what the history holds into the window, with the tabs of the last run."""
        self._sessions.extend([Session(record, self._sessions) for record in loaded.sessions])
        for session_id in loaded.tabs:
            self._sessions.open_tab(session_id, make_current=False)
        if loaded.current or loaded.tabs:
            self._sessions.set_current(loaded.current or loaded.tabs[-1])
        self._keeps_tabs = True
        if loaded.note:
            self._status.error.emit(loaded.note)

    @Slot()
    def save_tabs(self) -> None:
        """Write which tabs are open, in their order."""
        if self._keeps_tabs:
            tabs = tuple(self._sessions.tabs)
            writing = self._journal.history.set_tabs(tabs, self._sessions.current_id)
            self._journal.keep(None, writing)

    @Slot(str)
    def _on_current(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.unread:
            session.unread = False
            session.changed.emit()
        self.save_tabs()

    # --- tabs and list --------------------------------------------------------------------------

    @Slot()
    def new_chat(self) -> Session:
        """An empty chat in a new tab, in front."""
        now_ms = _now_ms()
        record = SessionRecord(_new_id(), NEW_TITLE, now_ms, now_ms, sampling=self.default_sampling)
        return self.adopt(record)

    def adopt(self, record: SessionRecord, make_current: bool = True) -> Session:
        """Take a chat in: list, tab, disk."""
        session = Session(record, self._sessions)
        self._journal.keep(session, self._journal.history.save_session(record))
        self._sessions.insert(session)
        self._sessions.open_tab(record.session_id, make_current=make_current)
        return session

    @Slot(str)
    def _open(self, session_id: str) -> None:
        if self._sessions.get(session_id) is not None:
            self._sessions.open_tab(session_id)

    @Slot(str)
    def _close_tab(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None or session_id not in self._sessions.tabs:
            return
        self._sessions.close_tab(session_id)
        if _is_untouched(session):  # nobody looks for an empty chat in the list
            self._sessions.remove(session_id)
            self._replies.forget(session_id)
            self._journal.forget(session)
            self._journal.keep(None, self._journal.history.remove(session_id))
            return
        self._closed = [one for one in self._closed if one != session_id][-MAX_CLOSED:]
        self._closed.append(session_id)

    @Slot()
    def _reopen_tab(self) -> None:
        while self._closed:
            session_id = self._closed.pop()
            if self._sessions.get(session_id) and session_id not in self._sessions.tabs:
                self._sessions.open_tab(session_id)
                return

    @Slot(str, str)
    def _rename(self, session_id: str, title: str) -> None:
        title = " ".join(clean(title).split())
        if title:
            self._update(session_id, title=title)

    @Slot(str, bool)
    def _set_pinned(self, session_id: str, is_pinned: bool) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._replies.set_pinned(session, is_pinned)

    @Slot(str, str)
    def _set_system_prompt(self, session_id: str, text: str) -> None:
        self._update(session_id, system_prompt=clean(text))

    @Slot(str, object)
    def _set_sampling(self, session_id: str, sampling: Sampling) -> None:
        self._update(session_id, sampling=sampling)

    def _update(self, session_id: str, **changes: object) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            session.set_record(**changes)
            self._journal.keep(session, self._journal.history.update_session(session.record))

    @Slot(str)
    def _delete(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        tabs = self._sessions.tabs
        tab_index = tabs.index(session_id) if session_id in tabs else -1
        self._sessions.close_tab(session_id)
        index = self._sessions.remove(session_id)
        self._deleted.append(Deleted(session, index, tab_index, session.is_pinned))
        self._replies.set_pinned(session, False)
        self._replies.forget(session_id)
        self._journal.forget(session)
        self._journal.keep(None, self._journal.history.set_deleted(session_id, True))
        self._status.toast.emit(f"“{session.title}” was deleted.", "Undo")

    @Slot()
    def _undo_delete(self) -> None:
        if not self._deleted:
            return
        gone = self._deleted.pop()
        session = gone.session
        session.owner, session.has_cached_blocks, session.fill = None, False, 0
        self._sessions.insert(session, min(gone.index, len(self._sessions.all)))
        writing = self._journal.history.set_deleted(session.session_id, False)
        self._journal.keep(session, writing)
        if gone.tab_index >= 0:
            index = min(gone.tab_index, len(self._sessions.tabs))
            self._sessions.open_tab(session.session_id, index=index)
        self._replies.set_pinned(session, gone.was_pinned)
        self._send_next(session.session_id)

    # --- messages and replies -------------------------------------------------------------------

    @Slot(str, str)
    def _send(self, session_id: str, text: str) -> None:
        text = clean(text)
        if not text.strip():
            return
        session = self._sessions.get(session_id) or self.new_chat()
        if session.is_busy or self._replies.is_busy(session.session_id):
            self._queue(session, text)
        else:
            self._send_together([(session, text)])

    @Slot(list)
    def _send_all(self, texts: list[str]) -> None:
        wanted = [clean(text) for text in texts if text.strip()]
        pairs = [(self.new_chat(), text) for text in wanted]
        if pairs:
            self._sessions.set_current(pairs[0][0].session_id)
            self._send_together(pairs)

    def _send_together(self, pairs: list[tuple[Session, str]]) -> None:
        """The chats are busy from now on; the engine is asked when all is on the disk."""
        self._tasks.start(self._submit([self._begin_turn(*pair) for pair in pairs]))

    async def _submit(self, begun: list[tuple[Running, asyncio.Task[bool]]]) -> None:
        """Every message is on the disk before the first request reaches the engine."""
        await asyncio.gather(*(saved for _, saved in begun))
        for running, _ in begun:
            self._replies.submit(running)

    def _begin_turn(self, session: Session, text: str) -> tuple[Running, asyncio.Task[bool]]:
        self._name(session, text)
        reply = self._new_reply(session, version=0)
        index = session.add_turn(TurnRecord(_new_id(), text, _now_ms(), (reply,)))
        running = self._replies.begin(session, index, reply.reply_id)
        return running, self._save_turn(session, index)

    def _queue(self, session: Session, text: str) -> None:
        """The chat is busy: keep the message, its reply is asked for when the present one ends."""
        index = session.add_turn(TurnRecord(_new_id(), text, _now_ms()))
        self._in_line.setdefault(session.session_id, []).append(index)
        self._status.toast.emit("Your message is in line; it goes when this answer ends.", "")
        self._save_turn(session, index)

    def _save_turn(self, session: Session, index: int) -> asyncio.Task[bool]:
        history = self._journal.history
        turn = session.record.turns[index]
        session.record = replace(session.record, updated_ms=turn.created_ms)
        writing = history.add_turn(session.session_id, index, turn)
        return self._tasks.start(self._journal.kept(session, writing))

    @Slot(str)
    def _send_next(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        line = self._in_line.get(session_id)
        if session is None or not line or self._replies.is_busy(session_id):
            return
        index = line.pop(0)
        if not line:
            del self._in_line[session_id]
        self._begin_version(session, index)

    @Slot(str)
    def _stop(self, session_id: str) -> None:
        self._replies.stop(session_id)

    @Slot(str)
    def _regenerate(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None or not session.record.turns or self._replies.is_busy(session_id):
            return
        self._begin_version(session, len(session.record.turns) - 1)

    def _begin_version(self, session: Session, turn_index: int) -> None:
        turn = session.record.turns[turn_index]
        reply = self._new_reply(session, version=len(turn.replies))
        session.put_reply(turn_index, reply)
        running = self._replies.begin(session, turn_index, reply.reply_id)
        self._tasks.start(self._submit_version(running, turn.turn_id, len(turn.replies), reply))

    async def _submit_version(
        self, running: Running, turn_id: str, version: int, reply: ReplyRecord
    ) -> None:
        writing = self._journal.history.put_reply(turn_id, version, reply, version)
        await self._journal.kept(running.session, writing)
        self._replies.submit(running)

    @Slot(str, int, int)
    def _choose_version(self, session_id: str, turn_index: int, version: int) -> None:
        session = self._sessions.get(session_id)
        if session is None or not 0 <= turn_index < len(session.record.turns):
            return
        turn = session.record.turns[turn_index]
        if 0 <= version < len(turn.replies):
            session.choose(turn_index, version)
            self._journal.keep(session, self._journal.history.choose(turn.turn_id, version))

    def _name(self, session: Session, text: str) -> None:
        if session.title == NEW_TITLE and not session.record.turns:
            self._update(session.session_id, title=title_of(text))

    def _new_reply(self, session: Session, version: int) -> ReplyRecord:
        """An empty reply that streams. With a seed set by the user, version n uses seed + n, so
        that Regenerate gives another answer which can still be had again."""
        seed = session.sampling.seed
        seed = secrets.randbits(31) if seed is None else (seed + version) % 2**63
        return ReplyRecord(_new_id(), "", "streaming", created_ms=_now_ms(), seed=seed)


def _is_untouched(session: Session) -> bool:
    record = session.record
    return not record.turns and not record.system_prompt and record.title == NEW_TITLE


def _new_id() -> str:
    return uuid.uuid4().hex


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
