"""Rotary positions: which frequencies a model turns its heads by, and their tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import BadFileError, UnsupportedModelError, shown


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the frequencies are stretched. `kind`: "default", "linear" or "llama3"."""

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


def scaling_from_hf(
    config: Mapping[str, Any], default_theta: float, name: str
) -> tuple[float, RopeScaling]:
    """(theta, scaling) of a config.json.

    Newer files hold all of it in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.

    Raises:
        UnsupportedModelError: a kind that is not run exactly. BadFileError: an impossible value.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise BadFileError(f"{name} describes its rotary positions wrongly: fetch it again")
    if any(isinstance(value, Mapping) for value in found.values()):
        raise UnsupportedModelError(
            f"{name} has rotary positions that differ between layers, which this version cannot "
            "run: choose a Llama, Mistral, Qwen2, Qwen3 or SmolLM model"
        )
    values: dict[str, Any] = {**config, **found}
    theta = _positive(values, "rope_theta", default_theta, name)
    if _positive(values, "partial_rotary_factor", 1.0, name) != 1.0:
        raise UnsupportedModelError(
            f"{name} turns only a part of each head, which this version cannot run: choose a "
            "Llama, Mistral, Qwen2, Qwen3 or SmolLM model"
        )
    kind = found.get("rope_type", found.get("type")) or "default"
    if kind == "default":
        return theta, RopeScaling()
    if kind == "linear":
        return theta, RopeScaling("linear", _positive(values, "factor", None, name))
    if kind == "llama3":
        scaling = RopeScaling(
            "llama3",
            _positive(values, "factor", None, name),
            _positive(values, "low_freq_factor", None, name),
            _positive(values, "high_freq_factor", None, name),
            int(_positive(values, "original_max_position_embeddings", None, name)),
        )
        if scaling.high_freq_factor <= scaling.low_freq_factor:
            raise BadFileError(
                f"{name} has a high_freq_factor that is not above its low_freq_factor: fetch it "
                "again"
            )
        return theta, scaling
    raise UnsupportedModelError(_refusal(name, str(kind)))


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
    raise UnsupportedModelError(_refusal(name, str(kind)))


def inverse_frequencies(
    rotary_dim: int, theta: float, scaling: RopeScaling, factors: torch.Tensor | None = None
) -> torch.Tensor:
    """[rotary_dim / 2] fp32. `factors` divide them, as a GGUF's `rope_freqs.weight` asks."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    frequencies = 1.0 / (theta**exponents)
    if scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling.kind == "llama3":
        frequencies = _llama3(frequencies, scaling)
    return frequencies if factors is None else frequencies / factors.float()


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between are blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_context / wavelengths  # over the original context
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


class RopeTable:
    """cos and sin by position, [context, rotary_dim] fp32 each, halves repeated.

    Grown by doubling as far as positions reach, so that a 128 k model does not start with 64 MB
    of table.
    """

    def __init__(self, frequencies: torch.Tensor, device: torch.device) -> None:
        self._frequencies = frequencies.to(device)
        self._cos = self._sin = torch.empty(0, 2 * len(frequencies), device=device)

    def at(self, positions: torch.Tensor, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), each [T, rotary_dim]; every position is below `num_positions`."""
        if num_positions > len(self._cos):
            self._grow(max(num_positions, 2 * len(self._cos), 2048))
        return self._cos[positions], self._sin[positions]

    def _grow(self, num_positions: int) -> None:
        places = torch.arange(num_positions, device=self._frequencies.device)
        angles = torch.outer(places.float(), self._frequencies)
        angles = torch.cat((angles, angles), -1)
        self._cos, self._sin = angles.cos(), angles.sin()


def _positive(values: Mapping[str, Any], key: str, default: float | None, name: str) -> float:
    value = values.get(key)
    value = default if value is None else value
    # The bound also keeps out infinity, and whole numbers too long for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise BadFileError(
            f"{name} gives {key} of its rotary positions as {shown(value)}: fetch it again"
        )
    return float(value)


def _refusal(name: str, kind: str) -> str:
    return (
        f"{name} scales its rotary positions by {shown(kind)}, which this version cannot run: "
        "choose a model with default, linear or llama3 positions"
    )
