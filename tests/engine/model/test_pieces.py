"""Prompts that are read some layers at a time beside those who write."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.messages import BlockState
from engine.pieces import (
    COLD,
    DISTURBED,
    LEAST_SHARE,
    LEAST_TOKENS,
    MOST_TOKENS,
    RESUMED_WEIGHT,
    SLOWDOWN,
    Pieces,
)
from engine.plan import Load
from engine.sequence import Phase, Sequence
from tests.engine.model.test_family_exactness import Proof, Rig, prove, use_one_thread


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    num_threads = torch.get_num_threads()
    use_one_thread()
    yield prove("smollm3", tmp_path_factory.mktemp("pieces"))  # of five layers
    torch.set_num_threads(num_threads)


class Slow(Rig):
    """A step is over as soon as a piece has gone through one layer."""

    def __init__(self, proof: Proof, monkeypatch: pytest.MonkeyPatch, chunk: int = 64) -> None:
        super().__init__(proof.load("cpu"), chunk=chunk)
        monkeypatch.setattr(Pieces, "budget_ms", lambda *args: 0.0)
        monkeypatch.setattr(Pieces, "num_tokens", lambda self, budget_ms: chunk)

    def write(self, proof: Proof, number: int = 1) -> Sequence:
        one = self.add(proof.prompts[number])
        self.step()
        assert one.num_pending == 1
        return one


def check(proof: Proof, rig: Rig, *there: tuple[Sequence, int]) -> None:
    for one, number in there:
        proof.check("pieces", rig, one, proof.prompts[number])


def test_a_token_comes_with_every_layer(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Slow(proof, monkeypatch)
    writer = rig.write(proof)
    reader = rig.add(proof.long)
    for layer in range(4):
        said = len(rig.got[writer.request_id])
        rig.step()
        assert (len(rig.got[writer.request_id]), reader.num_computed) == (said + 1, 0), layer
    written, held = rig.scheduler.slots()
    assert held - written < 2 * 16, "slots that are being written are not waste"
    rig.step()
    assert (rig.scheduler.held, reader.num_computed) == ([], 63)
    rig.finish()
    check(proof, rig, (writer, 1), (reader, 4))


def test_who_comes_meanwhile_is_in_the_next_piece(
    proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Slow(proof, monkeypatch)
    writer, reader = rig.write(proof), rig.add(proof.long)
    rig.step()
    late = rig.add(proof.prompts[2])
    for _ in range(4):
        assert late.phase is Phase.WAITING
        rig.step()
    rig.step()
    assert [item.sequence for item in rig.scheduler.held] == [reader, late]
    rig.finish()
    check(proof, rig, (writer, 1), (reader, 4), (late, 2))


def test_where_nobody_writes_any_more_the_rest_is_read_at_once(
    proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Slow(proof, monkeypatch)
    writer, reader = rig.write(proof), rig.add(proof.long)
    rig.step()
    rig.scheduler.end(writer)
    rig.step()
    assert (rig.scheduler.held, reader.num_computed) == ([], 63)
    rig.finish()
    check(proof, rig, (reader, 4))


@pytest.mark.parametrize("way", ["ended", "paused"])
def test_who_leaves_a_piece_writes_nothing_more(
    proof: Proof, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Its blocks are another's at once; the rest of the piece goes on."""
    rig = Slow(proof, monkeypatch, chunk=40)
    writer = rig.write(proof)
    stays = rig.add(proof.prompts[2], use_prefix_cache=False)
    leaves = rig.add(proof.prompts[3], use_prefix_cache=False)
    rig.step()
    assert [item.sequence for item in rig.scheduler.held] == [stays, leaves]
    blocks = list(leaves.held_blocks())
    if way == "ended":
        rig.scheduler.end(leaves)
    else:
        assert rig.scheduler.pause_last() is leaves
    rig._poison(blocks)
    while rig.scheduler.held:
        rig.step()
    free = [block for block in blocks if rig.pool.state(block) is BlockState.FREE]
    assert free
    assert all(bool(k[free].isnan().all()) for k in rig.cache.k)
    rig.finish()
    check(proof, rig, (writer, 1), (stays, 2))
    if way == "paused":
        check(proof, rig, (leaves, 3))


def test_a_piece_that_all_have_left_is_given_up(
    proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Slow(proof, monkeypatch)
    writer, leaves = rig.write(proof), rig.add(proof.long)
    rig.step()
    rig.scheduler.end(leaves)
    rig.step()
    assert not rig._stepper._pieces.is_reading
    reader = rig.add(proof.prompts[3])
    rig.finish()
    check(proof, rig, (writer, 1), (reader, 3))


def test_no_memory_in_the_middle_of_a_piece(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Slow(proof, monkeypatch)
    writer, reader = rig.write(proof), rig.add(proof.long)
    rig.step()
    decoder = rig._stepper._pieces._decoder
    advance = type(decoder).advance

    def without_memory(self: Any, run: Any, cache: Any) -> None:
        if run.x.shape[0] > 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")
        advance(self, run, cache)

    monkeypatch.setattr(type(decoder), "advance", without_memory)
    rig.step()
    assert (rig.scheduler.held, reader.num_computed) == ([], 0)
    rig.finish()
    check(proof, rig, (writer, 1), (reader, 4))


# --- how much -----------------------------------------------------------------------------------


def make(num_layers: int = 30) -> Pieces:
    decoder: Any = SimpleNamespace(num_layers=num_layers)
    cache: Any = None
    return Pieces(decoder, cache, 16)


def test_a_step_is_so_many_times_as_long_as_without_prompts() -> None:
    pieces = make()
    assert pieces.budget_ms(Load(1, 1, 1)) == 0, "nothing is known"
    for _ in range(30):
        pieces.record(1, 10.0, was_reading=False)
    assert pieces.budget_ms(Load(1, 1, 0)) == pytest.approx((SLOWDOWN - 1) * 10)
    assert pieces.budget_ms(Load(1, 1, 0), gone_ms=12.0) == pytest.approx(SLOWDOWN * 10 - 12)
    for _ in range(30):
        pieces.record(1, 12.0, was_reading=True)
    assert pieces.budget_ms(Load(1, 1, 0)) == pytest.approx(SLOWDOWN * 10 - 12, abs=0.1)
    assert pieces.budget_ms(Load(1, 2, 2)) > 3 * pieces.budget_ms(Load(1, 1, 0)), (
        "many short prompts wait"
    )
    resumed = pieces.budget_ms(Load(1, 1, 0, resumed=1))
    assert resumed > RESUMED_WEIGHT / 2 * pieces.budget_ms(Load(1, 1, 0)), "who comes back"
    assert pieces.budget_ms(Load(8, 1, 1)) == 0, "of eight nothing is known"


def test_a_burst_is_where_most_wait_for_their_first_token() -> None:
    bursts = [(1, 4), (4, 4), (7, 25), (1, 9)]
    others = [(1, 1), (1, 3), (5, 4), (25, 7), (8, 0)]
    assert all(Pieces.is_burst(Load(writing, short, short)) for writing, short in bursts)
    assert not any(Pieces.is_burst(Load(writing, short, short)) for writing, short in others)


def test_prompts_never_stand_still_and_a_disturbed_step_counts_little() -> None:
    pieces = make()
    for _ in range(30):
        pieces.record(1, 10.0, was_reading=False)
    pieces.record(1, 500.0, was_reading=False)
    assert pieces.budget_ms(Load(1, 1, 0)) < (SLOWDOWN - 1) * 13.1
    for _ in range(60):
        pieces.record(1, 40.0, was_reading=True)
    grown = (SLOWDOWN / COLD - 1) * 40
    assert pieces.budget_ms(Load(1, 1, 0)) == pytest.approx(grown, abs=0.1), "a longer context"
    late_ms = DISTURBED * 40 - 1
    assert pieces.budget_ms(Load(1, 1, 0), gone_ms=late_ms) == pytest.approx(LEAST_SHARE * 40)
    assert pieces.budget_ms(Load(1, 1, 0), gone_ms=DISTURBED * 40 + 1) == 0


@pytest.mark.parametrize("num_layers", [1, 4, 30])
def test_a_layer_of_a_piece_fits_and_a_piece_ends(num_layers: int) -> None:
    pieces = make(num_layers)
    pieces._learn(0.05)
    for budget_ms in (1.0, 7.0, 70.0, 700.0):
        tokens = pieces.num_tokens(budget_ms)
        assert LEAST_TOKENS <= tokens <= MOST_TOKENS
        assert tokens * 0.05 <= budget_ms or tokens == LEAST_TOKENS
    assert pieces.num_tokens(7.0) == min(MOST_TOKENS, int(7 / 0.05 * min(1, 8 / num_layers)))
