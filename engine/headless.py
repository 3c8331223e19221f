"""Headless: drives an EngineClient without a window, for the command line and for tests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineStoppedError, ModelError
from engine.messages import (
    BlockState,
    EngineStopped,
    Failed,
    Finished,
    LoadModel,
    Logprobs,
    ModelFailed,
    ModelInfo,
    ModelLoaded,
    PoolSnapshot,
    PrefixFound,
    Shutdown,
    StepEvents,
    StepStats,
    Submit,
    TextDelta,
    Usage,
)


@dataclass(slots=True)
class Outcome:
    """What came of one request. `error` is a sentence, empty when there was none."""

    request_id: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)  # one per token id, if asked for
    finish_reason: str = ""
    prefix: PrefixFound | None = None
    usage: Usage | None = None
    error: str = ""


@dataclass(slots=True)
class Run:
    """One batch of requests, from the first submission to the last event."""

    outcomes: list[Outcome]
    steps: list[StepStats]
    seconds: float
    pool: PoolSnapshot | None

    @property
    def mean_waste_ratio(self) -> float:
        """1 - slots written / slots held, summed over all steps."""
        held = sum(step.held_slots for step in self.steps)
        return 1 - sum(step.written_slots for step in self.steps) / held if held else 0.0

    def count(self, state: BlockState) -> int:
        """Blocks in a state when everything had ended."""
        return self.pool.states.count(state) if self.pool else 0


class Headless:
    """A started engine with one model. Use it as a context manager.

    Raises:
        ModelError: the model cannot be loaded. EngineStoppedError: the engine ended.
    """

    def __init__(self, config: EngineConfig, model: Path) -> None:
        self._events: SimpleQueue[StepEvents] = SimpleQueue()
        self.client = EngineClient(config)
        self._sink: Callable[[StepEvents], None] = self._events.put
        self.client.subscribe(self._receive)
        self.client.start()
        self._pool: PoolSnapshot | None = None
        try:
            self.info = self._load(model)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Headless:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(EngineStoppedError):
            self.client.send(Shutdown())
        self.client.join(10.0)

    def listen(self, sink: Callable[[StepEvents], None]) -> None:
        """From now on `sink` gets every step, on the engine's thread, and `run` none: what nobody
        takes out would only grow, by 6 MiB a minute with 32 chats."""
        self._sink = sink

    def _receive(self, step: StepEvents) -> None:
        self._sink(step)

    def _next(self) -> StepEvents:
        step = self._events.get()
        if step.pool:
            self._pool = step.pool
        for event in step.events:
            if isinstance(event, EngineStopped):
                raise EngineStoppedError(event.reason or "The engine has ended.")
        return step

    def _load(self, model: Path) -> ModelInfo:
        self.client.send(LoadModel(str(model)))
        while True:
            for event in self._next().events:
                if isinstance(event, ModelLoaded):
                    return event.info
                if isinstance(event, ModelFailed):
                    raise ModelError(event.message)

    def run(self, submits: Items[Submit]) -> Run:
        """Submit all at once and wait until every request has ended."""
        ids = (i for s in submits for i in (s.request_id, *s.siblings))
        outcomes = {request_id: Outcome(request_id) for request_id in ids}
        steps: list[StepStats] = []
        start_s = last_s = time.perf_counter()
        for submit in submits:
            self.client.send(submit)
        open_ids = set(outcomes)
        while open_ids:
            step = self._next()
            last_s = time.perf_counter()
            if step.stats:
                steps.append(step.stats)
            for event in step.events:
                request_id = getattr(event, "request_id", None)
                if request_id in outcomes and _take(outcomes[request_id], event):
                    open_ids.discard(request_id)
        return Run(list(outcomes.values()), steps, last_s - start_s, self._pool)


def _take(outcome: Outcome, event: object) -> bool:
    """Add an event to an outcome; True when it was the last one."""
    match event:
        case TextDelta(text=text, token_ids=token_ids, logprobs=logprobs):
            outcome.text += text
            outcome.token_ids += token_ids
            outcome.logprobs += logprobs
        case PrefixFound():
            outcome.prefix = event
        case Finished(reason=reason, usage=usage):
            outcome.finish_reason, outcome.usage = reason, usage
            return True
        case Failed(message=message, usage=usage):
            outcome.finish_reason, outcome.error, outcome.usage = (
                "error",
                message,
                usage,
            )
            return True
    return False
