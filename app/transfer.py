"""Transfer: chats out to files and in from files, on one worker thread, with words for the user."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QObject, Slot

from app.chats import Chats
from app.errors import ExportError, ImportRefusedError
from app.export.importer import read_export
from app.export.write import write_export
from app.records import SessionRecord
from app.state.intents import Intents
from app.state.session import Sessions
from app.state.status import AppStatus
from app.tasks import Tasks


class Transfer(QObject):
    """Export and import, from the stored record, never from a widget."""

    def __init__(
        self,
        intents: Intents,
        sessions: Sessions,
        chats: Chats,
        status: AppStatus,
        tasks: Tasks,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._sessions = sessions
        self._chats = chats
        self._status = status
        self._tasks = tasks
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="io-files")
        intents.export.connect(self._on_export)
        intents.import_chat.connect(self._on_import)

    async def export(self, record: SessionRecord, format_name: str, path: Path) -> Path:
        """Write a chat to a file; a folder gets a file named after the chat.

        Raises:
            ExportError: it could not be written; the sentence says why.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, write_export, record, format_name, path)

    def close(self) -> None:
        """End the worker; what it is writing is written."""
        self._worker.shutdown(wait=False)

    @Slot(str, str, str)
    def _on_export(self, session_id: str, format_name: str, path: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._tasks.start(self._export(session.record, format_name, Path(path)))

    async def _export(self, record: SessionRecord, format_name: str, path: Path) -> None:
        try:
            written = await self.export(record, format_name, path)
        except ExportError as error:
            self._status.error.emit(str(error))
        else:
            self._status.toast.emit(f"Saved as {written.name} in {written.parent}.", "")

    @Slot(str)
    def _on_import(self, path: str) -> None:
        self._tasks.start(self._import(Path(path)))

    async def _import(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        try:
            record = await loop.run_in_executor(self._worker, read_export, path)
        except ImportRefusedError as error:
            self._status.error.emit(str(error))
            return
        self._chats.adopt(with_new_ids(record))
        self._status.toast.emit(f"“{record.title}” was imported.", "")


def with_new_ids(record: SessionRecord) -> SessionRecord:
    """The same chat under ids that nothing else has: it may be here already."""
    turns = tuple(
        replace(
            turn,
            turn_id=uuid.uuid4().hex,
            replies=tuple(replace(reply, reply_id=uuid.uuid4().hex) for reply in turn.replies),
        )
        for turn in record.turns
    )
    return replace(record, session_id=uuid.uuid4().hex, turns=turns)
