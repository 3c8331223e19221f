"""Collector: garbage collection for a process with Qt in it, on the UI thread only.

A collection that runs on the engine thread would destroy QObjects there, which aborts. So
automatic collection is off, and a timer of the UI thread does the young generations. Full ones
take 60 to 180 ms and come only when a model has been loaded or unloaded, or its load was given up.
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer, Slot

from engine.messages import ModelFailed

INTERVAL_MS = 500
YOUNG = 700  # Python's own thresholds
MIDDLE = 10


class Collector(QObject):
    """Build it on the UI thread; `start` takes over, `stop` gives collection back to Python."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._timer = QTimer(self)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._tick)

    def start(self) -> None:
        gc.disable()
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()
        gc.unfreeze()
        gc.enable()

    @Slot()
    def on_loading(self) -> None:
        """The present model goes: what was frozen with it must be collectable again."""
        gc.unfreeze()

    @Slot()
    def on_loaded(self) -> None:
        """Collect once, then keep the model's hundred thousand objects out of later rounds."""
        gc.collect()
        gc.freeze()

    @Slot()
    def on_unloaded(self) -> None:
        gc.unfreeze()
        gc.collect()

    @Slot(object)
    def on_load_failed(self, event: ModelFailed) -> None:
        """What was read of it goes, unless only its header was read, beside a model that stays."""
        if not event.is_kept:
            self.on_unloaded()

    @Slot()
    def _tick(self) -> None:
        young, middle, _ = gc.get_count()
        if middle > MIDDLE:
            gc.collect(1)
        elif young > YOUNG:
            gc.collect(0)
