"""DecoderConfig: the shape of a decoder as `decoder.py` runs it, from GGUF metadata or config.json.

Only what is run exactly is accepted; everything else is refused by name, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.rope import RopeScaling, scaling_from_gguf, scaling_from_hf

MAX_LAYERS = 1024

_WAY_OUT = "choose a Llama, Mistral, Qwen2, Qwen3 or SmolLM model"
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
    """One decoder-only transformer: RMS norms before each part, rotary positions, gated SiLU."""

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
    qk_norm: bool = False  # RMS norm per head before rotary
    tied_head: bool = False
    windows: tuple[int, ...] = ()  # per layer, 0 = full attention
    rope_layers: tuple[bool, ...] = ()  # per layer, False = no positions
    permuted_qk: bool = False  # Q and K rows lie in GGUF's order for interleaved rotary

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class _Family:
    """What a config.json of this family leaves out when it equals the family's default."""

    qkv_bias: bool | None = None  # None: as `attention_bias` says
    output_bias: bool | None = None
    mlp_bias: bool | None = None
    qk_norm: bool = False
    tied_head: bool = False
    head_dim: int | None = None
    rope_theta: float = 10_000.0
    context_tokens: int = 32_768
    num_kv_heads: int | None = None  # None: as many as query heads
    window: int | None = 4096
    windows_by: str = "none"  # "all", "from_layer" (max_window_layers), "no_rope", "none"
    permuted_in_gguf: bool = False


_FAMILIES: dict[str, _Family] = {
    "llama": _Family(context_tokens=2048, permuted_in_gguf=True),
    "mistral": _Family(
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        context_tokens=131_072,
        num_kv_heads=8,
        windows_by="all",
        permuted_in_gguf=True,
    ),
    "qwen2": _Family(
        qkv_bias=True,
        output_bias=False,
        mlp_bias=False,
        num_kv_heads=32,
        windows_by="from_layer",
    ),
    "qwen3": _Family(
        mlp_bias=False,
        qk_norm=True,
        head_dim=128,
        num_kv_heads=32,
        windows_by="from_layer",
    ),
    "smollm3": _Family(
        tied_head=True,
        rope_theta=2_000_000.0,
        num_kv_heads=4,
        window=None,
        windows_by="no_rope",
        permuted_in_gguf=True,
    ),
}
SUPPORTED = tuple(_FAMILIES)
_NO_ROPE_EVERY = 4  # smollm3: every fourth layer has no positions


def from_hf(config: Mapping[str, Any], name: str) -> DecoderConfig:
    """From the content of a config.json. `name` is the folder's, for the sentences.

    Raises:
        UnsupportedModelError: the architecture, or a part of it, cannot be run.
        BadFileError: a value is missing or impossible.
    """
    kind = config.get("model_type")
    family = _family(kind, name)
    get = _Getter(config, f"{name}/config.json")
    _refuse_hf(config, name)
    num_heads = get.whole("num_attention_heads")
    hidden_size = get.whole("hidden_size")
    num_layers = get.whole("num_hidden_layers")
    head_dim = get.whole("head_dim", family.head_dim or hidden_size // max(1, num_heads))
    bias = get.flag("attention_bias", False)
    mlp_bias = get.flag("mlp_bias", False)
    theta, scaling = scaling_from_hf(config, family.rope_theta, name)
    _check_num_layers(num_layers, name)
    rope_layers = _hf_rope_layers(get, family, num_layers)
    shape = DecoderConfig(
        architecture=str(kind),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=get.whole("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=get.whole("num_key_value_heads", family.num_kv_heads or num_heads),
        head_dim=head_dim,
        vocab_size=get.whole("vocab_size"),
        context_tokens=get.whole("max_position_embeddings", family.context_tokens),
        norm_eps=get.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rotary_dim=head_dim,
        rope_scaling=scaling,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias if family.output_bias is None else family.output_bias,
        mlp_bias=mlp_bias if family.mlp_bias is None else family.mlp_bias,
        qk_norm=family.qk_norm,
        tied_head=get.flag("tie_word_embeddings", family.tied_head),
        windows=_hf_windows(get, family, rope_layers, name),
        rope_layers=rope_layers,
    )
    _check_sizes(shape, name)
    return shape


def from_gguf(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], name: str
) -> DecoderConfig:
    """From a checked GGUF header: its metadata and its tensors' shapes.

    Raises: as `from_hf`.
    """
    arch = metadata.get("general.architecture")
    family = _family(arch, name)
    _refuse_gguf(metadata, str(arch), name)
    get = _Getter(metadata, name, f"{arch}.")
    num_layers = get.whole("block_count")
    num_heads = get.whole("attention.head_count")
    hidden_size = get.whole("embedding_length")
    head_dim = get.whole("attention.key_length", hidden_size // max(1, num_heads))
    if get.whole("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{name} has keys and values of different sizes: {_WAY_OUT}")
    window = get.whole("attention.sliding_window", 0, low=0)
    _check_num_layers(num_layers, name)
    no_rope = _NO_ROPE_EVERY if arch == "smollm3" else num_layers + 1
    embedding = tensors.get("token_embd.weight", (0,))
    shape = DecoderConfig(
        architecture=str(arch),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=get.whole("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=get.whole("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=embedding[0] or get.whole("vocab_size"),  # rows may be padded beyond the words
        context_tokens=get.whole("context_length"),
        norm_eps=get.number("attention.layer_norm_rms_epsilon"),
        rope_theta=get.number("rope.freq_base", 10_000.0),
        rotary_dim=get.whole("rope.dimension_count", head_dim),
        rope_scaling=scaling_from_gguf(metadata, str(arch), name),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        qk_norm=family.qk_norm,
        tied_head="output.weight" not in tensors,
        windows=(window,) * num_layers,
        rope_layers=tuple((i + 1) % no_rope != 0 for i in range(num_layers)),
        permuted_qk=family.permuted_in_gguf,
    )
    _check_sizes(shape, name)
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > shape.vocab_size:
        raise BadFileError(
            f"{name} lists {len(tokens):,} tokens and has weights for {shape.vocab_size:,}: "
            "fetch it again"
        )
    return shape


# --- parts --------------------------------------------------------------------------------------


def _family(kind: object, name: str) -> _Family:
    if not isinstance(kind, str) or not kind:
        raise BadFileError(f"{name} does not say which architecture it has: fetch it again")
    if kind not in _FAMILIES:
        raise UnsupportedModelError(
            f"{name} has the architecture {shown(kind)}, which this version cannot run: {_WAY_OUT}"
        )
    return _FAMILIES[kind]


def _refuse_hf(config: Mapping[str, Any], name: str) -> None:
    quantisation = config.get("quantization_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise UnsupportedModelError(
            f"{name} is quantised with {shown(method or 'an unknown method')}, which this version "
            "cannot read: take the unquantised folder or a GGUF file"
        )
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{name} uses the activation {shown(activation)}, and only silu can be run: {_WAY_OUT}"
        )


# Metadata of kin models that reuse these architecture names; neutral values change nothing.
_GGUF_NEUTRAL: dict[str, tuple[Any, ...]] = {
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


def _refuse_gguf(metadata: Mapping[str, Any], arch: str, name: str) -> None:
    for key, neutral in _GGUF_NEUTRAL.items():
        value = metadata.get(f"{arch}.{key}")
        if value not in neutral:
            raise UnsupportedModelError(
                f"{name} sets {arch}.{key} to {shown(value)}, which this version cannot run: "
                f"{_WAY_OUT}"
            )
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedModelError(
            f"{name} is one part of a model split over several files: choose a model in one file"
        )
    if metadata.get("general.type", "model") != "model":
        raise UnsupportedModelError(
            f"{name} is a {shown(metadata['general.type'])}, not a whole model: {_WAY_OUT}"
        )


def _hf_rope_layers(get: _Getter, family: _Family, num_layers: int) -> tuple[bool, ...]:
    if family.windows_by != "no_rope":
        return (True,) * num_layers
    flags = get.per_layer("no_rope_layers", num_layers)
    if flags is None:
        every = get.whole("no_rope_layer_interval", _NO_ROPE_EVERY)
        return tuple((i + 1) % every != 0 for i in range(num_layers))
    return tuple(bool(flag) for flag in flags)


def _hf_windows(
    get: _Getter, family: _Family, rope_layers: tuple[bool, ...], name: str
) -> tuple[int, ...]:
    """The window of each layer, 0 = full attention."""
    num_layers = len(rope_layers)
    # A window that is there and null means none; one that is left out, the family's.
    window = get.whole("sliding_window", 0 if get.has("sliding_window") else family.window or 0, 0)
    if family.windows_by == "none" or not window:
        return (0,) * num_layers
    if family.windows_by == "all":
        return (window,) * num_layers
    if not get.flag("use_sliding_window", False):
        return (0,) * num_layers
    kinds = get.per_layer("layer_types", num_layers)
    if kinds is None and family.windows_by == "from_layer":
        first = get.whole("max_window_layers", 28, low=0)
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    elif kinds is None:
        kinds = ["full_attention" if rope else "sliding_attention" for rope in rope_layers]
    unknown = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if unknown:
        raise UnsupportedModelError(
            f"{name} has layers of the kind {shown(unknown[0])}, which this version cannot run: "
            f"{_WAY_OUT}"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


class _Getter:
    """Reads numbers and says which one is missing or impossible."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def whole(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, list) and value:  # some GGUFs give a number per layer
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(
                    f"{self._where} has layers of different shapes ({key}): {_WAY_OUT}"
                )
            value = value[0]
        if type(value) is not int or not low <= value < 1 << 31:
            raise self._bad(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        # The bound also keeps out infinity, and whole numbers too long for a float.
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self._bad(key, value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value)
        return value

    def has(self, key: str) -> bool:
        return self._prefix + key in self._values

    def per_layer(self, key: str, num_layers: int) -> list[Any] | None:
        """A list with an item for each layer, or None where it is left out or empty."""
        value = self._values.get(self._prefix + key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise self._bad(key, value)
        return value

    def _bad(self, key: str, value: object) -> BadFileError:
        return BadFileError(
            f"{self._where} gives {key} as {shown(value)}, which cannot be: fetch the model again"
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise BadFileError(f"{self._where} does not say {key}: fetch the model again")
        return value


def _check_num_layers(num_layers: int, name: str) -> None:
    """Before anything is made for each layer."""
    if num_layers > MAX_LAYERS:
        raise BadFileError(f"{name} says it has {num_layers:,} layers: fetch it again")


def _check_sizes(config: DecoderConfig, name: str) -> None:
    for size, high in _MAX_SIZES.items():
        if not 1 <= getattr(config, size) <= high:
            words = size.replace("_", " ")
            raise BadFileError(
                f"{name} gives its {words} as {getattr(config, size):,}, and at most {high:,} can "
                "be run: fetch it again"
            )
    if config.num_heads % config.num_kv_heads:
        raise BadFileError(
            f"{name} says it has {config.num_heads} heads over {config.num_kv_heads} KV heads, "
            "which does not divide: fetch it again"
        )
    if config.rotary_dim % 2 or not 2 <= config.rotary_dim <= config.head_dim:
        raise BadFileError(
            f"{name} says it turns {config.rotary_dim} values of each head's {config.head_dim}: "
            "fetch it again"
        )
