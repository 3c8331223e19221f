"""Tasks: coroutines that slots start, kept alive until they end and never silent when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

ReportError = Callable[[BaseException], None]


class Tasks:
    """Holds every running coroutine of the window; an exception goes to `report`."""

    def __init__(self, report: ReportError) -> None:
        self._report = report
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine on the loop of this thread, from a slot or from another coroutine."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def settle(self, timeout_s: float) -> None:
        """Wait for what runs; what has not ended by then is cancelled."""
        others = self._running - {asyncio.current_task()}
        if not others:
            return
        _, late = await asyncio.wait(others, timeout=timeout_s)
        for task in late:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(error)
