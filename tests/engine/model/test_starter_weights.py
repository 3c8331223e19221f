"""The starter model's own tensors, unpacked by us, against the gguf package's reading of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.gguf_header import read_header
from engine.model.gguf import GgufWeights, hf_name, open_gguf
from engine.model.loader import LoadedModel, load_model


@pytest.fixture(scope="module")
def weights(starter_model) -> GgufWeights:
    return open_gguf(starter_model)


@pytest.fixture(scope="module")
def theirs(starter_model):
    import gguf

    return {tensor.name: tensor for tensor in gguf.GGUFReader(starter_model).tensors}


@pytest.fixture(scope="module")
def model(starter_model) -> LoadedModel:
    config = EngineConfig(precision="exact")
    return load_model(starter_model, config, torch.device("cpu"), lambda fraction, note: None)


def dequantised(tensor):
    """Their values, with Q and K rows back in Hugging Face's order."""
    from gguf.quants import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype("f4")
    heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
    if heads:
        pairs = values.reshape(heads, 32, 2, values.shape[1])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return values


def test_every_tensor_lies_where_the_gguf_package_finds_it(starter_model, theirs):
    header = read_header(starter_model)
    assert set(header.tensors) == set(theirs)
    for name, info in header.tensors.items():
        assert info.offset == theirs[name].data_offset
        assert info.num_bytes == theirs[name].n_bytes
        assert info.shape == tuple(reversed(theirs[name].shape.tolist()))


def test_the_types_it_holds(weights):
    kinds = sorted({info.ggml_type for info in weights.infos.values()})
    assert kinds == ["F32", "Q4_1", "Q8_0"]


@pytest.mark.parametrize("layer", [0, 13, 29])
def test_every_tensor_of_a_layer(weights, theirs, layer):
    names = [name for name in theirs if name.startswith(f"blk.{layer}.")]
    assert len(names) == 9
    for name in names:
        got = weights.load(hf_name(name, weights.config))
        np.testing.assert_array_equal(got.numpy(), dequantised(theirs[name]), err_msg=name)


def test_embedding_and_final_norm(weights, theirs):
    for name in ("token_embd.weight", "output_norm.weight"):
        got = weights.load(hf_name(name, weights.config))
        assert got.dtype == torch.float32
        np.testing.assert_array_equal(got.numpy(), dequantised(theirs[name]))


def test_shape_of_the_model(weights):
    shape = weights.config
    assert (shape.num_layers, shape.hidden_size, shape.intermediate_size) == (30, 576, 1536)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (9, 3, 64)
    assert (shape.vocab_size, shape.context_tokens) == (49_152, 8192)
    assert shape.rope_theta == 100_000.0
    assert shape.tied_head


def test_head_is_the_embedding(model, weights, paged_runner):
    """Logits are products with the embedding's own rows: those of two tokens, by hand."""
    assert model.weights_bytes == 4 * model.num_parameters
    runner = paged_runner(model)
    seen = []
    head = model.decoder._head
    model.decoder._head = lambda x: seen.append(x.clone()) or head(x)
    try:
        logits = runner.read(runner.add([1, 4093, 198, 2683]), 4)
    finally:
        model.decoder._head = head
    rows = weights.load("model.embed_tokens.weight")[[0, 31, 49_151]]
    torch.testing.assert_close(logits[[0, 31, 49_151]], rows @ seen[0][0], rtol=1e-4, atol=1e-4)


def test_its_name(model):
    assert model.name == "SmolLM2-135M-Instruct"
