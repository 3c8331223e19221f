"""History: the chats on disk, as the window uses them. One worker thread owns the connection.

Every method hands its work to the worker at once and returns something to await; so the order
of calls is the order on disk, whether or not anybody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from app.history_file import HistoryFile, Loaded
from app.records import ReplyRecord, SessionRecord, TurnRecord

T = TypeVar("T")


class History:
    """Chats, their turns and the open tabs. Awaiting any result may raise HistoryError."""

    def __init__(self, path: Path) -> None:
        self._file = HistoryFile(path)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="io-db")

    def open(self) -> Awaitable[Loaded]:
        return self._call(self._file.open)

    def save_session(self, session: SessionRecord) -> Awaitable[None]:
        """Write a whole chat; used for a new one and to heal one that could not be written."""
        return self._call(self._file.save_session, session)

    def update_session(self, session: SessionRecord) -> Awaitable[None]:
        return self._call(self._file.update_session, session)

    def add_turn(self, session_id: str, position: int, turn: TurnRecord) -> Awaitable[None]:
        return self._call(self._file.add_turn, session_id, position, turn)

    def put_reply(
        self, turn_id: str, position: int, reply: ReplyRecord, chosen: int
    ) -> Awaitable[None]:
        return self._call(self._file.put_reply, turn_id, position, reply, chosen)

    def append_text(self, reply_id: str, start: int, text: str) -> Awaitable[None]:
        return self._call(self._file.append_text, reply_id, start, text)

    def choose(self, turn_id: str, version: int) -> Awaitable[None]:
        return self._call(self._file.choose, turn_id, version)

    def set_deleted(self, session_id: str, deleted: bool) -> Awaitable[None]:
        return self._call(self._file.set_deleted, session_id, deleted)

    def remove(self, session_id: str) -> Awaitable[None]:
        return self._call(self._file.remove, session_id)

    def set_tabs(self, session_ids: tuple[str, ...], current: str) -> Awaitable[None]:
        return self._call(self._file.set_tabs, session_ids, current)

    async def close(self) -> None:
        """Write what is still in line, close the file and end the worker. Cancelled, it gives up
        what is in line: another program holds the file, and each write would wait for it."""
        try:
            await self._call(self._file.close)
        finally:
            self._worker.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._worker, function, *args)
