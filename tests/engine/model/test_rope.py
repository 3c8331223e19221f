"""Rotary frequencies and tables against transformers' own."""

from __future__ import annotations

import math

import pytest
import torch

from engine.errors import BadFileError, UnsupportedModelError
from engine.model.rope import (
    Rope,
    RopeScaling,
    inverse_frequencies,
    scaling_from_gguf,
    scaling_from_hf,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048}
KINDS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3-odd": {
        **LLAMA3,
        "factor": 32.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 6.5,
        "original_max_position_embeddings": 100,
    },
    "yarn": YARN,
    "yarn-odd": {**YARN, "factor": 3.5, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-said": {**YARN, "attention_factor": 1.25},
}


def transformers_rotary(parameters, head_dim, theta):
    """transformers' rotary module of a Llama with those parameters."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=16384,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    return config, LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("theta", [500.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [2, 6, 40, 64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_transformers(kind, head_dim, theta):
    config, theirs = transformers_rotary(KINDS[kind], head_dim, theta)
    got_theta, scaling = scaling_from_hf(config.to_dict(), 1.0, "x")
    assert got_theta == theta
    assert scaling.magnitude == pytest.approx(theirs.attention_scaling, rel=1e-12)
    ours = inverse_frequencies(head_dim, got_theta, scaling)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs.inv_freq, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_cos_and_sin_equal_transformers_far_out(kind):
    """Angles of thousands of turns: fp32 products must round as theirs do."""
    config, theirs = transformers_rotary(KINDS[kind], 64, 10_000.0)
    theta, scaling = scaling_from_hf(config.to_dict(), 1.0, "x")
    frequencies = inverse_frequencies(64, theta, scaling)
    rope = Rope(frequencies, torch.device("cpu"), scaling.magnitude)
    positions = torch.tensor([0, 1, 7, 1023, 2047, 2048, 9999, 16383])
    cos, sin = rope.at(positions)
    their_cos, their_sin = theirs(torch.zeros(1, 1, 1), positions[None])
    torch.testing.assert_close(cos, their_cos[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(sin, their_sin[0], rtol=0, atol=2e-3)
    exact = positions.double()[:, None] * theirs.inv_freq.double()
    grown = exact.cos() * scaling.magnitude
    torch.testing.assert_close(cos[:, :32].double(), grown, rtol=0, atol=3e-3)
    assert torch.equal(cos[:, :32], cos[:, 32:])


@pytest.mark.parametrize("said", [{}, {"factor": 3.0}, {"attention_factor": 1.3}])
@pytest.mark.parametrize("head_dim", [6, 40])
def test_longrope_within_its_original_context(head_dim, said):
    half = head_dim // 2
    parameters = {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 7 for i in range(half)],
        "long_factor": [2.0 + i for i in range(half)],
        "original_max_position_embeddings": 512,
        **said,
    }
    config, theirs = transformers_rotary(parameters, head_dim, 10_000.0)
    theta, scaling = scaling_from_hf(config.to_dict(), 1.0, "x")
    assert scaling.most_tokens == 512
    frequencies = inverse_frequencies(head_dim, theta, scaling)
    rope = Rope(frequencies, torch.device("cpu"), scaling.magnitude)
    positions = torch.tensor([0, 1, 77, 511])
    for ours, other in zip(
        rope.at(positions), theirs(torch.zeros(1, 1, 1), positions[None]), strict=True
    ):
        assert torch.equal(ours, other[0])
    theirs(torch.zeros(1, 1, 1), torch.tensor([[512]]))  # one further, and all are others
    assert not torch.allclose(theirs.inv_freq, frequencies)


def test_dynamic_is_the_default_within_its_context():
    config, theirs = transformers_rotary({"rope_type": "dynamic", "factor": 4.0}, 40, 10_000.0)
    theta, scaling = scaling_from_hf(config.to_dict(), 1.0, "x")
    assert scaling.most_tokens == 16_384
    ours = inverse_frequencies(40, theta, scaling)
    theirs(torch.zeros(1, 1, 1), torch.tensor([[16_383]]))
    assert torch.equal(ours, theirs.inv_freq)
    theirs(torch.zeros(1, 1, 1), torch.tensor([[16_384]]))
    assert not torch.allclose(ours, theirs.inv_freq)
    assert RopeScaling("yarn", 4.0).most_tokens is None


def test_old_and_new_ways_to_write_it_mean_the_same():
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2}}
    new = {"rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}}
    assert scaling_from_hf(old, 1.0, "x") == scaling_from_hf(new, 1.0, "x")
    assert scaling_from_hf(old, 1.0, "x") == (500.0, RopeScaling("linear", 2.0))


@pytest.mark.parametrize("empty", [{}, {"rope_scaling": None}, {"rope_parameters": {}}])
def test_nothing_said_is_the_familys_default(empty):
    assert scaling_from_hf(empty, 1234.0, "x") == (1234.0, RopeScaling())


def test_yarn_takes_what_is_left_out_from_the_context():
    short = {"max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 2.0}}
    said = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    assert scaling_from_hf(short, 1e4, "x") == scaling_from_hf(
        {"max_position_embeddings": 128, "rope_parameters": said}, 1e4, "x"
    )
    no_factor = {"max_position_embeddings": 128, "rope_parameters": {**said, "factor": None}}
    assert scaling_from_hf(no_factor, 1e4, "x")[1].factor == 2.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 1.0}, "rope_theta"),
        ({"truncate": "no"}, "truncate"),
        ({"beta_fast": -1.0}, "beta_fast"),
        ({"attention_factor": 0.0}, "attention_factor"),
        ({"factor": [4.0]}, "factor"),
    ],
)
def test_wrong_yarn(changes, words, check_sentence):
    config = {"max_position_embeddings": 64, "rope_parameters": {**YARN, **changes}}
    with pytest.raises(BadFileError) as caught:
        scaling_from_hf(config, 1e4, "my-model")
    check_sentence(caught.value, "my-model", words)


def test_yarn_that_contradicts_itself(check_sentence):
    twice = {"max_position_embeddings": 64, "original_max_position_embeddings": 32}
    with pytest.raises(BadFileError) as caught:
        scaling_from_hf({**twice, "rope_parameters": YARN}, 1e4, "my-model")
    check_sentence(caught.value, "my-model", "twice")


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    plain = inverse_frequencies(128, 500_000.0, RopeScaling())
    scaled = inverse_frequencies(128, 500_000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192))
    waves = 2 * math.pi / plain
    short, long = waves < 8192 / 4, waves > 8192 / 1
    assert short.any()
    assert long.any()
    torch.testing.assert_close(scaled[short], plain[short])
    torch.testing.assert_close(scaled[long], plain[long] / 8)
    between = ~short & ~long
    assert ((scaled < plain) & (scaled > plain / 8))[between].all()


def test_factors_divide():
    factors = torch.tensor([1.0, 2.0, 5.0])
    plain = inverse_frequencies(6, 100.0, RopeScaling())
    assert torch.equal(inverse_frequencies(6, 100.0, RopeScaling(), factors), plain / factors)


@pytest.mark.parametrize("num_tokens", [1, 2, 7, 16, 131])
def test_a_position_has_the_same_values_in_any_company(num_tokens):
    frequencies = inverse_frequencies(6, 100.0, RopeScaling())
    rope = Rope(frequencies, torch.device("cpu"))
    whole = rope.at(torch.arange(70_001))
    positions = torch.randint(70_001, (num_tokens,), generator=torch.Generator().manual_seed(0))
    for some, every in zip(rope.at(positions), whole, strict=True):
        assert some.shape == (num_tokens, 6)
        assert torch.equal(some, every[positions])
    angle = 70_000 * frequencies.double()
    torch.testing.assert_close(whole[1][-1, :3].double(), angle.sin(), rtol=0, atol=1e-2)


@pytest.mark.parametrize("kind", ["su", "proportional", "mrope", ["linear"], 7])
def test_other_kinds_are_refused_by_name(kind, check_sentence):
    values = {"rope_type": kind, "factor": 2.0}
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedModelError) as caught:
            scaling_from_hf({key: values}, 1.0, "my-model")
        check_sentence(caught.value, "my-model", kind if isinstance(kind, str) else "rotary")
    with pytest.raises(UnsupportedModelError) as caught:
        scaling_from_gguf({"llama.rope.scaling.type": kind}, "llama", "m.gguf")
    check_sentence(caught.value, "m.gguf")


@pytest.mark.parametrize(
    "changes",
    [
        {"factor": None},
        {"factor": 0},
        {"factor": math.inf},
        {"factor": 10**400},
        {"low_freq_factor": "1"},
        {"high_freq_factor": None},
        {"high_freq_factor": 1.0},  # no span between low and high
        {"high_freq_factor": 0.5},
        {"original_max_position_embeddings": True},
        {"rope_theta": -1.0},
    ],
)
def test_impossible_values(changes, check_sentence):
    with pytest.raises(BadFileError) as caught:
        scaling_from_hf({"rope_scaling": {**LLAMA3, **changes}}, 1.0, "my-model")
    check_sentence(caught.value, "my-model", next(iter(changes)))


@pytest.mark.parametrize("found", ["linear", 7, ["linear"], True])
def test_a_description_that_is_none(found, check_sentence):
    with pytest.raises(BadFileError) as caught:
        scaling_from_hf({"rope_scaling": found}, 1.0, "my-model")
    check_sentence(caught.value, "my-model")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, RopeScaling()),
        ({"scaling.factor": 1.0}, RopeScaling()),
        ({"scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"scale_linear": 4.0}, RopeScaling("linear", 4.0)),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, RopeScaling("linear", 4.0)),
        ({"scaling.type": "linear"}, RopeScaling("linear", 1.0)),
        ({"scaling.type": "none", "scaling.factor": 4.0}, RopeScaling()),
    ],
)
def test_gguf_scaling(values, expected):
    metadata = {f"llama.rope.{key}": value for key, value in values.items()}
    assert scaling_from_gguf(metadata, "llama", "m.gguf") == expected
    assert scaling_from_gguf(metadata, "qwen2", "m.gguf") == RopeScaling()
