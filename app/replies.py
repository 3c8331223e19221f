"""Replies: every reply that is being written, from the user's request to its last token."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.bridge import EngineBridge
from app.journal import Journal
from app.owners import OwnerNumbers
from app.pins import Pins
from app.prompt import messages_for, params_for
from app.records import ReplyState
from app.running import Running, details_of, with_usage
from app.state.session import Session, Sessions, Status
from app.state.status import AppStatus
from app.state.words import short_words, state_sentence
from engine.errors import EngineStoppedError, TesseraError
from engine.messages import (
    FRONT,
    NORMAL,
    Accepted,
    Cancel,
    Failed,
    Finished,
    FinishReason,
    PoolSnapshot,
    PrefixFound,
    ReleaseOwner,
    RequestState,
    SetPriority,
    StateChanged,
    Submit,
    Usage,
)

SAVE_INTERVAL_MS = 300  # with a frame of 33 ms before it, at most a third of a second is lost
NO_MODEL = {
    "none": "No model is loaded; open one, then press Regenerate.",
    "failed": "No model is loaded, the last one could not be opened; open another one, then "
    "press Regenerate.",
    "stopped": "The engine has stopped; restart it, then press Regenerate.",
}
STATUS: dict[RequestState, Status] = {
    RequestState.WAITING: "waiting",
    RequestState.READING: "reading",
    RequestState.RUNNING: "running",
    RequestState.PAUSED: "paused",
}


class Replies(QObject):
    """One request per busy chat. Text goes to the session at once and to the disk soon after.

    Signals:
        ended(session_id): the chat's reply is complete, stopped, failed or unfinished.
    """

    ended = Signal(str)

    def __init__(
        self,
        bridge: EngineBridge,
        journal: Journal,
        sessions: Sessions,
        status: AppStatus,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._journal = journal
        self._sessions = sessions
        self._status = status
        self._owners = OwnerNumbers()
        self._pins = Pins(bridge, self._owners)
        self._running: dict[str, Running] = {}  # by session id
        self._by_request: dict[int, Running] = {}
        self._told: set[tuple[str, str]] = set()  # session id and note: each is said once
        self._timer = QTimer(self)
        self._timer.setInterval(SAVE_INTERVAL_MS)
        self._timer.timeout.connect(self._save_texts)
        sessions.current_changed.connect(self._on_front)
        bridge.accepted.connect(self._on_accepted)
        bridge.prefix.connect(self._on_prefix)
        bridge.text.connect(self._on_text)
        bridge.state.connect(self._on_state)
        bridge.finished.connect(self._on_finished)
        bridge.failed.connect(self._on_failed)
        bridge.pool.connect(self._on_pool)

    def is_busy(self, session_id: str) -> bool:
        return session_id in self._running

    # --- from outside ---------------------------------------------------------------------------

    def begin(self, session: Session, turn_index: int, reply_id: str) -> Running:
        """A reply is wanted: the chat is busy from now on, the engine is asked by `submit`."""
        running = Running(session, turn_index, reply_id)
        self._running[session.session_id] = running
        session.set_status("waiting")
        self._timer.start()
        return running

    def submit(self, running: Running) -> None:
        """Ask the engine, now that the user's message is on the disk; or wait for the model."""
        if self._running.get(running.session.session_id) is not running:
            return  # stopped, or the engine ended, while the message was being written
        phase = self._status.phase
        if phase == "loading" or (phase == "fetching" and self._status.model is None):
            running.is_held = True
            running.session.set_status("waiting", "Waiting for the model")
            return
        try:
            if self._status.model is None:
                raise EngineStoppedError(NO_MODEL.get(phase, NO_MODEL["none"]))
            self._send(running, self._status.model.name)
        except TesseraError as error:
            self._end(running, "failed", "error", str(error))

    def stop(self, session_id: str) -> None:
        """End a reply; what was written stays."""
        running = self._running.get(session_id)
        if running is None:
            return
        if not running.request_id:
            self._end(running, "complete", "cancelled")
            return
        with suppress(EngineStoppedError):  # then `fail_all` is on its way
            self._bridge.send(Cancel(running.request_id))  # its Finished ends the reply

    def forget(self, session_id: str) -> None:
        """The chat was deleted: stop its reply, give its blocks back, pinned ones too."""
        self._pins.remove(session_id)
        if self.is_busy(session_id):
            self.stop(session_id)  # `_end` gives the blocks back
        if not self.is_busy(session_id):
            self._release(session_id)

    def set_pinned(self, session: Session, is_pinned: bool) -> None:
        """Keep the chat's blocks from eviction, or no longer."""
        if session.is_pinned == is_pinned:
            return
        session.is_pinned = is_pinned
        if is_pinned:
            self._pins.add(session.session_id, has_pool=self._status.model is not None)
        else:
            self._pins.remove(session.session_id)
        session.changed.emit()

    def release_held(self) -> None:
        """The model is ready: ask for all that waited for it."""
        for running in [one for one in self._running.values() if one.is_held]:
            running.is_held = False
            self.submit(running)

    def fail_all(self, sentence: str) -> None:
        """End all replies, those that wait for a model too."""
        for running in list(self._running.values()):
            self._end(running, "failed", "error", sentence)

    def interrupt_all(self) -> None:
        """The application ends: what was written stays, marked unfinished."""
        for running in list(self._running.values()):
            self._end(running, "unfinished", "")

    def new_pool(self) -> None:
        """Another model, another pool: no chat holds a block. `tell_pins` when it is there."""
        self._owners.clear()
        for session in self._sessions.all:
            self._show_blocks(session, 0)

    def tell_pins(self) -> None:
        self._pins.tell_all()

    # --- to the engine --------------------------------------------------------------------------

    def _send(self, running: Running, model: str) -> None:
        session = running.session
        params = params_for(session.sampling, running.reply)
        running.model = model
        request_id = self._bridge.next_request_id()
        owner = self._owners.take(session.session_id)
        messages = messages_for(session.record, running.turn_index)
        running.roles = tuple(message.role for message in messages)
        running.priority = self._priority(session.session_id)
        self._bridge.send(
            Submit(
                request_id=request_id,
                params=params,
                messages=messages,
                owner=owner,
                priority=running.priority,
            )
        )
        running.request_id = request_id
        self._by_request[request_id] = running
        if session.owner != owner:
            session.owner = owner
            session.changed.emit()

    def _priority(self, session_id: str) -> int:
        return FRONT if self._sessions.is_in_front(session_id) else NORMAL

    @Slot(str)
    def _on_front(self, _: str) -> None:
        """Another chat is in front: tell the engine of those replies for which that matters."""
        for running in self._by_request.values():
            priority = self._priority(running.session.session_id)
            if priority != running.priority:
                running.priority = priority
                with suppress(EngineStoppedError):  # then `fail_all` is on its way
                    self._bridge.send(SetPriority(running.request_id, priority))

    def _release(self, session_id: str) -> None:
        owner = self._owners.number(session_id)
        self._owners.release(session_id)
        if owner is not None:
            with suppress(EngineStoppedError):  # the pool has gone with the engine
                self._bridge.send(ReleaseOwner(owner))

    # --- from the engine ------------------------------------------------------------------------

    @Slot(object)
    def _on_accepted(self, event: Accepted) -> None:
        """Say what had to be changed for the model's chat template, once for each chat."""
        running = self._by_request.get(event.request_id)
        if running is None:
            return
        for note in event.notes:
            said = (running.session.session_id, note)
            if said not in self._told:
                self._told.add(said)
                self._status.toast.emit(note, "")

    @Slot(int, object, int)
    def _on_text(self, request_id: int, text: str, num_tokens: int) -> None:
        running = self._by_request.get(request_id)
        if running is None:
            return
        if not running.first_s:
            running.first_s = time.monotonic()
        running.num_tokens += num_tokens
        if text:
            running.unsaved.append(text)
            running.session.append_text(running.turn_index, text)

    @Slot(object)
    def _on_state(self, event: StateChanged) -> None:
        running = self._by_request.get(event.request_id)
        if running is None:
            return
        running.session.set_status(
            STATUS[event.state],
            short_words(event),
            state_sentence(event, has_text=running.num_tokens > 0),
            event.since_s if event.state is RequestState.PAUSED else 0.0,
        )
        self._count()

    @Slot(object)
    def _on_prefix(self, event: PrefixFound) -> None:
        if running := self._by_request.get(event.request_id):
            running.prefix = event

    @Slot(object)
    def _on_finished(self, event: Finished) -> None:
        if running := self._by_request.get(event.request_id):
            self._end(running, "complete", event.reason, usage=event.usage)

    @Slot(object)
    def _on_failed(self, event: Failed) -> None:
        if running := self._by_request.get(event.request_id):
            self._end(running, "failed", "error", event.message, event.usage)

    @Slot(object)
    def _on_pool(self, snapshot: PoolSnapshot) -> None:
        self._owners.see(snapshot, self._pins.session_ids.union(self._running))
        for session in self._sessions.all:
            self._show_blocks(session, snapshot.block_tokens)

    def _show_blocks(self, session: Session, block_tokens: int) -> None:
        session_id = session.session_id
        owner = self._owners.number(session_id)
        fill = self._owners.fill(session_id, block_tokens)
        cached = self._owners.has_blocks(session_id) and not self.is_busy(session_id)
        if (owner, fill, cached) != (session.owner, session.fill, session.has_cached_blocks):
            session.owner, session.fill, session.has_cached_blocks = owner, fill, cached
            session.changed.emit()

    # --- text to the disk, and the end of a reply -----------------------------------------------

    @Slot()
    def _save_texts(self) -> None:
        if not self._running:
            self._timer.stop()
        for running in self._running.values():
            self._save_text(running)
            session = running.session
            rate = running.tokens_per_s()
            if rate != session.tokens_per_s:
                session.tokens_per_s = rate
                session.changed.emit()

    def _save_text(self, running: Running) -> None:
        if not running.unsaved:
            return
        text = "".join(running.unsaved)
        running.unsaved.clear()
        start = running.num_saved_chars
        writing = self._journal.history.append_text(running.reply_id, start, text)
        running.num_saved_chars += len(text)
        self._journal.keep(running.session, writing)

    def _end(
        self,
        running: Running,
        state: ReplyState,
        reason: FinishReason | str,
        error: str = "",
        usage: Usage | None = None,
    ) -> None:
        session = running.session
        del self._running[session.session_id]
        self._by_request.pop(running.request_id, None)
        reply = replace(
            running.reply, state=state, finish_reason=reason, error=error, model=running.model
        )
        session.details[running.reply_id] = details_of(running, usage)
        session.put_reply(running.turn_index, with_usage(reply, usage))
        session.tokens_per_s = 0.0
        session.has_cached_blocks = self._owners.has_blocks(session.session_id)
        session.unread = session.session_id != self._sessions.current_id
        session.set_status("failed" if state == "failed" else "idle", error)
        session.changed.emit()
        self._write(running)
        self._count()
        if self._sessions.get(session.session_id) is None:
            self._release(session.session_id)
        self.ended.emit(session.session_id)

    def _write(self, running: Running) -> None:
        turn = running.session.record.turns[running.turn_index]
        position = [reply.reply_id for reply in turn.replies].index(running.reply_id)
        writing = self._journal.history.put_reply(
            turn.turn_id, position, turn.replies[position], turn.chosen
        )
        self._journal.keep(running.session, writing)

    def _count(self) -> None:
        number = sum(one.session.status == "running" for one in self._running.values())
        if number != self._status.num_generating:
            self._status.update(num_generating=number)
