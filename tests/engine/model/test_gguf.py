"""GGUF weights: unpacked as the gguf package does, run as the model they came from."""

from __future__ import annotations

import functools
import math

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import BadFileError, MissingWeightsError, ModelError, UnsupportedModelError
from engine.gguf_header import GGML_TYPES, TensorInfo
from engine.model.gguf import hf_name, open_gguf, unpack
from engine.model.loader import load_model
from engine.model.safetensors import open_safetensors

ACCEPTED = [
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q4_K",
    "Q5_K",
    "Q2_K",
    "Q3_K",
    "Q6_K",
    "IQ4_XS",
    "IQ4_NL",
]
NUMBERS = {name: number for number, (name, _, _) in GGML_TYPES.items()}


@pytest.fixture
def put(tmp_path, gguf_maker):
    """put(metadata, tensors) -> path of tiny.gguf."""

    def write(metadata, tensors):
        path = tmp_path / "tiny.gguf"
        path.write_bytes(gguf_maker.file(metadata, tensors))
        return path

    return write


# --- unpacking ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("name", ACCEPTED)
def test_random_blocks_equal_the_gguf_package(name, rows):
    """Any bytes at all: scales that are infinite, negative or not numbers come out the same."""
    _, block_values, block_bytes = GGML_TYPES[NUMBERS[name]]
    columns = 5 * max(block_values, 32)
    num_bytes = rows * columns // block_values * block_bytes
    data = np.random.default_rng(rows).integers(0, 256, num_bytes, dtype=np.uint8)
    kind = gguf.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data.reshape(rows, -1), kind).astype("f4")
        got = unpack(data, TensorInfo("t", (rows, columns), name, 0, num_bytes))
    assert got.dtype == torch.float32
    assert got.shape == (rows, columns)
    np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_rows_come_back_near_what_they_were(name):
    values = np.random.default_rng(0).normal(size=(5, 96)).astype("f4")
    kind = gguf.GGMLQuantizationType[name]
    data = np.ascontiguousarray(gguf.quants.quantize(values, kind)).view(np.uint8).reshape(-1)
    got = unpack(data, TensorInfo("t", (5, 96), name, 0, data.nbytes)).numpy()
    steps = {"F16": 2048, "BF16": 256, "Q8_0": 127, "Q5_0": 15, "Q5_1": 15}.get(name, 7)
    assert np.abs(got - values).max() <= np.abs(values).max() / steps
    assert not np.array_equal(got, values)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "F32"])
@pytest.mark.parametrize("shape", [(64,), (2, 3, 32), (2, 1, 3, 64)])
def test_unpack_keeps_the_shape(name, shape):
    _, block_values, block_bytes = GGML_TYPES[NUMBERS[name]]
    num_bytes = math.prod(shape) // block_values * block_bytes
    got = unpack(np.zeros(num_bytes, np.uint8), TensorInfo("t", shape, name, 0, num_bytes))
    assert got.shape == shape
    assert not got.any()


@pytest.mark.parametrize("number", sorted(GGML_TYPES))
def test_a_type_is_unpacked_or_refused_by_name(number, gguf_maker, put, check_sentence):
    name, block_values, block_bytes = GGML_TYPES[number]
    metadata, tensors = gguf_maker.tiny()
    columns = max(8, block_values)
    raw = bytes(5 * columns // block_values * block_bytes)
    tensors["token_embd.weight"] = ((columns, 5), number, raw)
    path = put(metadata, tensors)
    if name in ACCEPTED:
        assert open_gguf(path).load("model.embed_tokens.weight").shape == (5, columns)
        return
    with pytest.raises(UnsupportedModelError) as caught:
        open_gguf(path)
    check_sentence(caught.value, "tiny.gguf", "token_embd.weight", name, "Q8_0")


# --- names and order ----------------------------------------------------------------------------


def test_names(gguf_maker, put):
    path = put(*gguf_maker.tiny())
    name = functools.partial(hf_name, config=open_gguf(path).config)
    assert name("blk.0.attn_q.weight") == "model.layers.0.self_attn.q_proj.weight"
    assert name("blk.417.ffn_down.bias") == "model.layers.417.mlp.down_proj.bias"
    assert name("output.weight") == "lm_head.weight"
    for strange in ("blk.00.attn_q.weight", "blk.\u0663.attn_q.weight", "blk.1.attn_x.weight", ""):
        assert name(strange) == strange


@pytest.mark.parametrize("rotary_dim", [4, 8, 12])
def test_scores_are_those_of_neighbouring_pairs(put, gguf_maker, rotary_dim):
    """GGUF's llama turns neighbours (0, 1), (2, 3)...; after our reordering halves are turned.

    Q.K of every pair of positions must stay, also where only the first part of a head is turned.
    """
    head_dim, num_heads, columns = 12, 2, 24
    random = np.random.default_rng(rotary_dim)
    metadata, tensors = gguf_maker.tiny()
    metadata |= {
        "llama.embedding_length": columns,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": rotary_dim,
    }
    q = random.normal(size=(num_heads * head_dim, columns)).astype("f4")
    k = random.normal(size=(head_dim, columns)).astype("f4")
    tensors |= {"blk.0.attn_q.weight": q, "blk.0.attn_k.weight": k}
    weights = open_gguf(put(metadata, tensors))
    ours = [
        weights.load(f"model.layers.0.self_attn.{part}_proj.weight").numpy() for part in ("q", "k")
    ]

    x = random.normal(size=(5, columns))
    angles = np.outer(np.arange(5), 100.0 ** -(np.arange(0, rotary_dim, 2) / rotary_dim))
    turn = np.exp(1j * angles)[:, None]  # [5, 1, rotary_dim / 2]

    def scores(pair, first, second):
        turned = []
        for weight in pair:
            heads = (x @ weight.T).reshape(5, -1, head_dim)
            z = (heads[..., first] + 1j * heads[..., second]) * turn
            turned.append(np.concatenate((z.real, z.imag, heads[..., rotary_dim:]), -1))
        return np.einsum("ihd,jd->hij", turned[0], turned[1][:, 0])

    even, half = np.arange(0, rotary_dim, 2), np.arange(rotary_dim // 2)
    expected = scores((q, k), even, even + 1)
    np.testing.assert_allclose(scores(ours, half, half + rotary_dim // 2), expected, rtol=1e-5)
    assert not np.allclose(scores((q, k), half, half + rotary_dim // 2), expected)


# --- whole models -------------------------------------------------------------------------------

PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def as_gguf(folder):
    """A Hugging Face folder as GGUF metadata and tensors, by the rules of GGUF's converters."""
    source = open_safetensors(folder, "tiny")
    shape = source.config
    arch = "llama" if shape.architecture == "mistral" else shape.architecture
    permuted = arch in ("llama", "smollm3")
    metadata = {
        "general.architecture": arch,
        f"{arch}.block_count": shape.num_layers,
        f"{arch}.context_length": shape.context_tokens,
        f"{arch}.embedding_length": shape.hidden_size,
        f"{arch}.feed_forward_length": shape.intermediate_size,
        f"{arch}.attention.head_count": shape.num_heads,
        f"{arch}.attention.head_count_kv": shape.num_kv_heads,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": shape.norm_eps,
        f"{arch}.rope.freq_base": shape.rope_theta,
        f"{arch}.rope.dimension_count": shape.head_dim,
    }
    if shape.rope_scaling.kind == "linear":
        metadata[f"{arch}.rope.scaling.type"] = "linear"
        metadata[f"{arch}.rope.scaling.factor"] = shape.rope_scaling.factor
    if any(shape.windows):
        metadata[f"{arch}.attention.sliding_window"] = shape.windows[0]
    tensors = {}
    for name in source.shapes:
        values = source.load(name).float().numpy()
        if name not in TOP:
            _, _, layer, part = name.split(".", 3)
            part, _, kind = part.rpartition(".")
            heads = {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads}.get(PARTS[part])
            if permuted and heads:
                halves = values.reshape(heads, 2, shape.head_dim // 2, *values.shape[1:])
                values = halves.swapaxes(1, 2).reshape(values.shape)
            tensors[f"blk.{layer}.{PARTS[part]}.{kind}"] = values
        elif not (shape.tied_head and name == "lm_head.weight"):
            tensors[TOP[name]] = values
    return metadata, tensors


def logits_of(model, paged_runner):
    runner = paged_runner(model, block_tokens=7)
    tokens = [3 + 7 * i % 120 for i in range(41)]
    return runner.read(runner.add(tokens), 17)


@pytest.mark.parametrize(
    "kind", ["llama", "llama-tied-linear", "mistral", "qwen2", "qwen3", "smollm3"]
)
def test_families_run_from_gguf_as_from_their_folder(
    kind, tiny_folder, tmp_path, load, paged_runner, put
):
    tiny_folder(kind, tmp_path / "model")
    folder = load(tmp_path / "model")
    file = load(put(*as_gguf(tmp_path / "model")))
    expected = logits_of(folder, paged_runner)
    torch.testing.assert_close(logits_of(file, paged_runner), expected, rtol=1e-4, atol=1e-4)
    assert file.num_parameters == folder.num_parameters
    assert file.weights_bytes == folder.weights_bytes


def test_llama3_positions_come_as_a_tensor(tiny_folder, tmp_path, load, paged_runner, put):
    """Converters write llama3's stretching as divisors of the frequencies."""
    tiny_folder("llama-bias-llama3", tmp_path / "model")
    metadata, tensors = as_gguf(tmp_path / "model")
    frequencies = 500.0 ** -(np.arange(0, 8, 2) / 8)
    waves = 2 * math.pi / frequencies
    blend = np.clip((32 / waves - 1.0) / 3.0, 0, 1)  # low 1, high 4, original context 32
    factors = 1 / ((1 - blend) / 4.0 + blend)
    expected = logits_of(load(tmp_path / "model"), paged_runner)
    plain = load(put(metadata, tensors))
    tensors["rope_freqs.weight"] = factors
    stretched = load(put(metadata, tensors))
    close = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(logits_of(stretched, paged_runner), expected, **close)
    assert not torch.allclose(logits_of(plain, paged_runner), expected, **close)


def test_tied_head_is_the_embedding(gguf_maker, put, load, paged_runner):
    """No output.weight: logits are those of a file that repeats the embedding, memory is less."""
    metadata, tensors = gguf_maker.tiny()
    tied = load(put(metadata, tensors))
    tensors["output.weight"] = tensors["token_embd.weight"]
    written = load(put(metadata, tensors))
    results = []
    for model in (tied, written):
        runner = paged_runner(model)
        results.append(runner.read(runner.add([1, 4, 0, 2]), 3))
    assert torch.equal(*results)
    assert written.weights_bytes - tied.weights_bytes == 5 * 8 * 4
    tensors["output.weight"] = -tensors["token_embd.weight"]
    runner = paged_runner(load(put(metadata, tensors)))
    assert torch.equal(runner.read(runner.add([1, 4, 0, 2]), 3), -results[0])


# --- refusals -----------------------------------------------------------------------------------


@pytest.fixture
def refuse(put, check_sentence, cheap, load):
    """refuse(metadata, tensors, error class, words): loading is refused before any work."""

    def check(metadata, tensors, kind, *words):
        path = put(metadata, tensors)
        with cheap(), pytest.raises(ModelError) as caught:
            load(path)
        assert type(caught.value) is kind, caught.value
        check_sentence(caught.value, "tiny.gguf", *words)

    return check


def test_vocabulary_alone(gguf_maker, refuse):
    refuse(gguf_maker.tiny()[0], {}, BadFileError, "no weights")


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.ffn_up.weight"])
def test_a_missing_tensor_is_named(gguf_maker, put, refuse, name):
    metadata, tensors = gguf_maker.tiny()
    theirs = hf_name(name, open_gguf(put(metadata, tensors)).config)
    metadata["llama.vocab_size"] = 5
    del tensors[name]
    refuse(metadata, tensors, MissingWeightsError, theirs)


def test_every_tensor_is_needed(gguf_maker, put, load):
    metadata, whole = gguf_maker.tiny()
    metadata["llama.vocab_size"] = 5
    for name in whole:
        tensors = {other: values for other, values in whole.items() if other != name}
        with pytest.raises(MissingWeightsError, match="lacks the tensor"):
            load(put(metadata, tensors))


def test_every_shape_is_checked(gguf_maker, put, load):
    metadata, whole = gguf_maker.tiny()
    for name, values in whole.items():
        for wrong in (values[:-1], values[None], np.zeros((*values.shape[:-1], 9))):
            with pytest.raises(ModelError):
                load(put(metadata, {**whole, name: wrong}))
    refused = {**whole, "blk.0.attn_k.weight": whole["blk.0.attn_k.weight"].T}
    with pytest.raises(MissingWeightsError, match=r"\[8, 4\].*\[4, 8\]"):
        load(put(metadata, refused))


def test_more_tokens_than_rows(gguf_maker, refuse):
    metadata, tensors = gguf_maker.tiny()
    metadata["tokenizer.ggml.tokens"] = list("abcdef")
    refuse(metadata, tensors, BadFileError, "6 tokens", "weights for 5")


@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "blk.0.attn_q.bias", "v.patch.weight"])
def test_tensors_that_nobody_would_read(gguf_maker, refuse, name):
    metadata, tensors = gguf_maker.tiny()
    tensors[name] = np.ones(8)
    refuse(metadata, tensors, MissingWeightsError)


def test_a_tensor_under_two_names(gguf_maker, refuse):
    metadata, tensors = gguf_maker.tiny()
    tensors["model.norm.weight"] = np.ones(8)
    refuse(metadata, tensors, BadFileError, "two names")


@pytest.mark.parametrize(
    "factors", [[1.0], [1.0, 0.0], [1.0, -2.0], [1.0, math.nan], [1.0, math.inf], [[1.0, 1.0]]]
)
def test_damaged_rope_factors(gguf_maker, refuse, factors):
    metadata, tensors = gguf_maker.tiny()
    tensors["rope_freqs.weight"] = np.array(factors)
    refuse(metadata, tensors, BadFileError, "rope_freqs.weight")


def test_file_cut_after_the_check(gguf_maker, put, check_sentence):
    path = put(*gguf_maker.tiny())
    weights = open_gguf(path)
    with open(path, "r+b") as file:
        file.truncate(weights.infos["model.layers.0.mlp.down_proj.weight"].offset + 9)
    with pytest.raises(BadFileError) as caught:
        weights.load("model.layers.0.mlp.down_proj.weight")
    check_sentence(caught.value, "tiny.gguf", "shorter")
    path.unlink()
    with pytest.raises(BadFileError) as caught:
        weights.load("model.norm.weight")
    check_sentence(caught.value, "tiny.gguf")


# --- chance -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
@settings(max_examples=150, deadline=5000)  # the first one imports the kernels
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 7)), min_size=1, max_size=3)
)
def test_flipped_bits_load_or_are_refused(
    gguf_maker, check_sentence, tmp_path_factory, seed, flips
):
    metadata, tensors = gguf_maker.tiny()
    raw = bytearray(gguf_maker.file(metadata, tensors))
    for place, bit in flips:
        raw[place % len(raw)] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(raw)
    outcome = None
    try:
        load_model(path, EngineConfig(precision="exact"), torch.device("cpu"), lambda *_: None)
    except ModelError as error:
        outcome = error
    if outcome is not None:
        check_sentence(outcome, "flipped.gguf")
