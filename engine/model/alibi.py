"""Alibi: the slopes of a model that adds a share of each key's place to its score.

Families agree on the idea only: the slopes of head counts that are no power of two, the precision
of the product and its scale differ, and a model answers as it was trained.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.model.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Alibi:
    """What the attention kernels take; the product of slope and place has the slopes' dtype."""

    slopes: torch.Tensor  # [Hq] fp32 or bf16
    scale: float  # of the product


def alibi_of(config: DecoderConfig, device: torch.device) -> Alibi | None:
    """None: the model knows its positions otherwise."""
    if not config.alibi:
        return None
    if config.alibi == "mpt":
        slopes = _mpt_slopes(config.num_heads)
    else:
        slopes = _bloom_slopes(config.num_heads)
    if config.alibi == "falcon":  # rounded, and scaled as the scores are
        return Alibi(slopes.to(device, torch.bfloat16), config.scale)
    return Alibi(slopes.to(device), 1.0)


def _bloom_slopes(num_heads: int) -> torch.Tensor:
    """[num_heads]: 2^(-8 i / n) for the next lower power of two n, then every second of 2 n."""
    whole = 1 << (num_heads.bit_length() - 1)

    def powers(count: int, exponents: torch.Tensor) -> torch.Tensor:
        base = torch.tensor(2.0 ** (-8.0 / count), dtype=torch.float32)
        return torch.pow(base, exponents.to(torch.int32))

    slopes = powers(whole, torch.arange(1, 1 + whole))
    rest = powers(2 * whole, torch.arange(1, 1 + 2 * (num_heads - whole), 2))
    return torch.cat((slopes, rest))


def _mpt_slopes(num_heads: int) -> torch.Tensor:
    """[num_heads] of the next higher power of two n: every second from the second, then from the
    first."""
    whole = 1 << math.ceil(math.log2(num_heads))
    slopes = torch.pow(2, -torch.arange(1, whole + 1).float() * (8 / whole))
    if whole == num_heads:
        return slopes
    return torch.cat((slopes[1::2], slopes[::2]))[:num_heads]
