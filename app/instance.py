"""SingleInstance: one window for each data folder. The second start raises the first window."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import IO

from PySide6.QtCore import QObject, Signal, Slot
from PySide6.QtNetwork import QLocalServer, QLocalSocket

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

RAISE = b"raise\n"
ANSWER = b"raised\n"
ANSWER_MS = 2000


class SingleInstance(QObject):
    """Holds the lock of a data folder and listens for those that come later.

    The lock belongs to the open file, not to a number written in it: the system takes it away
    with the process, so a `kill -9` leaves nothing to clean up.

    Signals:
        raise_requested: somebody started the application again.
    """

    raise_requested = Signal()

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder = folder
        self._lock: IO[bytes] | None = None
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)

    @property
    def name(self) -> str:
        """Name of the socket: short, and the same however the folder was written."""
        return "tessera-" + hashlib.sha256(os.fsencode(self._folder.resolve())).hexdigest()[:20]

    def acquire(self) -> bool:
        """True when this is the first window for the folder; then it listens.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = open(self._folder / "tessera.lock", "ab")  # noqa: SIM115 - open while we run
        if not _try_lock(lock):
            lock.close()
            return False
        self._lock = lock
        QLocalServer.removeServer(self.name)  # what a kill left; nobody else can hold the lock
        self._server.listen(self.name)
        return True

    def release(self) -> None:
        self._server.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def raise_first(self) -> bool:
        """Ask the first window to come to the front; False when it does not answer. Blocks."""
        socket = QLocalSocket()
        socket.connectToServer(self.name)
        if not socket.waitForConnected(ANSWER_MS):
            return False
        socket.write(RAISE)
        socket.waitForBytesWritten(ANSWER_MS)
        answer = b""
        while len(answer) < len(ANSWER) and socket.waitForReadyRead(ANSWER_MS):
            answer += bytes(socket.readAll().data())
        return answer == ANSWER

    @Slot()
    def _on_connection(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.readyRead.connect(self._on_ready)
            if socket.bytesAvailable():
                self._answer(socket)

    @Slot()
    def _on_ready(self) -> None:
        socket = self.sender()
        if isinstance(socket, QLocalSocket):
            self._answer(socket)

    def _answer(self, socket: QLocalSocket) -> None:
        if bytes(socket.readLine().data()) == RAISE:
            self.raise_requested.emit()
            socket.write(ANSWER)
            socket.flush()
        socket.disconnectFromServer()


def _try_lock(file: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
