"""What whole layers as a program are made of: their own operations, their weights, a pass."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch

from kernels.cpu.bytes import GROUP, HALF, quantise
from kernels.cpu.emit import LANES
from kernels.cpu.jit import address, operation

# --- operations -----------------------------------------------------------------------------------

# The sum so far, what is added to it or 0, weight, width; codes or 0, scales, sums; where the norm
# goes: memory of the workers, or a row for each item; epsilon.
SUM, ADDED, WEIGHT, WIDTH, CODES, SCALES, SUMS, NORM, EPS = range(9)


@functools.cache
def add_norm_operation(fine: int) -> int:
    """An item is a row of float32: sum += added, and its RMS norm, as codes if they are wanted."""
    each = 1 + fine

    def add_norm(record, item, worker):
        r = numba.carray(address(record), 9, np.int64)
        width, codes_at = r[3], r[4]
        eps = numba.carray(address(record), 9, np.float64)[8]
        total = numba.carray(address(r[0] + item * width * 4), width, np.float32)
        weight = numba.carray(address(r[2]), width, np.float32)
        norm_at = r[7] + (item if codes_at == 0 else worker) * width * 4
        norm = numba.carray(address(norm_at), width, np.float32)
        if r[1] != 0:
            added = numba.carray(address(r[1] + item * width * 4), width, np.float32)
            for i in range(width):
                total[i] += added[i]
        squares = np.float32(0)
        for i in range(width):
            squares += total[i] * total[i]
        factor = np.float32(1 / math.sqrt(squares / width + eps))
        for i in range(width):
            norm[i] = total[i] * factor * weight[i]
        if codes_at == 0:
            return
        groups = width // GROUP
        row = item * each
        codes_at, scales_at = codes_at + row * width, r[5] + row * groups * 8
        sums = numba.carray(address(r[6] + row * groups * 4), 2 * groups, np.float32)
        for g in range(groups):
            some = np.float32(0)
            for half in range(2):
                place = g * GROUP + half * HALF
                some += quantise(
                    norm_at + place * 4, 0, codes_at + place, scales_at + (2 * g + half) * 4,
                    codes_at + width + place, scales_at + (2 * (groups + g) + half) * 4, 0, 0, fine,
                )  # fmt: skip
            sums[g] = some
            if fine:
                sums[groups + g] = 0

    return operation(add_norm)


@functools.cache
def head_norm_operation() -> int:
    """An item is a row of float32: RMS norms of all heads of Q and of K, in place.

    The record: x and its stride, heads of Q, of K, head size, weights of both; epsilon.
    """

    def head_norm(record, item, worker):
        r = numba.carray(address(record), 8, np.int64)
        eps = numba.carray(address(record), 8, np.float64)[7]
        heads, dim = r[2] + r[3], r[4]
        x = numba.carray(address(r[0] + item * r[1] * 4), (heads, dim), np.float32)
        for head in range(heads):
            weight_at = r[5] if head < r[2] else r[6]
            weight = numba.carray(address(weight_at), dim, np.float32)
            squares = np.float32(0)
            for i in range(dim):
                squares += x[head, i] * x[head, i]
            factor = np.float32(1 / math.sqrt(squares / dim + eps))
            for i in range(dim):
                x[head, i] = x[head, i] * factor * weight[i]

    return operation(head_norm)


# --- weights --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrix:
    """Packed by `kernels.cpu.products.pack`."""

    packed: torch.Tensor
    bits: int
    num_rows: int
    bias: torch.Tensor | None  # float32
    fine: bool  # multiplied by 16 bits of x; known of Q, K and V only


@dataclass(frozen=True, slots=True)
class LayerWeights:
    input_norm: torch.Tensor  # [hidden] float32
    qkv: Matrix
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # of Q and K, [D] float32
    output: Matrix
    mlp_norm: torch.Tensor
    up: Matrix  # gate, then up
    down: Matrix
    window: int
    rope: int  # which of the model's ropes
    group: int  # which of the layer groups


@dataclass(frozen=True, slots=True)
class Shape:
    hidden: int
    num_heads: int
    kv_heads: int
    dim: int
    rotary_dim: int
    intermediate: int
    eps: float
    scale: float
    softcap: float


MOST_LAYERS = 256  # of a program: each has 14 operations, and the crew counts 4,096


def can_run(shape: Shape, num_layers: int) -> bool:
    """Whether rotary, store and the products take such heads and widths."""
    if num_layers > MOST_LAYERS:
        return False
    fits = shape.rotary_dim % (2 * LANES) == 0 and shape.kv_heads * shape.dim % LANES == 0
    widths = (shape.hidden, shape.intermediate, shape.num_heads * shape.dim)
    return fits and all(width % GROUP == 0 for width in widths)


# --- a pass ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class GroupItems:
    """What a pass reads and writes of one layer group."""

    slots: torch.Tensor  # [T] int64
    tables: torch.Tensor  # [S, max_blocks] int32
    rows: tuple[torch.Tensor, torch.Tensor, int]  # items, merges, number of parts
    chunks: tuple[torch.Tensor, torch.Tensor, int]


@dataclass(slots=True)
class Run:
    """A pass through the layers, and all that its operations read."""

    residual: torch.Tensor  # [T, hidden] float32, changed
    added: torch.Tensor  # [T, hidden] float32
    num_decodes: int
    groups: list[GroupItems]
    turns: Sequence[tuple[torch.Tensor, torch.Tensor]]  # (cos, sin) of each table, [T, rotary_dim]


class Memory:
    """Bytes from a multiple of 64 on."""

    def __init__(self, size: int) -> None:
        whole = torch.empty(size + 64, dtype=torch.uint8)
        skipped = -whole.data_ptr() % 64
        self.tensor = whole[skipped : skipped + size]
        self.at = self.tensor.data_ptr()
