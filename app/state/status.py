"""AppStatus: model, device and load, as welcome page, banner and status bar show them."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QObject, Signal

from engine.messages import ModelInfo

ModelPhase = Literal["none", "fetching", "loading", "ready", "failed", "stopped"]


class AppStatus(QObject):
    """Only `app.chats` changes it; views listen.

    Attributes:
        phase: none (no model), fetching (the starter), loading, ready, failed (message says why),
            stopped (the engine ended; message says why).
        fraction, note: progress of fetching or loading.
        num_generating, tokens_per_s: over all chats.

    Signals:
        changed: anything above.
        toast(text, undo_label): a line at the bottom of the chat; undo_label "" = no button,
            pressing it emits `Intents.undo_delete`.
        notice(text): like a toast, of something that happened by itself.
        error(text): like a toast, stays until closed.
    """

    changed = Signal()
    toast = Signal(str, str)
    notice = Signal(str)
    error = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.phase: ModelPhase = "none"
        self.fraction = 0.0
        self.note = ""
        self.message = ""
        self.model: ModelInfo | None = None
        self.starter_name = ""
        self.starter_bytes = 0
        self.num_generating = 0
        self.tokens_per_s = 0.0

    def update(self, **changes: object) -> None:
        """Set attributes by name; one `changed` for all of them."""
        for name, value in changes.items():
            if not hasattr(self, name):
                raise AttributeError(name)
            setattr(self, name, value)
        self.changed.emit()
