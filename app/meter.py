"""LoadMeter: tokens per second over all chats, as the status bar shows them."""

from __future__ import annotations

import time
from collections import deque

from PySide6.QtCore import QObject, QTimer, Slot

from app.bridge import EngineBridge
from app.state.status import AppStatus
from engine.messages import StepStats

WINDOW_S = 2.0
INTERVAL_MS = 250


class LoadMeter(QObject):
    """Averages over the last two seconds; its timer runs only while there are steps."""

    def __init__(
        self, bridge: EngineBridge, status: AppStatus, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._status = status
        self._steps: deque[tuple[float, float, int]] = deque()  # end, start, tokens
        self._timer = QTimer(self)
        self._timer.setInterval(INTERVAL_MS)
        self._timer.timeout.connect(self._show)
        bridge.stats.connect(self._on_stats)

    @Slot(object)
    def _on_stats(self, stats: StepStats) -> None:
        start_s = stats.time_s - stats.step_ms / 1000
        self._steps.append((stats.time_s, start_s, stats.num_decode_tokens))
        if not self._timer.isActive():
            self._timer.start()

    @Slot()
    def _show(self) -> None:
        now_s = time.monotonic()
        while self._steps and self._steps[0][0] < now_s - WINDOW_S:
            self._steps.popleft()
        rate = 0.0
        if self._steps:
            seconds = self._steps[-1][0] - self._steps[0][1]
            rate = sum(tokens for _, _, tokens in self._steps) / max(seconds, 1e-3)
        else:
            self._timer.stop()
        if rate != self._status.tokens_per_s:
            self._status.update(tokens_per_s=rate)
