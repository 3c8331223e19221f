"""EngineClient: the one door to the engine, for window, endpoint and command line alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from engine.config import EngineConfig
from engine.errors import EngineStoppedError
from engine.messages import Command, EngineStopped, StepEvents
from engine.thread import EngineThread

Sink = Callable[[StepEvents], None]


class EngineClient:
    """Sends commands down and fans StepEvents out to every subscriber.

    Subscribers are called on the engine thread and must return at once.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._thread = EngineThread(config, self._fan_out)
        self._sinks: tuple[Sink, ...] = ()
        self._ids = itertools.count(1)
        self._stopped: str | None = None

    def start(self) -> None:
        self._thread.start()

    def subscribe(self, sink: Sink) -> None:
        self._sinks = (*self._sinks, sink)

    def next_request_id(self) -> int:
        return next(self._ids)

    def send(self, command: Command) -> None:
        """Hand a command to the engine; it is applied before the next step.

        Raises:
            EngineStoppedError: the engine has ended; the sentence carries its reason.
        """
        if self._stopped is not None:
            raise EngineStoppedError(self._stopped or "The engine has ended.")
        self._thread.send(command)

    def join(self, timeout_s: float) -> bool:
        """Wait for the engine thread to end; True when it has."""
        return self._thread.join(timeout_s)

    def _fan_out(self, step: StepEvents) -> None:
        for event in step.events:
            if isinstance(event, EngineStopped):
                self._stopped = event.reason
        for sink in self._sinks:
            sink(step)
