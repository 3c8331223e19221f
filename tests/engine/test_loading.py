"""Loading: given up when it is cancelled, with a sentence, and with nothing left in memory."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.loading import Loader
from engine.messages import (
    CancelLoad,
    Event,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelLoading,
    Shutdown,
    StepEvents,
)
from engine.model.gguf import GgufWeights
from engine.serving import Serving

CONFIG = EngineConfig(num_blocks=4)


@pytest.fixture
def model(tmp_path: Path, gguf_maker: Any) -> Path:
    """A whole little model: weights and a tokeniser."""
    metadata, tensors = gguf_maker.tiny()
    metadata |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a", "\u2581"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_maker.file(metadata, tensors))
    return path


@dataclass
class Attempt:
    """One load by hand. `cancel_at` is how many tensors are read before it is cancelled."""

    cancel_at: int = 99
    end_at: int = 99
    said: list[ModelLoading] = field(default_factory=list)
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    before_read: Callable[[int], None] = lambda number: None

    def loader(self, patch: pytest.MonkeyPatch) -> Loader:
        plain = GgufWeights.load

        def watched(weights: GgufWeights, name: str) -> torch.Tensor:
            self.before_read(len(self.tensors))
            tensor = plain(weights, name)
            self.tensors.append(weakref.ref(tensor))
            return tensor

        patch.setattr(GgufWeights, "load", watched)
        return Loader(
            CONFIG,
            self.said.append,
            lambda: len(self.tensors) >= self.end_at,
            lambda: len(self.tensors) >= self.cancel_at,
        )

    @property
    def num_alive(self) -> int:
        return sum(one() is not None for one in self.tensors)


def test_a_load_that_nobody_cancels_ends_with_the_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt()
    serving = attempt.loader(monkeypatch).load(model)
    assert isinstance(serving, Serving)
    assert serving.info.file == str(model)
    fractions = [event.fraction for event in attempt.said]
    assert fractions[0] == 0
    assert fractions == sorted(fractions)
    assert len({event.note for event in attempt.said}) >= 4


@pytest.mark.parametrize("num_read", [0, 1, 5, 10, 11])
def test_cancelled_before_any_tensor_it_gives_up_and_frees_all(
    num_read: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(cancel_at=num_read)
    failed = attempt.loader(monkeypatch).load(model)
    assert failed == ModelFailed(
        str(model), "Loading tiny.gguf was cancelled.", is_kept=False, is_cancelled=True
    )
    assert len(attempt.tensors) == num_read  # 11 is all of them: given up before the pool
    assert attempt.num_alive == 0


def test_a_load_that_fails_in_the_middle_frees_all(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int) -> None:
        if number == 6:
            raise MemoryError

    attempt = Attempt(before_read=fail)
    with caplog.at_level(logging.CRITICAL):
        failed = attempt.loader(monkeypatch).load(model)
    assert isinstance(failed, ModelFailed)
    assert "not enough memory for tiny.gguf" in failed.message
    assert not failed.is_cancelled
    assert (len(attempt.tensors), attempt.num_alive) == (6, 0)


def test_an_engine_that_ends_says_nothing_of_its_load(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Attempt(end_at=3)
    assert attempt.loader(monkeypatch).load(model) is None
    assert (len(attempt.tensors), attempt.num_alive) == (3, 0)


@pytest.mark.parametrize("is_whole", [True, False])
def test_cancelled_while_the_file_is_checked_the_present_model_is_kept(
    is_whole: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_whole:
        model.write_bytes(b"GGUF")
    refused = Attempt(cancel_at=0).loader(monkeypatch).refusal(model)
    assert refused is not None
    assert (refused.is_kept, refused.is_cancelled) == (True, True)
    assert refused.message == "Loading tiny.gguf was cancelled."


def test_every_layer_can_give_up(starter_model: Path) -> None:
    """The starter model has 30 layers of 9 tensors, and two tensors more."""
    calls = []
    from engine.model.loader import load_model

    load_model(starter_model, CONFIG, torch.device("cpu"), lambda *told: calls.append(told))
    assert len(calls) >= 272
    assert max(after[0] - before[0] for before, after in itertools.pairwise(calls)) < 0.3


# --- on the engine's thread --------------------------------------------------------------------


class Window:
    """An engine, and what it said. `on_loading` runs on the engine's thread, inside a load."""

    def __init__(self) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.on_loading: Callable[[ModelLoading], None] = lambda event: None
        self.client = EngineClient(CONFIG)
        self.client.subscribe(self._hear)
        self.client.start()

    def _hear(self, step: StepEvents) -> None:
        for event in step.events:
            if isinstance(event, ModelLoading):
                self.on_loading(event)
            elif isinstance(event, ModelFailed | ModelLoaded):
                self.events.put(event)

    def next(self) -> Event:
        return self.events.get(timeout=60)

    def close(self) -> None:
        self.client.send(Shutdown())
        assert self.client.join(20)


@pytest.fixture
def window() -> Any:
    opened = Window()
    yield opened
    opened.close()


def cancel_once(window: Window, *then: Any) -> Callable[[ModelLoading], None]:
    left = [CancelLoad(), *then]

    def send(event: ModelLoading) -> None:
        while left and event.note == "Reading weights":
            window.client.send(left.pop(0))

    return send


def test_a_cancel_ends_its_own_load_and_not_the_next(window: Window, model: Path) -> None:
    other = model.with_name("other.gguf")
    other.write_bytes(model.read_bytes())
    window.on_loading = cancel_once(window, LoadModel(str(other)))
    window.client.send(LoadModel(str(model)))
    failed, loaded = window.next(), window.next()
    assert isinstance(failed, ModelFailed)
    assert (failed.path, failed.is_cancelled, failed.is_kept) == (str(model), True, False)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.info.file == str(other)


def test_two_cancels_end_two_loads(window: Window, model: Path) -> None:
    """Both cancels are in the inbox before the first load has given up."""
    load = LoadModel(str(model))
    window.on_loading = cancel_once(window, load, CancelLoad(), load)
    window.client.send(load)
    ends = [window.next() for _ in range(3)]
    assert [getattr(end, "is_cancelled", False) for end in ends] == [True, True, False]
    assert isinstance(ends[2], ModelLoaded)


def test_a_load_that_waits_in_line_is_cancelled_too_and_the_model_stays(
    window: Window, model: Path
) -> None:
    window.client.send(LoadModel(str(model)))
    assert isinstance(window.next(), ModelLoaded)
    window.on_loading = cancel_once(window)
    window.client.send(LoadModel(str(model)))
    window.client.send(LoadModel(str(model)))
    ends = [window.next(), window.next()]
    assert [getattr(end, "is_cancelled", False) for end in ends] == [True, True]


def test_a_cancel_with_no_load_under_way_does_nothing(window: Window, model: Path) -> None:
    window.client.send(CancelLoad())
    window.client.send(LoadModel(str(model)))
    assert isinstance(window.next(), ModelLoaded)
    window.client.send(CancelLoad())
    window.client.send(LoadModel(str(model)))
    assert isinstance(window.next(), ModelLoaded)
