"""DecoderConfig: the shape of a decoder as `decoder.py` runs it, and how a config.json gives it.

Only what is run exactly is accepted; everything else is refused by name, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.experts import Experts, hf_experts
from engine.model.families import FAMILIES, SUPPORTED, WAY_OUT, Family
from engine.model.getter import Getter
from engine.model.positions import hf_layers, hf_rotary, most_tokens
from engine.model.rope import RopeScaling
from engine.model.variants import plainly, refuse_settings

__all__ = ["SUPPORTED", "DecoderConfig", "from_hf"]

MAX_LAYERS = 1024

_MAX_SIZES = {
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 19,
    "num_heads": 1024,
    "head_dim": 1024,
    "vocab_size": 1 << 22,
    "context_tokens": 1 << 24,  # positions are fp32, which counts no further
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """One decoder-only transformer. The defaults are Llama's: RMS norms first, gated SiLU."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    rotary_dim: int  # the first values of each head are turned, the rest stay
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Q and K are normed before rotary
    tied_head: bool = False
    windows: tuple[int, ...] = ()  # per layer, 0 = full attention
    rope_layers: tuple[bool, ...] = ()  # per layer, False = no positions
    permuted_qk: bool = False  # Q and K rows lie in GGUF's order for interleaved rotary
    norm: str = "rms"  # or "layer": the mean is taken off as well
    norm_bias: bool = False
    norm_offset: float = 0.0  # added to the weights of RMS norms as they are stored
    pre_norm: bool = True  # a norm before attention and MLP
    post_norm: bool = False  # a norm after them, before their result is added
    qk_norm_over: str = "head"  # RMS; "row": all heads at once; "heads": layer norm, one per head
    parallel: str = ""  # attention and MLP read the same sum through "one norm" or "two norms"
    activation: str = "silu"
    gated: bool = True
    attention_scale: float = 0.0  # 0 = one over the root of the head size
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and MLP add
    logit_scale: float = 1.0
    local_rope: tuple[float, RopeScaling] | None = None  # theta and scaling of windowed layers
    interleaved_rope: bool = False  # rotary pairs neighbours
    fused_qkv: str = ""  # one tensor: "rows" (Q, then K, then V) or "groups" (by KV head)
    fused_gate_up: bool = False
    embedding_norm: bool = False
    experts: Experts | None = None
    alibi: str = ""  # whose, see `alibi`; no layer has rotary positions then
    names: str = "llama"  # of tensors, see `layout`

    @property
    def scale(self) -> float:
        return self.attention_scale or float(self.head_dim**-0.5)


ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def from_hf(config: Mapping[str, Any], name: str) -> DecoderConfig:
    """From the content of a config.json. `name` is the folder's, for the sentences.

    Raises:
        UnsupportedModelError: the architecture, or a part of it, cannot be run.
        BadFileError: a value is missing or impossible.
    """
    kind = config.get("model_type")
    config, family = plainly(config, family_of(kind, FAMILIES, name), name)
    get = Getter(config, f"{name}/config.json")
    _refuse_hf(config, family, name)
    num_layers = get.whole("num_hidden_layers")
    check_num_layers(num_layers, name)
    num_heads = get.whole("num_attention_heads")
    hidden_size = get.whole("hidden_size")
    kv_heads = family.num_kv_heads or num_heads
    windows, rope_layers = hf_layers(get, family, num_layers, name)
    head_dim = _hf_head_dim(get, family, hidden_size // num_heads)
    rotary = hf_rotary(config, get, family, head_dim, name)
    context_tokens = get.whole("max_position_embeddings", family.context_tokens)
    shape = DecoderConfig(
        architecture=str(kind),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=get.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=get.whole(family.kv_heads_key, kv_heads) if family.kv_heads_key else num_heads,
        vocab_size=get.whole("vocab_size"),
        context_tokens=min(context_tokens, most_tokens(rotary) or context_tokens),
        norm_eps=get.number(family.eps_key, family.eps),
        tied_head=get.flag("tie_word_embeddings", family.tied_head),
        windows=windows,
        rope_layers=rope_layers,
        experts=hf_experts(get, family, num_layers, name),
        **rotary,
        **_hf_biases(get, family),
        **_hf_maths(get, family),
        **_hf_scales(get, family, hidden_size),
    )
    check_sizes(shape, name)
    return shape


# --- parts --------------------------------------------------------------------------------------


def family_of(
    kind: object, families: Mapping[str, Family], name: str, way_out: str = WAY_OUT
) -> Family:
    if not isinstance(kind, str) or not kind:
        raise BadFileError(f"{name} does not say which architecture it has: fetch it again")
    if kind not in families:
        raise UnsupportedModelError(
            f"{name} has the architecture {shown(kind)}, which this version cannot run: {way_out}"
        )
    return families[kind]


def _refuse_hf(config: Mapping[str, Any], family: Family, name: str) -> None:
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise UnsupportedModelError(
            f"{name} is quantised with {shown(method or 'an unknown method')}, which this version "
            "cannot read: take the unquantised folder or a GGUF file"
        )
    activation = config.get(family.activation_key) or family.activation
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{name} uses the activation {shown(activation)}, which this version cannot run: "
            f"{WAY_OUT}"
        )
    refuse_settings(config, family.neutral, name)


def _hf_head_dim(get: Getter, family: Family, usual: int) -> int:
    head_dim = get.whole("head_dim", family.head_dim or usual)
    if not family.own_head_dim and head_dim != usual:
        raise get.bad("head_dim", head_dim)
    return head_dim


def _hf_biases(get: Getter, family: Family) -> dict[str, Any]:
    def bias(said: bool | str) -> bool:
        return said if isinstance(said, bool) else get.flag(said, family.bias_default)

    return {
        "qkv_bias": bias(family.qkv_bias),
        "output_bias": bias(family.output_bias),
        "mlp_bias": bias(family.mlp_bias),
    }


def _hf_maths(get: Getter, family: Family) -> dict[str, Any]:
    """Norms, activation and how the parts are joined."""
    qk_norm = family.qk_norm
    parallel = family.parallel
    if family.parallel_key and not get.flag(family.parallel_key, family.parallel_default):
        parallel = ""
    return {
        "qk_norm": get.flag(qk_norm, False) if isinstance(qk_norm, str) else qk_norm,
        "qk_norm_over": family.qk_norm_over,
        "norm": family.norm,
        "norm_bias": family.norm_bias,
        "norm_offset": family.norm_offset,
        "pre_norm": family.pre_norm,
        "post_norm": family.post_norm,
        "parallel": parallel,
        "activation": ACTIVATIONS[get.text(family.activation_key, family.activation)],
        "gated": family.gated,
        "fused_qkv": family.fused_qkv,
        "fused_gate_up": family.fused_gate_up,
        "embedding_norm": family.embedding_norm,
        "alibi": family.alibi,
        "names": family.names,
    }


def _hf_scales(get: Getter, family: Family, hidden_size: int) -> dict[str, Any]:
    """Multipliers and soft-caps, under the names that DecoderConfig gives them."""
    found = {name: get.optional(*pair) for name, pair in family.scales.items()}
    for name, value in found.items():
        if not value and not name.endswith("softcap") and family.scales[name][1]:
            raise get.bad(family.scales[name][0], None)
    if "query_scalar" in found:
        found["attention_scale"] = found.pop("query_scalar") ** -0.5
    if "logit_divisor" in found:
        found["logit_scale"] = 1 / found.pop("logit_divisor")
    if family.norm_offset:  # Gemma
        found["embedding_scale"] = hidden_size**0.5
    return found


def check_num_layers(num_layers: int, name: str) -> None:
    """Before anything is made for each layer."""
    if num_layers > MAX_LAYERS:
        raise BadFileError(f"{name} says it has {num_layers:,} layers: fetch it again")


def check_sizes(config: DecoderConfig, name: str) -> None:
    sizes = {size: getattr(config, size) for size in _MAX_SIZES}
    if config.experts is not None:
        sizes["expert_size"] = config.experts.intermediate_size
    for size, value in sizes.items():
        high = _MAX_SIZES.get(size, _MAX_SIZES["intermediate_size"])
        if not 1 <= value <= high:
            words = size.replace("_", " ")
            raise BadFileError(
                f"{name} gives its {words} as {value:,}, and at most {high:,} can be run: fetch it "
                "again"
            )
    if config.num_heads % config.num_kv_heads:
        raise BadFileError(
            f"{name} says it has {config.num_heads} heads over {config.num_kv_heads} KV heads, "
            "which does not divide: fetch it again"
        )
    turned = config.rotary_dim
    if not config.alibi and (turned % 2 or not 2 <= turned <= config.head_dim):
        raise BadFileError(
            f"{name} says it turns {config.rotary_dim} values of each head's {config.head_dim}: "
            "fetch it again"
        )
