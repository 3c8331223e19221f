"""What a config.json says of positions: windows, layers without positions, rotary settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.families import WAY_OUT, Family
from engine.model.getter import Getter
from engine.model.rope import RopeScaling, partial_from_hf, scaling_from_hf

NO_ROPE_EVERY = 4  # smollm3: every fourth layer has no positions


def hf_layers(
    get: Getter, family: Family, num_layers: int, name: str
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """(window of each layer, 0 = full attention; whether each layer has positions).

    Raises:
        UnsupportedModelError: a kind of layer that is not run. BadFileError: an impossible value.
    """
    rope_layers = _rope_layers(get, family, num_layers)
    windows = _windows(get, family, rope_layers, name)
    if not family.rope_in_full:
        rope_layers = tuple(window > 0 for window in windows)
    return windows, rope_layers


def hf_rotary(
    config: Mapping[str, Any], get: Getter, family: Family, head_dim: int, name: str
) -> dict[str, Any]:
    """Head size and rotary settings, under the names that DecoderConfig gives them.

    Raises: as `hf_layers`.
    """
    context = config.get("max_position_embeddings") or family.context_tokens
    config = {**config, "max_position_embeddings": context}
    own, local = (config, None) if family.local_theta is None else _by_layer_type(config, name)
    theta, scaling = scaling_from_hf(own, family.rope_theta, name, family.theta_key)
    part = partial_from_hf(own, family.partial, name, family.partial_key)
    for kind in {scaling.kind} - set(family.rope_kinds):
        raise UnsupportedModelError(
            f"{name} scales its rotary positions by {kind}, which its family does not: {WAY_OUT}"
        )
    rotary_dim = int(head_dim * part)
    check_divisors(scaling, rotary_dim, name)
    return {
        "head_dim": head_dim,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "rotary_dim": rotary_dim,
        "local_rope": None if local is None else _local(local, family, rotary_dim, name),
        "interleaved_rope": family.interleaved_rope,
    }


def most_tokens(rotary: Mapping[str, Any]) -> int | None:
    """The longest context that the settings of `hf_rotary` are right for; None = any."""
    scalings = [rotary["rope_scaling"], *(rotary["local_rope"] or ())[1:]]
    return min((s.most_tokens for s in scalings if s.most_tokens is not None), default=None)


def check_divisors(scaling: RopeScaling, rotary_dim: int, name: str) -> None:
    if scaling.divisors and len(scaling.divisors) != rotary_dim // 2:
        raise BadFileError(
            f"{name} gives {len(scaling.divisors)} factors for the {rotary_dim // 2} frequencies "
            "of its rotary positions: fetch it again"
        )


def _local(
    config: Mapping[str, Any], family: Family, rotary_dim: int, name: str
) -> tuple[float, RopeScaling]:
    partial_from_hf(config, None, name)
    theta, scaling = scaling_from_hf(config, family.local_theta or 0.0, name)
    check_divisors(scaling, rotary_dim, name)
    return theta, scaling


def _by_layer_type(config: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rotary settings of (full, windowed) layers, each written as if it were the only one."""
    rest = {key: config.get(key) for key in ("max_position_embeddings", "partial_rotary_factor")}
    nested = config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping):
        raise BadFileError(f"{name} describes its rotary positions wrongly: fetch it again")
    parts = [nested.get(kind) or {} for kind in ("full_attention", "sliding_attention")]
    # A setting outside the two would be read by nobody.
    strange = [key for key in nested if key not in ("full_attention", "sliding_attention")]
    if strange or not all(isinstance(part, Mapping) for part in parts):
        raise BadFileError(f"{name} describes its rotary positions wrongly: fetch it again")
    scaling = config.get("rope_scaling") or {}  # of the full layers only
    if not isinstance(scaling, Mapping):
        raise BadFileError(f"{name} describes its rotary positions wrongly: fetch it again")
    theta, local_theta = config.get("rope_theta"), config.get("rope_local_base_freq")
    full = {**rest, "rope_theta": theta, "rope_parameters": {**parts[0], **scaling}}
    return full, {**rest, "rope_theta": local_theta, "rope_parameters": {**parts[1]}}


def _rope_layers(get: Getter, family: Family, num_layers: int) -> tuple[bool, ...]:
    if family.windows_by != "no_rope":
        return (not family.alibi,) * num_layers
    flags = get.per_layer("no_rope_layers", num_layers)
    if flags is None:
        every = get.whole("no_rope_layer_interval", NO_ROPE_EVERY)
        return tuple((i + 1) % every != 0 for i in range(num_layers))
    return tuple(bool(flag) for flag in flags)


def _windows(
    get: Getter, family: Family, rope_layers: tuple[bool, ...], name: str
) -> tuple[int, ...]:
    num_layers = len(rope_layers)
    # A window that is there and null means none; one that is left out, the family's.
    window = get.whole("sliding_window", 0 if get.has("sliding_window") else family.window or 0, 0)
    if family.windows_by == "none" or (not window and family.windows_by != "pattern"):
        return (0,) * num_layers
    if family.windows_by == "all":
        return (window,) * num_layers
    if family.windows_by != "pattern" and not get.flag("use_sliding_window", False):
        return (0,) * num_layers
    if family.windows_by == "asked":
        return (window,) * num_layers
    kinds = _kinds(get, family, rope_layers, name)
    if not window and "sliding_attention" in kinds:
        raise get.bad("sliding_window", None)
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _kinds(get: Getter, family: Family, rope_layers: tuple[bool, ...], name: str) -> list[str]:
    """ "sliding_attention" or "full_attention" for each layer."""
    num_layers = len(rope_layers)
    kinds = get.per_layer("layer_types", num_layers)
    if kinds is None:
        if family.windows_by == "from_layer":
            first = get.whole("max_window_layers", 28, low=0)
            slides = [i >= first for i in range(num_layers)]
        elif family.windows_by == "pattern":
            every = get.whole(family.pattern_key, family.pattern) if family.pattern_key else 0
            every = every or family.pattern
            slides = [(i + 1) % every != 0 for i in range(num_layers)]
        else:
            slides = [not rope for rope in rope_layers]
        kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    unknown = [kind for kind in kinds if kind not in ("sliding_attention", "full_attention")]
    if unknown:
        raise UnsupportedModelError(
            f"{name} has layers of the kind {shown(unknown[0])}, which this version cannot run: "
            f"{WAY_OUT}"
        )
    return kinds
