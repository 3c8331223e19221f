"""GGUF files of the newer families: written by the converters' rules, run as their own folders.

Each tiny random model is saved as safetensors by transformers and laid out as a GGUF here. Both
loads must give the same logits after a prompt that is longer than every window.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError
from engine.model.families import IN_GGUF

WINDOW = 16
VOCAB = 131
PROMPT = [3 + 7 * i % 120 for i in range(53)]

RMS = "attention.layer_norm_rms_epsilon"
LAYER = "attention.layer_norm_epsilon"
SCALES = {"softcap": "attn_logit_softcapping", "final": "final_logit_softcapping"}


@dataclass(frozen=True)
class Case:
    """A family: its transformers class, its settings, and what its converter writes."""

    arch: str
    stem: str
    changes: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # of the GGUF: of the config
    extra: dict[str, Any] = field(default_factory=dict)
    norms: dict[str, str] = field(default_factory=dict)
    eps: str = RMS
    plus_one: bool = False
    permuted: bool = False


USUAL_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
OLMO_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
GRANITE_KEYS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
GRANITE = {
    "attention_multiplier": 0.11,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}
GEMMA = {"head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.9],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
WINDOWED = {"attention.sliding_window": "sliding_window"}

CASES = {
    "gemma2": Case(
        "gemma2",
        "Gemma2",
        GEMMA,
        WINDOWED | {key: key for key in SCALES.values()},
        norms=GEMMA_NORMS,
        plus_one=True,
    ),
    "gemma3": Case(
        "gemma3",
        "Gemma3Text",
        GEMMA | {"num_hidden_layers": 7},
        WINDOWED,
        {"rope.freq_base": 1e6},
        norms=GEMMA_NORMS,
        plus_one=True,
    ),
    "gemma3 stretched, capped": Case(
        "gemma3",
        "Gemma3Text",
        GEMMA
        | {
            "num_hidden_layers": 6,
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
        WINDOWED | {"final_logit_softcapping": "final_logit_softcapping"},
        {
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 1e3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
        norms=GEMMA_NORMS,
        plus_one=True,
    ),
    "gemma3 of full layers only": Case(
        "gemma3",
        "Gemma3Text",
        GEMMA | {"layer_types": ["full_attention"] * 3},
        {},
        {"rope.freq_base": 1e6},
        norms=GEMMA_NORMS,
        plus_one=True,
    ),
    "phi3": Case(
        "phi3",
        "Phi3",
        {"sliding_window": WINDOW, "original_max_position_embeddings": 128},
        WINDOWED,
        {"rope.freq_base": 1e4, "rope.scaling.original_context_length": 128},
        norms=USUAL_NORMS,
    ),
    "phi3 partial": Case(
        "phi3",
        "Phi3",
        {"sliding_window": None, "rope_parameters": PARTIAL},
        {},
        {"attention.sliding_window": 0, "rope.dimension_count": 6, "rope.freq_base": 1e4},
        norms=USUAL_NORMS,
    ),
    "phi3 longrope": Case(
        "phi3",
        "Phi3",
        {
            "sliding_window": None,
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 64,
        },
        {},
        {
            "attention.sliding_window": 0,
            "rope.freq_base": 1e4,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(2) / math.log(64)),
        },
        norms=USUAL_NORMS,
    ),
    "olmo2 yarn": Case(
        "olmo2",
        "Olmo2",
        {"rope_parameters": YARN},
        extra={
            "rope.freq_base": 1e4,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        norms=OLMO_NORMS,
    ),
    "olmo2": Case("olmo2", "Olmo2", extra={"rope.freq_base": 1e4}, norms=OLMO_NORMS),
    "granite": Case(
        "granite",
        "Granite",
        GRANITE | {"attention_bias": True, "mlp_bias": True},
        GRANITE_KEYS,
        {"rope.dimension_count": 8},
        norms=USUAL_NORMS,
        permuted=True,
    ),
    "granite, own head": Case(
        "granite",
        "Granite",
        GRANITE | {"tie_word_embeddings": False},
        GRANITE_KEYS,
        {"rope.scaling.finetuned": True},
        norms=USUAL_NORMS,
        permuted=True,
    ),
    "starcoder2": Case(
        "starcoder2", "Starcoder2", {"sliding_window": None}, norms=USUAL_NORMS, eps=LAYER
    ),
    "starcoder2 windowed": Case(
        "starcoder2",
        "Starcoder2",
        {"sliding_window": WINDOW, "tie_word_embeddings": False},
        WINDOWED,
        norms=USUAL_NORMS,
        eps=LAYER,
    ),
    "cohere2": Case(
        "cohere2",
        "Cohere2",
        {"num_hidden_layers": 5, "sliding_window": WINDOW},
        WINDOWED | {"logit_scale": "logit_scale", "vocab_size": "vocab_size"},
        {"rope.freq_base": 1e4, "rope.dimension_count": 8, "rope.scaling.type": "none"},
        norms=USUAL_NORMS,
        eps=LAYER,
    ),
    "stablelm": Case(
        "stablelm",
        "StableLm",
        {"use_qkv_bias": True},
        extra={"rope.dimension_count": 2, "use_parallel_residual": False},
        norms=USUAL_NORMS,
        eps=LAYER,
    ),
    "stablelm parallel": Case(
        "stablelm",
        "StableLm",
        {"use_parallel_residual": True, "qk_layernorm": True, "num_key_value_heads": 1},
        extra={"rope.dimension_count": 2, "use_parallel_residual": True},
        norms=USUAL_NORMS,
        eps=LAYER,
    ),
}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def make_model(case: Case, folder: Any) -> Any:
    import transformers

    values = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **case.changes,
    }
    config = getattr(transformers, f"{case.stem}Config")(**values)
    config._attn_implementation = "eager"
    torch.manual_seed(11)
    kind = case.stem.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) / 4
            one = "norm" in name and name.endswith("weight") and not case.plus_one
            parameter.copy_(noise + 1 if one else noise)
    model.save_pretrained(folder)
    return model


def gguf_name(case: Case, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{case.norms.get(part) or PARTS[part]}.{kind}"


def stacked_head_norms(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Take the norms that each head has for itself out of `weights`; one tensor for a layer."""
    found: dict[str, dict[int, np.ndarray]] = {}
    for name in [name for name in weights if "_layernorm.norms." in name]:
        _, _, layer, _, which, _, head, _ = name.split(".")
        place = found.setdefault(f"blk.{layer}.attn_{which[0]}_norm.weight", {})
        place[int(head)] = weights.pop(name)
    return {name: np.stack([rows[i] for i in range(len(rows))]) for name, rows in found.items()}


def as_gguf(case: Case, folder: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Metadata and tensors by the rules of GGUF's converters."""
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    eps = next(config[k] for k in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon") if k in config)
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        case.eps: eps,
        **{key: config[theirs] for key, theirs in case.keys.items()},
        **case.extra,
    }
    if case.plus_one:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    metadata = {"general.architecture": case.arch}
    metadata |= {f"{case.arch}.{key}": value for key, value in values.items()}
    weights = dict(load_file(folder / "model.safetensors"))
    tensors = stacked_head_norms(weights)
    for name, weight in weights.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings", case.plus_one):
            continue
        if case.plus_one and name.endswith("norm.weight"):
            weight = weight + np.float32(1)
        which = {"q_proj": heads, "k_proj": config["num_key_value_heads"]}
        rows = which.get(name.split(".")[-2]) if case.permuted else None
        if rows:
            halves = weight.reshape(rows, 2, head_dim // 2, *weight.shape[1:])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        tensors[gguf_name(case, name)] = weight
    if "rope.scaling.attn_factor" in case.extra:
        tensors["rope_factors_short.weight"] = np.array(LONGROPE["short_factor"], "f4")
        tensors["rope_factors_long.weight"] = np.array(LONGROPE["long_factor"], "f4")
    return metadata, tensors


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
