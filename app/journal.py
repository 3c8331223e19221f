"""Journal: how the window writes to history. A disk that fails becomes one sentence, chats go on.

A chat whose write failed is remembered and written whole as soon as a write succeeds again.
"""

from __future__ import annotations

from collections.abc import Awaitable

from app.errors import HistoryError
from app.history import History
from app.state.session import Session
from app.state.status import AppStatus
from app.tasks import Tasks


class Journal:
    """Awaits writes of History, shows their errors, heals what is behind."""

    def __init__(self, history: History, status: AppStatus, tasks: Tasks) -> None:
        self.history = history
        self._status = status
        self._tasks = tasks
        self._behind: dict[str, Session] = {}
        self._said = ""  # the sentence shown last, so that a full disk is not said per chunk

    def keep(self, session: Session | None, writing: Awaitable[None]) -> None:
        """Watch over a write without waiting for it."""
        self._tasks.start(self.kept(session, writing))

    async def kept(self, session: Session | None, writing: Awaitable[None]) -> bool:
        """Wait for a write. True when what it wrote is on the disk."""
        try:
            await writing
        except HistoryError as error:
            if session is None:
                self._say(str(error))
                return False
            # Perhaps only this piece cannot be written, because what it belongs to never was.
            self._behind[session.session_id] = session
        try:
            await self._heal()
        except HistoryError as error:
            self._say(str(error))
            return session is None or session.session_id not in self._behind
        self._said = ""
        return True

    def forget(self, session: Session) -> None:
        """This chat is gone: nothing of it needs to be written any more."""
        self._behind.pop(session.session_id, None)

    async def _heal(self) -> None:
        while self._behind:
            session_id, session = self._behind.popitem()
            try:
                await self.history.save_session(session.record)
            except HistoryError:
                self._behind[session_id] = session
                raise

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._status.error.emit(sentence)
