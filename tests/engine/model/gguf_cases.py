"""Tiny random models of the newer families, and how GGUF's converters would write each of them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

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
