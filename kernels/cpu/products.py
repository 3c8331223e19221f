"""Matrix products with 4- and 8-bit weights on the CPU, as they lie in a GGUF file.

A weight is scale * code + minimum, with one scale and one minimum for 32 codes of a row.
Activations are turned into signed bytes, 16 of a scale: where nothing else is rounded, the starter
model agrees with its fp32 self in 97.8 % of next tokens, with 32 of a scale in 97.1 %, with bf16
activations in 99.2 %. What all of `fast` comes to, `tests/quality.py` measures.

Packed weights: for 16 rows and each group of 32 columns, the rows' words of 4 bytes side by side
(of 4-bit codes, the low halves are columns 0 to 15 and the high ones 16 to 31), then 16 scales and
16 minima in float16. One stream, 5 or 9 bits a weight.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu.bytes import GROUP, HALF, byte_product, group_bytes, quantise
from kernels.cpu.emit import LANES
from kernels.cpu.jit import address, kernel, lock_threads, narrow, scratch
from kernels.cpu.tensors import KINDS
from kernels.cpu.vector import take

_VECTORS = 2  # of 16 weight rows in a tile
_ROWS = 6  # of x in a tile, at most: 12 sums and 12 dots in 32 registers
_FEW_ROWS = 16  # quantised by one thread


def pack(codes: torch.Tensor, scale: torch.Tensor, least: torch.Tensor, bits: int) -> torch.Tensor:
    """Weights as the kernels read them, uint8.

    Args:
        codes: [rows, groups, 4 * bits] uint8; of 4 bits two to a byte, i and i + 16.
        scale, least: [rows, groups], held as float16.
    """
    rows, groups = scale.shape
    padded = -(-rows // (_VECTORS * LANES)) * _VECTORS * LANES
    packed = torch.zeros(padded // LANES, groups, group_bytes(bits), dtype=torch.uint8)
    words = packed[..., : 4 * bits * LANES].view(torch.int32).view(-1, groups, bits, LANES)
    factors = packed[..., 4 * bits * LANES :].view(torch.float16).view(-1, groups, 2, LANES)
    for first in range(0, rows, LANES):  # by few rows: no second copy of the matrix in memory
        some = slice(first, min(first + LANES, rows))
        lanes = some.stop - first
        block = codes[some].contiguous().view(torch.int32)  # [lanes, groups, bits]
        words[first // LANES, :, :, :lanes] = block.permute(1, 2, 0)
        factors[first // LANES, :, 0, :lanes] = scale[some].T
        factors[first // LANES, :, 1, :lanes] = least[some].T
    return packed


def unpack_rows(packed: torch.Tensor, rows: torch.Tensor, bits: int) -> torch.Tensor:
    """[n] numbers of rows -> [n, columns] float32, the rows of packed weights."""
    groups = packed.shape[1]
    words = packed[..., : 4 * bits * LANES].view(torch.int32).view(-1, groups, bits, LANES)
    factors = packed[..., 4 * bits * LANES :].view(torch.float16).view(-1, groups, 2, LANES)
    block, lane = rows // LANES, rows % LANES
    codes = words[block, :, :, lane].contiguous().view(torch.uint8)  # [n, groups, 4 * bits]
    if bits == 4:
        codes = torch.cat((codes & 15, codes >> 4), 2)
    scale, least = factors[block, :, :, lane].float().unsqueeze(-1).unbind(2)
    return torch.addcmul(least, codes.float(), scale).flatten(1)


@numba.njit(inline="always")
def _quantise_row(x, x_bytes, groups, codes, scales, sums, is_bf16, gated):
    """A row of x at an address -> codes and scales at theirs, and the sums of its groups."""
    for g in range(groups):
        total = np.float32(0)
        for half in range(2):
            place = g * GROUP + half * HALF
            total += quantise(
                x + place * x_bytes, x + (groups * GROUP + place) * x_bytes, codes + place,
                scales + (2 * g + half) * 4, is_bf16, gated,
            )  # fmt: skip
        sums[g] = total


@functools.cache
def _kernel(kind: type, bits: int, gated: int) -> Any:
    is_bf16 = int(kind is np.uint16)
    size = group_bytes(bits)
    width = _VECTORS * LANES

    @kernel(parallel=True)
    def multiply(
        x_at, x_row, num_rows, groups, packed_at, num_tiles, bias_at, has_bias, out_at, columns,
        codes_at, scales_at, sums_at, tiles_at, workers, counter_at,
    ):  # fmt: skip
        x_bytes = 2 if is_bf16 else 4
        numba.carray(address(counter_at), 1, np.int64)[0] = 0
        sums = numba.carray(address(sums_at), num_rows * groups, np.float32)
        out = numba.carray(address(out_at), (num_rows, columns), kind)
        bias = numba.carray(address(bias_at), columns, np.float32)
        if num_rows <= _FEW_ROWS:
            for row in range(num_rows):
                _quantise_row(
                    x_at + row * x_row * x_bytes, x_bytes, groups, codes_at + row * groups * GROUP,
                    scales_at + row * groups * 8, sums[row * groups :], is_bf16, gated,
                )  # fmt: skip
        else:
            for row in numba.prange(num_rows):
                _quantise_row(
                    x_at + row * x_row * x_bytes, x_bytes, groups, codes_at + row * groups * GROUP,
                    scales_at + row * groups * 8, sums[row * groups :], is_bf16, gated,
                )  # fmt: skip
        stripes = (num_rows + _ROWS - 1) // _ROWS
        for worker in numba.prange(workers):
            tile_at = tiles_at + worker * _ROWS * width * 4
            tile = numba.carray(address(tile_at), (_ROWS, width), np.float32)
            while True:
                item = take(counter_at)
                if item >= num_tiles:
                    break
                first = item * width
                weights = packed_at + item * _VECTORS * groups * size
                last = min(width, columns - first)
                for stripe in range(stripes):
                    row = stripe * num_rows // stripes
                    rows = (stripe + 1) * num_rows // stripes - row
                    codes, scales = codes_at + row * groups * GROUP, scales_at + row * groups * 8
                    some = sums_at + row * groups * 4
                    byte_product(
                        codes, groups * GROUP, scales, some, 2 * groups, weights, groups * size,
                        tile_at, groups, rows, _ROWS, _VECTORS, bits,
                    )  # fmt: skip
                    for r in range(rows):
                        for i in range(last):
                            value = tile[r, i]
                            if has_bias:
                                value += bias[first + i]
                            out[row + r, first + i] = narrow(out, value)

    return multiply


def multiply(
    x: torch.Tensor,  # [M, columns]
    packed: torch.Tensor,  # of `pack`
    bits: int,
    num_rows: int,  # of the matrix
    bias: torch.Tensor | None,  # [num_rows] float32
    gated: bool = False,
) -> torch.Tensor:  # [M, num_rows], in x's dtype
    """x times the matrix. A row's result does not hang on its company.

    Args:
        gated: x is [M, 2 * columns], and what is multiplied silu(first half) * second half.
    """
    m, columns = x.shape[0], x.shape[1] // (1 + gated)
    blocks, groups = packed.shape[:2]
    if (
        columns != groups * GROUP
        or x.shape[1] != columns * (1 + gated)
        or x.dtype not in KINDS
        or not packed.is_contiguous()
    ):
        raise ValueError(f"{tuple(x.shape)} of {x.dtype} does not go with {groups} groups")
    out = torch.empty((m, num_rows), dtype=x.dtype)
    if not m:
        return out
    if x.stride(1) != 1:
        x = x.contiguous()
    num_tiles = blocks // _VECTORS
    with lock_threads():
        workers = min(torch.get_num_threads(), num_tiles)
        sizes = (64, m * columns, m * groups * 8, m * groups * 4, workers * _ROWS * _VECTORS * 64)
        ends = tuple(itertools.accumulate(-(-size // 64) * 64 for size in sizes))
        at = scratch(ends[-1])
        _kernel(KINDS[x.dtype], bits, int(gated))(
            x.data_ptr(), x.stride(0), m, groups, packed.data_ptr(), num_tiles,
            0 if bias is None else bias.data_ptr(), bias is not None, out.data_ptr(), num_rows,
            at + ends[0], at + ends[1], at + ends[2], at + ends[3], workers, at,
        )  # fmt: skip
    return out
