"""ErrorReporter: stray exceptions and Qt warnings go to the log, a sentence goes to the user."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import TextIO

from PySide6.QtCore import QMessageLogContext, QObject, QtMsgType, Signal, qInstallMessageHandler

from engine.errors import TesseraError

log = logging.getLogger("tessera")
LOG_BYTES = 1_000_000
LOG_FILES = 3
_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}


class ErrorReporter(QObject):
    """Writes `logs/tessera.log` in a data folder.

    Signals:
        happened(sentence): something went wrong; emitted from any thread.
    """

    happened = Signal(str)

    def __init__(self, folder: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.log_path = folder / "logs" / "tessera.log"
        self._handler = _log_handler(self.log_path)
        self._crash_file: TextIO | None = None

    def install(self) -> None:
        """Take over the hooks of Python and Qt."""
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(logging.INFO)
        sys.excepthook = self._on_exception
        threading.excepthook = self._on_thread_exception
        sys.unraisablehook = self._on_unraisable
        qInstallMessageHandler(_on_qt_message)
        try:
            self._crash_file = open(self.log_path.with_name("crash.log"), "a", encoding="utf-8")  # noqa: SIM115
            faulthandler.enable(self._crash_file)
        except OSError as error:
            log.warning("no crash log: %s", error)

    def uninstall(self) -> None:
        """Give the hooks back and close the log."""
        qInstallMessageHandler(None)
        sys.excepthook = sys.__excepthook__
        threading.excepthook = threading.__excepthook__
        sys.unraisablehook = sys.__unraisablehook__
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
        if self._crash_file is not None:
            faulthandler.disable()
            self._crash_file.close()
            self._crash_file = None

    def report(self, error: BaseException) -> None:
        """Log an exception and tell the user."""
        log.error("stray exception", exc_info=error)
        if isinstance(error, TesseraError):  # already one sentence for a person
            self.happened.emit(str(error))
            return
        kind = type(error).__name__
        self.happened.emit(
            f"Something went wrong inside Tessera ({kind}: {error}); what you wrote is kept, and "
            f"{self.log_path} says more."
        )

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, trace)
            return
        self.report(error)

    def _on_thread_exception(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            self.report(args.exc_value)

    def _on_unraisable(self, args: sys.UnraisableHookArgs) -> None:
        # Raised where nobody can act on it, mostly while objects are destroyed: the log is enough.
        log.error("in %r: %s", args.object, args.err_msg or "", exc_info=args.exc_value)


def _log_handler(path: Path) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler: logging.Handler = RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", errors="replace"
        )
    except OSError:  # a full or read-only disk must not keep the window from opening
        handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s")
    )
    return handler


def _on_qt_message(kind: QtMsgType, context: QMessageLogContext, text: str | None) -> None:
    logging.getLogger("qt").log(_LEVELS.get(kind, logging.WARNING), "%s", text)
