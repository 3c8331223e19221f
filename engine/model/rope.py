"""Rotary positions: which frequencies a model turns its heads by, and their cos and sin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import BadFileError, UnsupportedModelError, shown

KINDS = ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
_WAY_OUT = "choose a model with default, linear, llama3, yarn, dynamic or longrope positions"
# Beyond its original context such a model turns every position of a sequence anew, by what the
# longest sequence beside it asks for: no block of K could be shared or kept. It is run within it.
_ORIGINAL_ONLY = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the frequencies are stretched. `kind`: one of KINDS."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    beta_fast: float = 32.0  # yarn: turns over the original context from which a wave is kept
    beta_slow: float = 1.0  # yarn: turns below which a wave is stretched by the whole factor
    truncate: bool = True  # yarn: the bounds between are whole numbers
    magnitude: float = 1.0  # yarn, longrope: cos and sin are multiplied by it
    divisors: tuple[float, ...] = ()  # longrope: of the frequencies, within the original context

    @property
    def most_tokens(self) -> int | None:
        """The longest context that these frequencies are right for; None = any."""
        return self.original_context if self.kind in _ORIGINAL_ONLY else None


def scaling_from_hf(
    config: Mapping[str, Any], default_theta: float, name: str, theta_key: str = "rope_theta"
) -> tuple[float, RopeScaling]:
    """(theta, scaling) of a config.json.

    Newer files hold all of it in `rope_parameters`, older ones in `theta_key` and `rope_scaling`.

    Raises:
        UnsupportedModelError: a kind that is not run exactly. BadFileError: an impossible value.
    """
    found = _parameters(config, name)
    values: dict[str, Any] = {**config, **found}
    outside = _positive(config, theta_key, default_theta, name)
    theta = _positive(found, "rope_theta", outside, name)
    kind = found.get("rope_type", found.get("type")) or "default"
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", _positive(values, "factor", None, name))
    if kind == "llama3":
        return theta, _llama3_from_hf(values, name)
    if kind == "yarn":
        return theta, _yarn_from_hf(config, found, theta, name)
    if kind == "dynamic":  # as long as nothing outgrows the context, this is the default
        _positive(values, "factor", None, name)
        context = int(_positive(config, "max_position_embeddings", None, name))
        return theta, RopeScaling("dynamic", original_context=context)
    if kind == "longrope":
        return theta, _longrope_from_hf(config, found, name)
    raise UnsupportedModelError(_refusal(name, kind))


def partial_from_hf(
    config: Mapping[str, Any],
    default: float | None,  # None: this family turns whole heads
    name: str,
    key: str = "partial_rotary_factor",
) -> float:
    """Which part of each head is turned, above 0 and at most 1.

    Raises: as `scaling_from_hf`.
    """
    outside = _positive(config, key, default or 1.0, name)
    part = _positive(_parameters(config, name), "partial_rotary_factor", outside, name)
    if default is None and part != 1.0:
        raise UnsupportedModelError(
            f"{name} turns only a part of each head, which this version cannot run for its "
            f"family: {_WAY_OUT}"
        )
    if part > 1.0:
        raise BadFileError(
            f"{name} gives partial_rotary_factor as {part:g}, which is more than a head: fetch it "
            "again"
        )
    return part


def _parameters(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, Mapping):
        raise BadFileError(f"{name} describes its rotary positions wrongly: fetch it again")
    if any(isinstance(value, Mapping) for value in found.values()):
        raise UnsupportedModelError(
            f"{name} has rotary positions that differ between layers, which this version cannot "
            f"run for its family: {_WAY_OUT}"
        )
    return found


def _llama3_from_hf(values: Mapping[str, Any], name: str) -> RopeScaling:
    scaling = RopeScaling(
        "llama3",
        _positive(values, "factor", None, name),
        _positive(values, "low_freq_factor", None, name),
        _positive(values, "high_freq_factor", None, name),
        int(_positive(values, "original_max_position_embeddings", None, name)),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise BadFileError(
            f"{name} has a high_freq_factor that is not above its low_freq_factor: fetch it again"
        )
    return scaling


def _yarn_from_hf(
    config: Mapping[str, Any], found: Mapping[str, Any], theta: float, name: str
) -> RopeScaling:
    context, original = _contexts(config, found, name)
    if theta <= 1:
        raise BadFileError(f"{name} gives rope_theta as {theta:g}, not above 1: fetch it again")
    factor = _positive(found, "factor", context / original, name)
    truncate = found.get("truncate", True)
    if not isinstance(truncate, bool):
        raise BadFileError(f"{name} gives truncate as {shown(truncate)}: fetch it again")
    return RopeScaling(
        "yarn",
        factor,
        original_context=int(original),
        beta_fast=_positive(found, "beta_fast", 32.0, name),
        beta_slow=_positive(found, "beta_slow", 1.0, name),
        truncate=truncate,
        magnitude=_magnitude(found, factor, name),
    )


def _longrope_from_hf(
    config: Mapping[str, Any], found: Mapping[str, Any], name: str
) -> RopeScaling:
    context, original = _contexts(config, found, name)
    divisors = found.get("short_factor")
    if not isinstance(divisors, list) or not divisors or len(divisors) > 1 << 12:
        raise BadFileError(f"{name} gives short_factor as {shown(divisors)}: fetch it again")
    short = tuple(
        _positive({"short_factor": item}, "short_factor", None, name) for item in divisors
    )
    if original < 2:
        raise BadFileError(f"{name} says its context was {original:g} once: fetch it again")
    factor = _positive(found, "factor", context / original, name)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    magnitude = _positive(found, "attention_factor", grown, name)
    return RopeScaling(
        "longrope", original_context=int(original), magnitude=magnitude, divisors=short
    )


def _contexts(
    config: Mapping[str, Any], found: Mapping[str, Any], name: str
) -> tuple[float, float]:
    """(context of the file, context before it was stretched)"""
    key = "original_max_position_embeddings"
    context = _positive(config, "max_position_embeddings", None, name)
    outside = _positive(config, key, context, name)
    original = _positive(found, key, outside, name)
    if config.get(key) is not None and original != outside:
        raise BadFileError(f"{name} gives {key} twice, and differently: fetch it again")
    return context, original


def _magnitude(found: Mapping[str, Any], factor: float, name: str) -> float:
    """What cos and sin are multiplied by: said, or it follows from the factor."""
    if found.get("attention_factor") is not None:
        return _positive(found, "attention_factor", None, name)

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if found.get("mscale") and found.get("mscale_all_dim"):
        above, below = (_positive(found, k, None, name) for k in ("mscale", "mscale_all_dim"))
        return grown(above) / grown(below)
    return grown(1.0)


def scaling_from_gguf(metadata: Mapping[str, Any], arch: str, name: str) -> RopeScaling:
    """Scaling by GGUF metadata. llama3's comes as the tensor `rope_freqs.weight` instead.

    Raises: as `scaling_from_hf`.
    """
    factor = metadata.get(f"{arch}.rope.scaling.factor") or metadata.get(
        f"{arch}.rope.scale_linear"
    )
    default = "linear" if factor not in (None, 1.0) else "none"
    kind = metadata.get(f"{arch}.rope.scaling.type", default)
    if kind == "none":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", _positive({"factor": factor or 1.0}, "factor", None, name))
    if kind == "yarn":
        return _yarn_from_gguf(metadata, f"{arch}.rope.", name)
    raise UnsupportedModelError(_refusal(name, str(kind)))


def _yarn_from_gguf(metadata: Mapping[str, Any], prefix: str, name: str) -> RopeScaling:
    for key in ("yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"):
        if metadata.get(f"{prefix}scaling.{key}") not in (None, 1.0):  # of kin models
            raise UnsupportedModelError(_refusal(name, key))

    def number(key: str, default: float | None = None) -> float:
        return _positive(metadata, f"{prefix}{key}", default, name)

    factor = number("scaling.factor")
    if number("freq_base", 10_000.0) <= 1:
        raise BadFileError(f"{name} gives rope.freq_base not above 1: fetch it again")
    return RopeScaling(
        "yarn",
        factor,
        original_context=int(number("scaling.original_context_length")),
        beta_fast=number("scaling.yarn_beta_fast", 32.0),
        beta_slow=number("scaling.yarn_beta_slow", 1.0),
        magnitude=_magnitude({}, factor, name),
    )


def inverse_frequencies(
    rotary_dim: int, theta: float, scaling: RopeScaling, factors: torch.Tensor | None = None
) -> torch.Tensor:
    """[rotary_dim / 2] fp32. `factors` divide them, as a GGUF's `rope_freqs.weight` asks."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    if scaling.kind == "longrope":  # in this order, or the last bit may differ from transformers
        divisors = torch.tensor(scaling.divisors) if factors is None else factors.float()
        return 1.0 / (divisors * theta**exponents)
    frequencies = 1.0 / (theta**exponents)
    if scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling.kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    elif scaling.kind == "yarn":
        frequencies = _yarn(frequencies, theta, scaling)
    return frequencies if factors is None else frequencies / factors.float()


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between are blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths  # over the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def _yarn(frequencies: torch.Tensor, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """As llama3, but the blend between runs over the places of the frequencies, not their waves."""
    rotary_dim = 2 * len(frequencies)

    def place(turns: float) -> float:
        """Where a wave that turns so often over the original context would stand."""
        waves = scaling.original_context / (turns * 2 * math.pi)
        return rotary_dim * math.log(waves) / (2 * math.log(theta))

    first, last = place(scaling.beta_fast), place(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    last += 0.001 if first == last else 0.0
    places = torch.arange(len(frequencies), dtype=torch.float32)
    stretched = ((places - first) / (last - first)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * stretched + frequencies * (1 - stretched)


class Rope:
    """cos and sin by position, halves repeated.

    Computed for the positions of each step: 0.014 ms where 16 chats write. A table would be 64 MB
    for a context of 128 k, and one that grows took 7 to 15 ms of the step that reached 2,048,
    up to two tokens' time for everyone who writes.
    """

    def __init__(
        self, frequencies: torch.Tensor, device: torch.device, magnitude: float = 1.0
    ) -> None:
        self._magnitude = magnitude
        self._frequencies = frequencies.to(device)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each [T, rotary_dim] fp32."""
        angles = torch.outer(positions.float(), self._frequencies)
        return self._repeated(angles.cos()), self._repeated(angles.sin())

    def _repeated(self, half: torch.Tensor) -> torch.Tensor:
        return torch.cat((half, half), -1) * self._magnitude


def _positive(values: Mapping[str, Any], key: str, default: float | None, name: str) -> float:
    value = values.get(key)
    value = default if value is None else value
    # The bound also keeps out infinity, and whole numbers too long for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise BadFileError(
            f"{name} gives {key} of its rotary positions as {shown(value)}: fetch it again"
        )
    return float(value)


def _refusal(name: str, kind: object) -> str:
    return (
        f"{name} scales its rotary positions by {shown(kind)}, which this version cannot run: "
        f"{_WAY_OUT}"
    )
