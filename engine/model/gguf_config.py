"""from_gguf: the DecoderConfig that a GGUF's metadata and tensors describe.

A GGUF leaves much unsaid that follows from its architecture: where windows lie, which scale
attention has, what the norms' weights already hold. That knowledge is here. What a file does not
say and its architecture does not settle is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.config import ACTIVATIONS, DecoderConfig, check_num_layers, check_sizes, family_of
from engine.model.families import IN_GGUF, WAY_OUT, WAY_OUT_OF_GGUF, Family
from engine.model.getter import Getter
from engine.model.positions import NO_ROPE_EVERY
from engine.model.rope import RopeScaling, scaling_from_gguf

LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"

Tensors = Mapping[str, tuple[int, ...]]


def from_gguf(metadata: Mapping[str, Any], tensors: Tensors, name: str) -> DecoderConfig:
    """From a checked GGUF header: its metadata and its tensors' shapes.

    Raises:
        UnsupportedModelError: the architecture, or a part of it, cannot be run.
        BadFileError: a value is missing or impossible.
    """
    arch = str(metadata.get("general.architecture") or "")
    family = family_of(metadata.get("general.architecture"), IN_GGUF, name, WAY_OUT_OF_GGUF)
    _refuse(metadata, arch, family, tensors, name)
    get = Getter(metadata, name, f"{arch}.")
    num_layers = get.whole("block_count")
    check_num_layers(num_layers, name)
    num_heads = get.whole("attention.head_count")
    hidden_size = get.whole("embedding_length")
    head_dim = get.whole("attention.key_length", hidden_size // max(1, num_heads))
    if get.whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{name} has keys and values of different sizes: {WAY_OUT}")
    embedding = tensors.get("token_embd.weight", (0,))
    rms = "rms_" if family.norm == "rms" else ""
    shape = DecoderConfig(
        architecture=arch,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=get.whole("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=get.whole("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding[0] or get.whole("vocab_size"),  # rows may be padded beyond the words
        norm_eps=get.number(f"attention.layer_norm_{rms}epsilon"),
        tied_head="output.weight" not in tensors,
        **_rotary(metadata, get, tensors, head_dim, name),
        **_layers(get, arch, family, num_layers),
        **_parts(family, tensors),
        **_scales(get, arch, family, hidden_size, num_heads, num_layers),
    )
    check_sizes(shape, name)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > shape.vocab_size:
        raise BadFileError(
            f"{name} lists {len(tokens):,} tokens and has weights for {shape.vocab_size:,}: "
            "fetch it again"
        )
    return shape


# --- positions ----------------------------------------------------------------------------------

# Starcoder 2 was trained with this window, and its converter does not write one: up to here both
# readings, with and without a window, are the same.
_UNSAID_WINDOW = {"starcoder2": 4096}
# The first Phi-3 files do not say their window, which their context tells: the long ones' is no
# shorter than the context.
_PHI3_WINDOWS = {4096: 2047, 131_072: 0}


def _rotary(
    metadata: Mapping[str, Any], get: Getter, tensors: Tensors, head_dim: int, name: str
) -> dict[str, Any]:
    """Rotary settings of the full layers, and how far they reach."""
    arch = metadata["general.architecture"]
    context = get.whole("context_length")
    if SHORT_FACTORS in tensors:
        scaling = RopeScaling(
            "longrope",
            original_context=get.whole("rope.scaling.original_context_length"),
            magnitude=get.number("rope.scaling.attn_factor"),
        )
        context = min(context, scaling.original_context)
    else:
        scaling = scaling_from_gguf(metadata, arch, name)
    if not get.has("attention.sliding_window"):
        context = min(context, _UNSAID_WINDOW.get(arch, context))
    return {
        "context_tokens": context,
        "rope_theta": get.number("rope.freq_base", 10_000.0),
        "rotary_dim": get.whole("rope.dimension_count", head_dim),
        "rope_scaling": scaling,
    }


def _layers(get: Getter, arch: str, family: Family, num_layers: int) -> dict[str, Any]:
    """Windows and positions of each layer."""
    windows = (_window(get, arch, family),) * num_layers
    if family.windows_by == "pattern":
        every = get.whole("attention.sliding_window_pattern", family.pattern)
        windows = tuple(w if (i + 1) % every else 0 for i, w in enumerate(windows))
    rope_layers = (True,) * num_layers
    if family.windows_by == "no_rope":
        rope_layers = tuple((i + 1) % NO_ROPE_EVERY != 0 for i in range(num_layers))
    if not family.rope_in_full:
        rope_layers = tuple(window > 0 for window in windows)
    local_theta = family.local_theta
    if local_theta is not None:
        local_theta = get.number("rope.freq_base_swa", local_theta)
    return {
        "windows": windows,
        "rope_layers": rope_layers,
        "interleaved_rope": family.interleaved_rope,
        "local_rope": None if local_theta is None else (local_theta, RopeScaling()),
    }


def _window(get: Getter, arch: str, family: Family) -> int:
    default: int | None = 0
    if arch == "phi3":
        default = _PHI3_WINDOWS.get(get.whole("context_length"))
    elif arch == "gemma2":
        default = family.window  # the first files do not say it
    elif arch == "cohere2":
        default = None
    return get.whole("attention.sliding_window", default, low=0)


# --- parts --------------------------------------------------------------------------------------


def _parts(family: Family, tensors: Tensors) -> dict[str, Any]:
    """What a layer is made of. Where files of one family differ, their tensors tell."""

    def has(part: str) -> bool:
        return f"blk.0.{part}" in tensors

    fused = family.fused_qkv if has("attn_qkv.weight") else ""
    parallel = family.parallel
    if family.parallel_key and has("ffn_norm.weight"):
        parallel = ""  # a norm of its own before the MLP: it reads what attention added
    return {
        "qkv_bias": has("attn_qkv.bias" if fused else "attn_q.bias"),
        "output_bias": has("attn_output.bias"),
        "mlp_bias": has("ffn_down.bias"),
        "qk_norm": has("attn_q_norm.weight") if isinstance(family.qk_norm, str) else family.qk_norm,
        "qk_norm_over": family.qk_norm_over,
        "permuted_qk": family.permuted_in_gguf,
        "norm": family.norm,
        "norm_bias": family.norm_bias,
        "pre_norm": family.pre_norm,  # norm_offset stays 0: converters add it to the weights
        "post_norm": family.post_norm,
        "parallel": parallel,
        "activation": ACTIVATIONS[family.activation],
        "gated": family.gated,
        "fused_qkv": fused,
        "fused_gate_up": family.fused_gate_up and not has("ffn_gate.weight"),
        "names": family.names,
    }


_SCALE_KEYS = {
    "attention_scale": "attention.scale",
    "attention_softcap": "attn_logit_softcapping",
    "logit_softcap": "final_logit_softcapping",
    "embedding_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "logit_divisor": "logit_scale",
    "logit_scale": "logit_scale",
}
# Left out, a scale of these may mean one thing to a config.json and another to a GGUF.
_NEEDED = ("attention_scale", "logit_divisor", "logit_scale")
# Layers of the two models whose scale of attention is not that of their head size.
_SCALED_BY_ROW = {"gemma2": 46, "gemma3": 62}


def _scales(
    get: Getter, arch: str, family: Family, hidden_size: int, num_heads: int, num_layers: int
) -> dict[str, Any]:
    """Multipliers and soft-caps, under the names that DecoderConfig gives them."""
    found: dict[str, Any] = {}
    for scale in family.scales.keys() & _SCALE_KEYS.keys():
        default = family.scales[scale][1]
        if scale in _NEEDED:
            found[scale] = get.number(_SCALE_KEYS[scale])
        else:
            found[scale] = get.optional(_SCALE_KEYS[scale], default)
    if "logit_divisor" in found:
        found["logit_scale"] = 1 / found.pop("logit_divisor")
    if family.norm_offset:  # Gemma
        found["embedding_scale"] = hidden_size**0.5
    if _SCALED_BY_ROW.get(arch) == num_layers:
        found["attention_scale"] = (hidden_size / num_heads) ** -0.5
    return found


# --- refusals -----------------------------------------------------------------------------------

# Metadata of kin models that reuse these architecture names; neutral values change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0, None),
    "logit_scale": (0.0, 1.0, None),
    "embedding_scale": (0.0, 1.0, None),
    "residual_scale": (0.0, 1.0, None),
    "attention.scale": (0.0, None),
    "attn_logit_softcapping": (0.0, None),
    "final_logit_softcapping": (0.0, None),
    "attention.clamp_kqv": (0.0, None),
    "attention.temperature_scale": (0.0, None),
    "attention.causal": (True, None),
    "rope.scaling.attn_factor": (0.0, 1.0, None),
}
_NEUTRAL_BY_ARCHITECTURE: dict[str, dict[str, tuple[Any, ...]]] = {
    "olmo2": {"attention.sliding_window": (0, None)},  # OLMo 3, which mixes layers
    "granite": {"rope.scaling.finetuned": (True, None), "attention.sliding_window": (0, None)},
    "stablelm": {"attention.sliding_window": (0, None)},
}


def _refuse(
    metadata: Mapping[str, Any], arch: str, family: Family, tensors: Tensors, name: str
) -> None:
    neutral = _NEUTRAL | _NEUTRAL_BY_ARCHITECTURE.get(arch, {})
    read = {_SCALE_KEYS[scale] for scale in family.scales if scale in _SCALE_KEYS}
    if SHORT_FACTORS in tensors and LONG_FACTORS in tensors:
        read.add("rope.scaling.attn_factor")
    for key in neutral.keys() - read:
        value = metadata.get(f"{arch}.{key}")
        if value not in neutral[key]:
            raise UnsupportedModelError(
                f"{name} sets {arch}.{key} to {shown(value)}, which this version cannot run: "
                f"{WAY_OUT}"
            )
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedModelError(
            f"{name} is one part of a model split over several files: choose a model in one file"
        )
    if metadata.get("general.type", "model") != "model":
        raise UnsupportedModelError(
            f"{name} is a {shown(metadata['general.type'])}, not a whole model: {WAY_OUT}"
        )
