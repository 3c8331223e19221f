"""Tiny random models of many families: token for token what transformers generates.

Every model goes through pool, scheduler and step as in the app, under each of the conditions below.
`python -m tests.engine.model.test_family_exactness` prints the table that README carries.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.messages import BlockState, SamplingParams
from engine.model.loader import LoadedModel, load_model, load_universal
from engine.model.safetensors import read_config
from engine.model.universal import open_universal
from engine.prefix import root_digest
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.stepper import Stepper
from kernels.dispatch import choose
from tests.engine.model.zoo import FAST, LENGTHS, UNIVERSAL, Prompt, ask, make_model

CPU = torch.device("cpu")


class Rig:
    """One model with a pool full of NaN; a block that becomes FREE is full of NaN again."""

    def __init__(self, model: LoadedModel, block_tokens: int = 16, chunk: int = 64) -> None:
        groups = model.kv.groups
        self.pool = BlockPool(64 * len(groups), block_tokens, groups=groups)
        self.cache = KVCache(model.kv, self.pool.num_blocks, block_tokens, CPU)
        self.scheduler = Scheduler(self.pool, chunk, 16, root_digest("tiny"))
        self._poison(range(self.pool.num_blocks))
        text = SimpleNamespace(eos_ids=(), bytes_of=lambda token: b"")
        serving: Any = SimpleNamespace(
            scheduler=self.scheduler, pool=self.pool, cache=self.cache, model=model, device=CPU,
            text=text,
        )  # fmt: skip
        self._stepper = Stepper(serving)
        self._answers: dict[int, list[int]] = {}
        self.got: dict[int, list[int]] = {}

    def _poison(self, blocks: Any) -> None:
        for pool in (*self.cache.k, *self.cache.v):
            pool[list(blocks)] = float("nan")

    def add(self, prompt: Prompt, said: int = 0, **more: Any) -> Sequence:
        """A request for the answer to a prompt; `said` tokens of the answer are in its prompt."""
        tokens = prompt.tokens + prompt.answer[:said]
        number = len(self.got) + 1
        one = Sequence(number, tokens, len(tokens), 999, SamplingParams(), number, **more)
        self._answers[number] = prompt.answer[said:]
        self.got[number] = []
        self.scheduler.add(one)
        return one

    def step(self) -> None:
        """One step. Each sequence goes on from the reference's token, whatever its own was."""
        for sampled in self._stepper.run().sampled:
            assert isinstance(sampled.token, int), sampled.token
            one = sampled.sequence
            got, answer = self.got[one.request_id], self._answers[one.request_id]
            one.token_ids.append(answer[len(got)])
            got.append(sampled.token)
            if len(got) == len(answer):
                self.scheduler.end(one)
        self.scheduler.check()
        free = self.pool.snapshot().states
        self._poison([block for block, state in enumerate(free) if state == BlockState.FREE])

    def finish(self) -> None:
        while not self.scheduler.is_idle:
            self.step()
        self.pool.check_idle()


@dataclass
class Proof:
    """A family's model on disk, its reference, and the near ties of each condition."""

    name: str
    load: Callable[[str], LoadedModel]
    prompts: list[Prompt]
    row: dict[str, int] = field(default_factory=dict)

    @property
    def long(self) -> Prompt:
        return self.prompts[-1]

    def check(self, condition: str, rig: Rig, one: Sequence, prompt: Prompt) -> None:
        """Compare tokens that were each chosen after the reference's own."""
        got, ties = rig.got[one.request_id], 0
        said = len(prompt.answer) - len(got)
        for place, ours in enumerate(got, said):
            if ours != prompt.answer[place]:
                assert prompt.near[place], f"{self.name}, {condition}: token {place} differs"
                ties += 1
        self.row[condition] = self.row.get(condition, 0) + ties


# --- conditions ---------------------------------------------------------------------------------


def alone_in_chunks(proof: Proof, chunk: int) -> None:
    rig = Rig(proof.load("cpu"), chunk=chunk)
    one = rig.add(proof.long)
    rig.finish()
    proof.check(f"chunks of {chunk}", rig, one, proof.long)


def five_together(proof: Proof, backend: str) -> None:
    """Prompts of 1 to 70 tokens; one joins every third step."""
    rig = Rig(proof.load(backend), block_tokens=7, chunk=9)
    there = []
    for prompt in proof.prompts:
        there.append(rig.add(prompt))
        for _ in range(3):
            rig.step()
    rig.finish()
    for one, prompt in zip(there, proof.prompts, strict=True):
        proof.check("5 together", rig, one, prompt)


def prefix_warm(proof: Proof, size: int) -> None:
    """The same prompt again, of which one token is computed, then the next turn of that chat."""
    rig = Rig(proof.load("cpu"), block_tokens=size)
    first = rig.add(proof.long)
    rig.finish()
    again = rig.add(proof.long)
    rig.finish()
    longer = rig.add(proof.long, said=20)
    rig.finish()
    assert (first.num_cached, again.num_cached) == (0, len(proof.long.tokens) - 1)
    assert longer.num_cached >= (len(proof.long.tokens) + 19) // size * size
    for one in (first, again, longer):
        proof.check("prefix warm", rig, one, proof.long)


def preempted(proof: Proof, use_cache: bool) -> None:
    """Paused while it reads, and twice while it writes; computed anew, or found in the cache."""
    rig = Rig(proof.load("cpu"), chunk=16)
    prompts = (proof.prompts[2], proof.long)
    there = [rig.add(prompt, use_prefix_cache=use_cache) for prompt in prompts]
    for num_steps in (2, 14, 11):
        for _ in range(num_steps):
            rig.step()
        assert rig.scheduler.pause_last() is there[1]
    rig.finish()
    assert there[1].num_preemptions == 3
    for one, prompt in zip(there, prompts, strict=True):
        proof.check("preempted", rig, one, prompt)


def forked(proof: Proof, size: int) -> None:
    """Two replies to one prompt, and a third that goes on from the first when it has written 9."""
    rig = Rig(proof.load("cpu"), block_tokens=size)
    fork_tokens = len(proof.long.tokens) - 1
    first = rig.add(proof.long, use_prefix_cache=False)
    second = rig.add(proof.long, use_prefix_cache=False, parent=first, fork_tokens=fork_tokens)
    while len(rig.got[first.request_id]) < 9:
        rig.step()
    third = rig.add(
        proof.long, said=9, use_prefix_cache=False, parent=first, fork_tokens=first.num_tokens - 1
    )
    rig.finish()
    assert second.num_cached == fork_tokens
    assert third.num_cached == fork_tokens + 9
    # A part-filled block at the end is copied, once for each fork and layer group.
    parts = sum(1 for one in (second, third) if one.num_cached % size)
    assert rig.pool.num_copies >= parts * len(rig.pool.groups)
    for one in (first, second, third):
        proof.check("forked", rig, one, proof.long)


CONDITIONS: dict[str, tuple[Callable[..., None], Any]] = {
    "chunks of 1": (alone_in_chunks, 1),
    "chunks of 7": (alone_in_chunks, 7),
    "chunks of 16": (alone_in_chunks, 16),
    "alone": (alone_in_chunks, 64),
    "5 together": (five_together, "cpu"),
    "5 together, plain kernels": (five_together, "reference"),
    "warm, blocks of 16": (prefix_warm, 16),
    "warm, blocks of 5": (prefix_warm, 5),
    "preempted, computed again": (preempted, False),
    "preempted, from the cache": (preempted, True),
    "forked, blocks of 16": (forked, 16),
    "forked, blocks of 5": (forked, 5),
}


# --- families -----------------------------------------------------------------------------------

ALL = {**{f"{name}": (True, *made) for name, made in FAST.items()}} | {
    f"{name} (universal)": (False, *made) for name, made in UNIVERSAL.items()
}


def prove(name: str, folder: Path) -> Proof:
    """Make the family's model and ask transformers."""
    is_fast, *made = ALL[name]
    model = make_model(*made, folder)
    prompts = [ask(model, length) for length in LENGTHS]
    words = {token for prompt in prompts for token in prompt.answer}
    assert len(words) > 15, "a model that says one word whatever it read proves little"
    loaded: dict[str, LoadedModel] = {}

    def load(backend: str) -> LoadedModel:
        if backend not in loaded:
            loaded[backend] = _load(folder, backend, is_fast)
        return loaded[backend]

    return Proof(name, load, prompts)


def _load(folder: Path, backend: Any, is_fast: bool) -> LoadedModel:
    config = EngineConfig(precision="exact", backend=backend)
    if is_fast:
        model = load_model(folder, config, CPU, lambda fraction, note: None)
        assert model.path == "fast"
        return model
    ops = choose(CPU, torch.float32, backend)
    opened = open_universal(folder, "tiny", read_config(folder, "tiny"), config, CPU, ops)
    return load_universal(opened, config, CPU, lambda fraction, note: None)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small only wait for a second thread, long where others want the cores."""
    num_threads = torch.get_num_threads()
    use_one_thread()
    yield
    torch.set_num_threads(num_threads)


def use_one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=ALL)
def proof(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None
) -> Proof:
    return prove(request.param, tmp_path_factory.mktemp("family"))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_tokens_are_those_of_transformers(proof: Proof, condition: str) -> None:
    way, how = CONDITIONS[condition]
    way(proof, how)


def test_readme_carries_every_family() -> None:
    readme = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in readme.splitlines() if line.startswith("| ")]
    assert [name for name in ALL if name not in rows] == []


# --- the table ----------------------------------------------------------------------------------

COLUMNS = (
    "alone", "5 together", "chunks of 1", "chunks of 7", "chunks of 16", "prefix warm", "preempted",
    "forked",
)  # fmt: skip


def main() -> None:
    """Print the table: near ties where either token counts, of the tokens compared; a difference
    ends the run."""
    use_one_thread()
    print(f"| family | {' | '.join(COLUMNS)} |")
    print("|---|" + "--:|" * len(COLUMNS))
    total = 0
    for name in ALL:
        with tempfile.TemporaryDirectory() as folder:
            proof = prove(name, Path(folder))
            for way, how in CONDITIONS.values():
                way(proof, how)
        proof.row["alone"] = proof.row["chunks of 64"]
        total += sum(proof.row[column] for column in COLUMNS)
        print(f"| {name} | {' | '.join(str(proof.row[c]) for c in COLUMNS)} |", flush=True)
    print(f"{len(ALL)} models, {len(CONDITIONS)} conditions, {total} near ties", file=sys.stderr)


if __name__ == "__main__":
    main()
