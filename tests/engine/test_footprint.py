"""The arithmetic of memory against what is truly allocated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.footprint import (
    block_bytes,
    blocks_for,
    blocks_in,
    kv_bytes,
    kv_bytes_per_token,
    weights_bytes,
)
from engine.kv_cache import KVCache, KVSpec
from engine.layer_groups import group_layers
from engine.model.linear import can_run_packed, make_linear
from engine.model.loader import load_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("layers", "blocks", "block_tokens", "heads", "dim"),
    [(1, 1, 1, 1, 1), (3, 7, 16, 2, 40), (30, 5, 7, 3, 64)],
)
def test_kv_is_what_the_pool_allocates(layers, blocks, block_tokens, heads, dim, dtype):
    spec = KVSpec(group_layers([0] * layers), heads, dim, dim, dtype)
    cache = KVCache(spec, blocks, block_tokens, CPU)
    allocated = sum(x.untyped_storage().nbytes() for x in (*cache.k, *cache.v))
    name = str(dtype).removeprefix("torch.")
    per_token = kv_bytes_per_token(layers, heads, dim, name)
    assert blocks * block_bytes(per_token, block_tokens) == allocated
    assert kv_bytes(blocks * block_tokens, per_token, block_tokens) == allocated
    assert blocks_in(allocated, per_token, block_tokens) == blocks
    assert blocks_in(allocated - 1, per_token, block_tokens) == blocks - 1


@given(tokens=st.integers(0, 10**7), per_token=st.integers(1, 10**6), size=st.integers(1, 256))
def test_blocks_hold_their_tokens_and_not_a_block_more(tokens, per_token, size):
    blocks = blocks_for(tokens, size)
    assert blocks * size >= tokens
    assert (blocks - 1) * size < tokens or blocks == 0
    assert kv_bytes(tokens, per_token, size) >= tokens * per_token
    assert blocks_in(kv_bytes(tokens, per_token, size), per_token, size) == blocks


def test_no_memory_holds_no_block():
    assert blocks_in(0, 100, 16) == 0
    assert blocks_in(-5, 100, 16) == 0
    assert blocks_in(1599, 100, 16) == 0


def tensors_of(thing, seen):
    """Every tensor that hangs on an object, each storage once."""
    if isinstance(thing, torch.Tensor):
        if thing.layout == torch.strided:
            seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, list | tuple):
        for item in thing:
            tensors_of(item, seen)
    elif hasattr(thing, "__slots__") or hasattr(thing, "__dict__"):
        names = [*getattr(thing, "__slots__", ()), *getattr(thing, "__dict__", ())]
        if type(thing).__module__.startswith("engine.model."):
            for name in names:
                tensors_of(getattr(thing, name, None), seen)
    return seen


MORE = {
    "tied": ("llama", {}),
    "own head": ("llama", {"output.weight": (5, 8)}),
    "biases": (
        "qwen2",
        {f"blk.0.attn_{part}.bias": (rows,) for part, rows in (("q", 8), ("k", 4), ("v", 4))},
    ),
    "norms of heads": ("qwen3", {f"blk.0.attn_{part}_norm.weight": (4,) for part in "qk"}),
}


@pytest.mark.parametrize("kind", MORE)
def test_weights_are_what_a_model_allocates(gguf_maker, kind, tmp_path):
    arch, more = MORE[kind]
    metadata, tensors = gguf_maker.tiny()
    metadata = {key.replace("llama.", f"{arch}."): value for key, value in metadata.items()}
    metadata["general.architecture"] = arch
    tensors |= {name: np.ones(shape, "f4") for name, shape in more.items()}
    (tmp_path / "m.gguf").write_bytes(gguf_maker.file(metadata, tensors))
    config = EngineConfig(precision="exact")
    model = load_model(tmp_path / "m.gguf", config, CPU, lambda fraction, note: None)
    allocated = sum(tensors_of(model.decoder, {}).values())
    frequencies = 4 * model.decoder.config.rotary_dim // 2  # of the rope: no weight
    assert weights_bytes(model.num_parameters, "fp32") == model.weights_bytes
    assert model.weights_bytes == allocated - frequencies


NUM_HEAD, NUM_NORMS = 49_152 * 576, 61 * 576


def test_starter_in_fp32(starter_model):
    config = EngineConfig(precision="exact")
    model = load_model(starter_model, config, CPU, lambda fraction, note: None)
    assert model.num_parameters == 134_515_008
    assert weights_bytes(model.num_parameters, model.storage, NUM_HEAD) == model.weights_bytes


def test_starter_as_its_file_holds_it(starter_model):
    """Layers in 4 bits, the tied embedding and head once in 8."""
    model = load_model(starter_model, EngineConfig(), CPU, lambda fraction, note: None)
    if model.storage == "4-bit":
        layers = model.num_parameters - NUM_HEAD - NUM_NORMS
        expected = weights_bytes(layers, "4-bit") + weights_bytes(NUM_HEAD, "8-bit")
        assert model.weights_bytes == expected + 4 * NUM_NORMS
    else:  # a CPU that multiplies bytes no sooner than floats
        expected = weights_bytes(model.num_parameters, model.storage, NUM_HEAD)
        assert expected == pytest.approx(model.weights_bytes, rel=1e-3)


@pytest.mark.skipif(not can_run_packed(), reason="this torch has no packed product")
def test_packed_weights_take_what_plain_ones_take():
    """Of the sizes that models have; odd ones are filled up, and say so."""
    for rows, columns in ((960, 576), (3072, 576), (576, 1536), (192, 576)):
        product = make_linear(torch.zeros(rows, columns), None, "bf16 packed", CPU)
        assert product.num_bytes == weights_bytes(rows * columns, "bf16 packed")
    odd = make_linear(torch.zeros(131, 48), None, "bf16 packed", CPU)
    assert odd.num_bytes > weights_bytes(131 * 48, "bf16 packed")


def test_unknown_storage():
    with pytest.raises(KeyError):
        weights_bytes(100, "int4")
