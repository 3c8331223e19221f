"""Layers as one program: number for number what the same operations give one by one."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.kv_cache import KVSpec
from engine.layer_groups import group_layers
from engine.model.codes import Codes
from engine.model.config import DecoderConfig, from_hf
from engine.model.decoder import Decoder
from engine.model.layout import expected_shapes
from kernels.dispatch import choose
from tests.engine.model.conftest import PagedRunner

pytest.importorskip("kernels.cpu.layers")

CPU = torch.device("cpu")
TINY = {
    "hidden_size": 192, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 160, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
QWEN2 = {**TINY, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64}
PROGRAMS: dict[str, dict[str, Any]] = {
    "plain": {"model_type": "llama", **TINY},
    "biases": {"model_type": "qwen2", **QWEN2},
    "norms of heads": {"model_type": "qwen3", **TINY, "head_dim": 32},
    "window": {"model_type": "mistral", **TINY, "sliding_window": 24},
    "two groups": {
        "model_type": "qwen2", **QWEN2, "use_sliding_window": True, "sliding_window": 24,
        "max_window_layers": 1,
    },
    "odd groups, heads of 96": {
        "model_type": "llama", **TINY, "num_attention_heads": 7, "num_key_value_heads": 1,
        "head_dim": 96,
    },
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "norms behind": {
        "model_type": "gemma2", **TINY, "sliding_window": 24, "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gelu": {"model_type": "llama", **TINY, "hidden_act": "gelu"},
    "half of a head turned": {"model_type": "llama", **TINY, "head_dim": 48},
}  # fmt: skip


class Source:
    """Random weights; every matrix is codes, of layers in turn 4 and 8 bits."""

    name = "tiny"

    def __init__(self, config: DecoderConfig) -> None:
        self.shapes = expected_shapes(config)

    def load(self, name: str) -> torch.Tensor:
        noise = torch.Generator().manual_seed(sum(name.encode()))
        shape = self.shapes[name]
        return torch.rand(shape, generator=noise) + 0.5 if len(shape) == 1 else torch.zeros(shape)

    def load_codes(self, name: str) -> Codes | None:
        noise = torch.Generator().manual_seed(sum(name.encode()))
        rows, columns = self.shapes[name]
        bits = 8 if "layers.1" in name and "down" in name else 4
        shape = (rows, columns // 32)
        codes = torch.randint(0, 256, (*shape, 4 * bits), generator=noise).to(torch.uint8)
        scale = ((torch.rand(shape, generator=noise) + 0.5) / 8 / 2**bits).half()
        return Codes(bits, codes, scale, (-scale.float() * 2 ** (bits - 1)).half())


def make(settings: dict[str, Any]) -> Decoder:
    config = from_hf(settings, "tiny")
    return Decoder(
        Source(config), config, choose(CPU, torch.bfloat16, "cpu"), "fp32", CPU, keeps_codes=True,
        kv_dtype=torch.bfloat16,
    )  # fmt: skip


def runner(decoder: Decoder) -> PagedRunner:
    config = decoder.config
    kv = KVSpec(
        group_layers(config.windows), config.num_kv_heads, config.head_dim, config.head_dim,
        torch.bfloat16,
    )  # fmt: skip
    model: Any = SimpleNamespace(kv=kv, vocab_size=config.vocab_size, forward=decoder.forward)
    return PagedRunner(model)


def drive(decoder: Decoder) -> list[torch.Tensor]:
    """Chunks alone and beside single rows, several at once, past windows and what is split."""
    rig = runner(decoder)
    lengths = (700, 33, 5, 1)
    chance = torch.Generator().manual_seed(3)
    sequences = [
        rig.add(torch.randint(0, 160, (n + 40,), generator=chance).tolist()) for n in lengths
    ]
    plans = [
        {sequences[0]: 300},
        {sequences[0]: 399, sequences[1]: 30},
        {sequences[0]: 1, sequences[1]: 1, sequences[2]: 4, sequences[3]: 1},
        *[dict.fromkeys(sequences, 1)] * 3,
        {sequences[1]: 1},
        {sequences[1]: 1, sequences[0]: 1},
    ]
    return [logits for plan in plans for logits in rig.step(plan).values()]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_logit_is_that_of_single_operations(kind: str) -> None:
    decoder = make(PROGRAMS[kind])
    assert decoder.is_program
    got = drive(decoder)
    decoder._program = None
    right = drive(decoder)
    assert all(bool(logits.isfinite().all()) for logits in right)
    assert all(torch.equal(a, b) for a, b in zip(got, right, strict=True))


@pytest.mark.parametrize("kind", OTHERS)
def test_what_it_does_not_know_goes_one_by_one(kind: str) -> None:
    decoder = make(OTHERS[kind])
    assert not decoder.is_program
    assert all(bool(logits.isfinite().all()) for logits in drive(decoder))


def test_layer_by_layer_with_other_steps_between() -> None:
    """What a pass has left in memory is its own, though others work in between."""
    decoder = make(PROGRAMS["biases"])
    seen: list[Any] = []
    rig = runner(decoder)
    forward = decoder.forward

    def between(batch: Any, cache: Any) -> torch.Tensor:
        run = decoder.begin(batch)
        while run.logits is None:
            decoder.advance(run, cache)
            seen.append(forward(seen_batch, other))
        return run.logits

    other = runner(decoder)
    first = other.add(list(range(90)))
    batches: list[Any] = []
    other.model.forward = lambda batch, cache: batches.append(batch) or forward(batch, cache)
    other.step({first: 70})
    seen_batch = batches[0]
    one = rig.add(list(range(100, 150)))
    plain = rig.step({one: 50})[one]
    rig.model.forward = between
    two = rig.add(list(range(100, 150)))
    assert torch.equal(rig.step({two: 50})[two], plain)
    assert all(torch.equal(logits, seen[0]) for logits in seen)


def test_no_row_wanted() -> None:
    decoder = make(PROGRAMS["plain"])
    rig = runner(decoder)
    one = rig.add(list(range(40)))
    forward = decoder.forward

    def without(batch: Any, cache: Any) -> torch.Tensor:
        none = dataclasses.replace(batch, logit_rows=torch.empty(0, dtype=torch.int64))
        assert forward(none, cache).shape == (0, 160)
        return forward(batch, cache)

    rig.model.forward = without
    assert bool(rig.step({one: 40})[one].isfinite().all())
