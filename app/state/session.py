"""Session: one chat as the window shows it, and Sessions, all of them, newest first."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Literal

from PySide6.QtCore import QObject, Signal

from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord
from app.state.words import paused_sentence

Status = Literal["idle", "waiting", "reading", "running", "paused", "failed"]


@dataclass(frozen=True, slots=True)
class ReplyDetails:
    """What is known of a reply of this run beyond its record; not stored, not exported."""

    reused_tokens: int | None = None  # of the prompt; None: the engine did not say
    first_difference: str = ""  # in words; "" when there is none
    waste_ratio: float = 0.0  # of the slots it held, over all its steps


class Session(QObject):
    """One chat. Only `app.chats` changes it; views listen.

    Attributes:
        record: what is stored. While a reply streams its text grows here too.
        owner: number whose colour its blocks have; None while it holds none.
        status, status_text: what its request does ("2nd in line", "Reading 17 %").
        paused_s: time.monotonic() when its request was paused, 0 while it is not.
        is_pinned: the user wants its blocks kept in memory; for this run of the application.
        details: by reply id, for the replies of this run.
        fill: filled slots of the block being written, 0 to block_tokens (for the chip).
        has_cached_blocks: idle, but the pool still holds some of its blocks.
        unread: a reply ended while the chat was not in front.
        tokens_per_s: of the reply being written, 0 when none is.

    Signals:
        changed: title, owner, status, unread, settings.
        turn_added(turn_index)
        turn_changed(turn_index): a version was added or chosen, or the reply ended.
        text_appended(turn_index, text): more of the chosen reply.
    """

    changed = Signal()
    turn_added = Signal(int)
    turn_changed = Signal(int)
    text_appended = Signal(int, object)  # a str; as Signal(str), Qt eats U+FEFF and U+FFFE

    def __init__(self, record: SessionRecord, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.record = record
        self.owner: int | None = None
        self.status: Status = "idle"
        self.status_text = ""
        self._sentence = ""
        self.paused_s = 0.0
        self.is_pinned = False
        self.details: dict[str, ReplyDetails] = {}
        self.fill = 0
        self.has_cached_blocks = False
        self.unread = False
        self.tokens_per_s = 0.0

    @property
    def session_id(self) -> str:
        return self.record.session_id

    @property
    def title(self) -> str:
        return self.record.title

    @property
    def sampling(self) -> Sampling:
        return self.record.sampling

    @property
    def is_busy(self) -> bool:
        return self.status in ("waiting", "reading", "running", "paused")

    def set_record(self, **changes: object) -> None:
        """Replace fields of the record other than `turns`."""
        self.record = replace(self.record, **changes)  # type: ignore[arg-type]
        self.changed.emit()

    def set_status(
        self, status: Status, text: str = "", sentence: str = "", paused_s: float = 0.0
    ) -> None:
        """`text` is for narrow places; `sentence`, if given, is the same at length."""
        new = (status, text, sentence or text, paused_s)
        if new != (self.status, self.status_text, self._sentence, self.paused_s):
            self.status, self.status_text, self._sentence, self.paused_s = new
            self.changed.emit()

    def status_sentence(self, now_s: float | None = None) -> str:
        """What its request does, at length; "" when there is nothing to say. A pause says how long
        it has lasted, so ask again. `now_s` is time.monotonic()."""
        if self.status != "paused" or not self.paused_s:
            return self._sentence
        now_s = time.monotonic() if now_s is None else now_s
        return paused_sentence(self._sentence, now_s - self.paused_s)

    def add_turn(self, turn: TurnRecord) -> int:
        self.record = replace(self.record, turns=(*self.record.turns, turn))
        self.turn_added.emit(len(self.record.turns) - 1)
        return len(self.record.turns) - 1

    def put_reply(self, turn_index: int, reply: ReplyRecord) -> None:
        """Add `reply` as the chosen version, or replace the version with the same id."""
        turn = self.record.turns[turn_index]
        ids = [old.reply_id for old in turn.replies]
        replies = list(turn.replies)
        if reply.reply_id in ids:
            replies[ids.index(reply.reply_id)] = reply
            turn = replace(turn, replies=tuple(replies))
        else:
            turn = replace(turn, replies=(*replies, reply), chosen=len(replies))
        self._put_turn(turn_index, turn)
        self.turn_changed.emit(turn_index)

    def append_text(self, turn_index: int, text: str) -> None:
        turn = self.record.turns[turn_index]
        reply = turn.replies[-1]
        grown = replace(reply, text=reply.text + text)
        self._put_turn(turn_index, replace(turn, replies=(*turn.replies[:-1], grown)))
        if turn.chosen == len(turn.replies) - 1:
            self.text_appended.emit(turn_index, text)

    def choose(self, turn_index: int, version: int) -> None:
        turn = self.record.turns[turn_index]
        self._put_turn(turn_index, replace(turn, chosen=version))
        self.turn_changed.emit(turn_index)

    def _put_turn(self, turn_index: int, turn: TurnRecord) -> None:
        turns = self.record.turns
        self.record = replace(
            self.record, turns=(*turns[:turn_index], turn, *turns[turn_index + 1 :])
        )


class Sessions(QObject):
    """All chats, newest first, and which are open as tabs.

    Signals:
        inserted(index), removed(index): the list; removed comes after the fact.
        tab_opened(session_id), tab_closed(session_id)
        tab_moved(session_id, index): a tab stands at another place now.
        current_changed(session_id): the chat in front; "" when no tab is open.
    """

    inserted = Signal(int)
    removed = Signal(int)
    tab_opened = Signal(str)
    tab_closed = Signal(str)
    tab_moved = Signal(str, int)
    current_changed = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.all: list[Session] = []
        self.tabs: list[str] = []  # session ids in tab order
        self.current_id = ""

    def get(self, session_id: str) -> Session | None:
        return next((s for s in self.all if s.session_id == session_id), None)

    @property
    def current(self) -> Session | None:
        return self.get(self.current_id)

    def is_in_front(self, session_id: str) -> bool:
        """The user sees this chat."""
        return session_id == self.current_id

    def insert(self, session: Session, index: int = 0) -> None:
        self.all.insert(index, session)
        self.inserted.emit(index)

    def extend(self, sessions: list[Session]) -> None:
        """Put many at the end, in their order; `inserted` comes once, with the first index."""
        index = len(self.all)
        self.all += sessions
        if sessions:
            self.inserted.emit(index)

    def remove(self, session_id: str) -> int:
        """Take a chat out of the list (close its tab first). Returns where it stood."""
        index = next(i for i, s in enumerate(self.all) if s.session_id == session_id)
        del self.all[index]
        self.removed.emit(index)
        return index

    def open_tab(self, session_id: str, make_current: bool = True, index: int = -1) -> None:
        if session_id not in self.tabs:
            self.tabs.insert(len(self.tabs) if index < 0 else index, session_id)
            self.tab_opened.emit(session_id)
        if make_current:
            self.set_current(session_id)

    def close_tab(self, session_id: str) -> None:
        if session_id not in self.tabs:
            return
        index = self.tabs.index(session_id)
        self.tabs.remove(session_id)
        self.tab_closed.emit(session_id)
        if session_id == self.current_id:
            self.set_current(self.tabs[min(index, len(self.tabs) - 1)] if self.tabs else "")

    def move_tab(self, session_id: str, index: int) -> None:
        """Put an open tab at another place."""
        if session_id in self.tabs and self.tabs.index(session_id) != index:
            self.tabs.remove(session_id)
            self.tabs.insert(index, session_id)
            self.tab_moved.emit(session_id, index)

    def set_current(self, session_id: str) -> None:
        if session_id != self.current_id:
            self.current_id = session_id
            self.current_changed.emit(session_id)
