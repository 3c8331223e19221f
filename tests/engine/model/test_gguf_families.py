"""GGUF files of the newer families: written by the converters' rules, run as their own folders.

Each tiny random model is saved as safetensors by transformers and laid out as a GGUF here. Both
loads must give the same logits after a prompt that is longer than every window.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError
from engine.model.families import IN_GGUF
from tests.engine.model.gguf_cases import (
    CASES,
    LAYER,
    PROMPT,
    RMS,
    VOCAB,
    WINDOW,
    as_gguf,
    make_model,
)


@pytest.fixture
def put(tmp_path, gguf_maker):
    def write(metadata, tensors):
        path = tmp_path / "tiny.gguf"
        path.write_bytes(gguf_maker.file(metadata, tensors))
        return path

    return write


def logits_of(model, paged_runner):
    """[3, vocab]: after a few tokens, at the window's edge, and well past it."""
    runner = paged_runner(model, block_tokens=7)
    ends = (5, WINDOW + 1, len(PROMPT))
    return torch.stack([runner.read(runner.add(PROMPT[:end]), 17) for end in ends])


@pytest.mark.parametrize("name", CASES)
def test_same_logits_as_the_folder(name, tmp_path, load, paged_runner, put):
    case = CASES[name]
    model = make_model(case, tmp_path / "model")
    folder = load(tmp_path / "model")
    expected = logits_of(folder, paged_runner)
    file = load(put(*as_gguf(case, tmp_path / "model")))
    got = logits_of(file, paged_runner)
    largest = expected.abs().max()
    assert float((got - expected).abs().max() / largest) < 1e-5
    assert file.num_parameters == folder.num_parameters
    assert file.weights_bytes == folder.weights_bytes
    assert file.context_tokens == folder.context_tokens
    with torch.inference_mode():
        theirs = model(torch.tensor([PROMPT])).logits[0, -1]
    assert float((got[-1] - theirs).abs().max() / largest) < 1e-4


def test_every_family_is_proved():
    proved = {case.arch for case in CASES.values()}
    assert set(IN_GGUF) - proved == {"llama", "mistral", "qwen2", "qwen3", "smollm3"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(case name) -> (metadata, tensors), each made once."""
    known: dict[str, Any] = {}

    def make(name):
        if name not in known:
            folder = tmp_path_factory.mktemp("made")
            make_model(CASES[name], folder)
            known[name] = as_gguf(CASES[name], folder)
        metadata, tensors = known[name]
        return dict(metadata), dict(tensors)

    return make


@pytest.mark.parametrize(
    ("name", "changes", "kind", "words"),
    [
        ("granite", {"attention.scale": None}, BadFileError, "attention.scale"),
        ("granite", {"logit_scale": None}, BadFileError, "logit_scale"),
        ("granite", {"rope.scaling.finetuned": False}, UnsupportedModelError, "finetuned"),
        ("granite", {"expert_count": 8}, UnsupportedModelError, "expert_count"),
        ("cohere2", {"logit_scale": None}, BadFileError, "logit_scale"),
        ("cohere2", {"attention.sliding_window": None}, BadFileError, "sliding_window"),
        ("olmo2", {"attention.sliding_window": 16}, UnsupportedModelError, "sliding_window"),
        ("gemma2", {"attention.value_length": 8}, UnsupportedModelError, "different sizes"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, BadFileError, "attn_logit_softcapping"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, UnsupportedModelError, "softcapping"),
        ("gemma3", {"rope.scaling.type": "yarn"}, BadFileError, "scaling.factor"),
        ("gemma3", {"rope.scaling.type": "longrope"}, UnsupportedModelError, "longrope"),
        ("olmo2 yarn", {"rope.scaling.original_context_length": None}, BadFileError, "original"),
        ("olmo2 yarn", {"rope.scaling.yarn_log_multiplier": 0.1}, UnsupportedModelError, "log"),
        ("olmo2 yarn", {"rope.freq_base": 1.0}, BadFileError, "freq_base"),
        ("gemma3", {"attention.sliding_window_pattern": 0}, BadFileError, "pattern"),
        ("phi3", {"attention.sliding_window": None}, BadFileError, "sliding_window"),
        ("phi3", {"rope.scaling.attn_factor": 1.2}, UnsupportedModelError, "attn_factor"),
        ("phi3 longrope", {"rope.scaling.attn_factor": None}, BadFileError, "attn_factor"),
        (
            "phi3 longrope",
            {"rope.scaling.original_context_length": None},
            BadFileError,
            "original_context_length",
        ),
        ("stablelm", {LAYER: None, RMS: 1e-5}, BadFileError, "layer_norm_epsilon"),
        ("starcoder2", {"attention.sliding_window": -4}, BadFileError, "sliding_window"),
    ],
)
def test_what_is_not_run_is_refused_by_name(
    name, changes, kind, words, made, put, load, check_sentence
):
    metadata, tensors = made(name)
    for key, value in changes.items():
        metadata[f"{CASES[name].arch}.{key}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    path = put(metadata, tensors)
    with pytest.raises(kind) as caught:
        load(path)
    check_sentence(caught.value, "tiny.gguf", words)


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_needed(name, made, put, load):
    metadata, whole = made(name)
    metadata[f"{CASES[name].arch}.vocab_size"] = VOCAB
    free = ("output.weight", "rope_factors_long.weight")
    layers = [n for n in whole if n.startswith("blk.2.")]
    for left_out in [n for n in whole if not n.startswith("blk.")] + layers:
        if left_out not in free:
            path = put(metadata, {n: t for n, t in whole.items() if n != left_out})
            with pytest.raises((MissingWeightsError, UnsupportedModelError)):
                load(path)


def test_contexts_that_end_where_the_file_no_longer_says_enough(made, put, load):
    metadata, tensors = made("starcoder2")
    metadata["starcoder2.context_length"] = 16_384
    assert load(put(metadata, tensors)).context_tokens == 4096
    metadata["starcoder2.attention.sliding_window"] = 4096
    assert load(put(metadata, tensors)).context_tokens == 16_384
    assert load(put(*made("phi3 longrope"))).context_tokens == 64


@pytest.mark.parametrize(("context", "window"), [(4096, 2047), (131_072, 0)])
def test_the_first_phi3_files_do_not_say_their_window(context, window, made, put, load):
    metadata, tensors = made("phi3")
    metadata["phi3.context_length"] = context
    del metadata["phi3.attention.sliding_window"]
    assert load(put(metadata, tensors)).decoder.config.windows == (window,) * 3


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_scale_of_the_27b_models(arch, layers, made, put):
    """These two scale attention by the hidden size over the heads; no metadata says so."""
    from engine.model.gguf_config import from_gguf

    metadata, tensors = made(arch)
    shapes = {name: values.shape for name, values in tensors.items()}
    assert from_gguf(metadata, shapes, "x").scale == pytest.approx(24**-0.5)
    metadata[f"{arch}.block_count"] = layers
    assert from_gguf(metadata, shapes, "x").scale == pytest.approx((48 / 6) ** -0.5)


def test_damaged_factors(made, put, load, check_sentence):
    metadata, tensors = made("phi3 longrope")
    for damaged in ([1.0, 2.0], [1.0, 0.0, 1.0, 1.0], [1.0, math.nan, 1.0, 1.0]):
        tensors["rope_factors_short.weight"] = np.array(damaged, "f4")
        with pytest.raises(BadFileError) as caught:
            load(put(metadata, tensors))
        check_sentence(caught.value, "tiny.gguf", "rope_factors_short")


def test_norms_of_heads_in_another_shape(made, put, load):
    metadata, tensors = made("stablelm parallel")
    name = "blk.1.attn_q_norm.weight"
    for wrong in (tensors[name].T, tensors[name][:-1], tensors[name].reshape(-1)):
        with pytest.raises(MissingWeightsError):
            load(put(metadata, {**tensors, name: np.ascontiguousarray(wrong)}))
