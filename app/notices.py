"""Notices: what the engine tells people though no reply failed, each sentence once for a model."""

from __future__ import annotations

from PySide6.QtCore import QObject, Slot

from app.bridge import EngineBridge
from app.state.status import AppStatus


class Notices(QObject):
    """Hands the engine's notices to the window. What goes on happening, step after step, is not
    said again before another model is loaded."""

    def __init__(
        self, bridge: EngineBridge, status: AppStatus, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._status = status
        self._said: set[str] = set()
        bridge.notice.connect(self._on_notice)
        bridge.loaded.connect(self._on_loaded)

    @Slot(object)
    def _on_notice(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._status.notice.emit(message)

    @Slot(object)
    def _on_loaded(self, _: object) -> None:
        self._said.clear()
