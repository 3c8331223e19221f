"""Matrix products with 4- and 8-bit weights on the CPU, as they lie in a GGUF file.

A weight is scale * code + minimum, with one scale and one minimum for 32 codes of a row.
Activations are turned into signed bytes, 16 of a scale: with 32, and nothing else rounded, the
starter model agrees with its fp32 self in 97.1 % of next tokens, with 16 in 97.8 %. What all of
`fast` comes to, `tests/quality.py` measures.

Packed weights: for 16 rows and each group of 32 columns, the rows' words of 4 bytes side by side
(of 4-bit codes, the low halves are columns 0 to 15 and the high ones 16 to 31), then 16 scales and
16 minima in float16. One stream, 5 or 9 bits a weight.
"""

from __future__ import annotations

import functools
import itertools
import struct

import numba
import numpy as np
import torch

from kernels.cpu.bytes import GROUP, HALF, byte_product, group_bytes, quantise
from kernels.cpu.crew import launch, num_workers
from kernels.cpu.emit import LANES
from kernels.cpu.jit import LOCK, address, narrow, operation, scratch
from kernels.cpu.tensors import KINDS

_VECTORS = 2  # of 16 weight rows in a tile
_ROWS = 6  # of x in a tile, at most: 12 sums and 12 dots in 32 registers


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


# --- operations ----------------------------------------------------------------------------------

# Where `fine` is 1, what the bytes of a row leave of it is a second row behind it, in steps 254
# times finer. With Q, K and V read so, the starter model agrees with its fp32 self in 97.4 to
# 97.7 % of next tokens, instead of 96.9 to 97.4 %.

# Of the rows of x: address, elements from row to row, groups of a row, parts that a row is done in;
# addresses of what becomes of them.
QUANTISE = struct.Struct("<7q")
_X, _X_ROW, _GROUPS, _PARTS, _CODES, _SCALES, _SUMS = range(7)
# Of the product: the last four as above, number of rows, groups; weights, bias or 0, out and its
# columns; tiles of an item and of all; memory of the workers.
MULTIPLY = struct.Struct("<12q")
(
    _M_CODES, _M_SCALES, _M_SUMS, _M_ROWS, _M_GROUPS, _M_PACKED, _M_BIAS, _M_OUT, _M_COLUMNS,
    _M_GRAIN, _M_TILES, _M_MEMORY,
) = range(12)  # fmt: skip
TILE_BYTES = _ROWS * _VECTORS * LANES * 4  # of a worker's memory


@functools.cache
def quantise_operation(kind: type, gated: int, fine: int) -> int:
    """An item is a part of a row of x, that becomes codes, scales and the sums of its groups."""
    is_bf16 = int(kind is np.uint16)
    x_bytes = 4 - 2 * is_bf16

    def quantise_rows(record, item, worker):
        r = numba.carray(address(record), 7, np.int64)
        groups, parts = r[_GROUPS], r[_PARTS]
        row, part = item // parts, item % parts
        x, row = r[_X] + row * r[_X_ROW] * x_bytes, row * (1 + fine)
        codes, scales = r[_CODES] + row * groups * GROUP, r[_SCALES] + row * groups * 8
        sums = numba.carray(address(r[_SUMS] + row * groups * 4), 2 * groups, np.float32)
        for g in range(part * groups // parts, (part + 1) * groups // parts):
            total = np.float32(0)
            for half in range(2):
                place = g * GROUP + half * HALF
                total += quantise(
                    x + place * x_bytes, x + (groups * GROUP + place) * x_bytes, codes + place,
                    scales + (2 * g + half) * 4, codes + groups * GROUP + place,
                    scales + (2 * (groups + g) + half) * 4, is_bf16, gated, fine,
                )  # fmt: skip
            sums[g] = total
            if fine:
                sums[groups + g] = 0

    return operation(quantise_rows)


@functools.cache
def multiply_operation(kind: type, bits: int, fine: int) -> int:
    """An item is some tiles of 32 rows of weights, times all rows of x."""
    size = group_bytes(bits)
    width = _VECTORS * LANES
    each = 1 + fine  # rows of bytes of a row of x

    def multiply(record, item, worker):
        r = numba.carray(address(record), 12, np.int64)
        num_rows, groups, columns, bias_at = r[_M_ROWS], r[_M_GROUPS], r[_M_COLUMNS], r[_M_BIAS]
        out = numba.carray(address(r[_M_OUT]), (num_rows, columns), kind)
        bias = numba.carray(address(bias_at), columns, np.float32)
        tile_at = r[_M_MEMORY] + worker * TILE_BYTES
        tile = numba.carray(address(tile_at), (_ROWS, width), np.float32)
        stripes = (num_rows * each + _ROWS - 1) // _ROWS
        for number in range(item * r[_M_GRAIN], min((item + 1) * r[_M_GRAIN], r[_M_TILES])):
            first = number * width
            weights = r[_M_PACKED] + number * _VECTORS * groups * size
            last = min(width, columns - first)
            for stripe in range(stripes):
                row = stripe * num_rows // stripes
                rows = (stripe + 1) * num_rows // stripes - row
                codes = r[_M_CODES] + row * each * groups * GROUP
                scales = r[_M_SCALES] + row * each * groups * 8
                some = r[_M_SUMS] + row * each * groups * 4
                byte_product(
                    codes, groups * GROUP, scales, some, 2 * groups, weights, groups * size,
                    tile_at, groups, rows * each, _ROWS, _VECTORS, bits,
                )  # fmt: skip
                for i in range(rows):
                    for j in range(last):
                        value = tile[2 * i, j] + tile[2 * i + 1, j] if fine else tile[i, j]
                        if bias_at != 0:
                            value += bias[first + j]
                        out[row + i, first + j] = narrow(out, value)

    return operation(multiply)


def tiles_of(packed: torch.Tensor, num_rows: int, workers: int) -> tuple[int, int, int]:
    """(tiles of an item, number of tiles, number of items): few items, for each is taken with a
    trip from core to core, and enough that a thread that is held up leaves some to the others."""
    num_tiles = packed.shape[0] // _VECTORS
    grain = max(1, num_tiles // (workers * (6 if num_rows < _ROWS else 16)))
    return grain, num_tiles, -(-num_tiles // grain)


# --- one product ----------------------------------------------------------------------------------


def multiply(
    x: torch.Tensor,  # [M, columns]
    packed: torch.Tensor,  # of `pack`
    bits: int,
    num_rows: int,  # of the matrix
    bias: torch.Tensor | None,  # [num_rows] float32
    gated: bool = False,
    fine: bool = False,
) -> torch.Tensor:  # [M, num_rows], in x's dtype
    """x times the matrix. A row's result does not hang on its company.

    Args:
        gated: x is [M, 2 * columns], and what is multiplied silu(first half) * second half.
        fine: with 16 bits of x instead of 8.
    """
    m, columns = x.shape[0], x.shape[1] // (1 + gated)
    groups = packed.shape[1]
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
    with LOCK:
        workers = num_workers()
        rows = m * (1 + fine)
        sizes = (rows * columns, rows * groups * 8, rows * groups * 4, workers * TILE_BYTES)
        ends = tuple(itertools.accumulate((-(-size // 64) * 64 for size in sizes), initial=0))
        at = scratch(ends[-1])
        quantised = (at, at + ends[1], at + ends[2])
        kind = KINDS[x.dtype]
        grain, num_tiles, num_items = tiles_of(packed, m, workers)
        launch(
            workers,
            (
                quantise_operation(kind, int(gated), int(fine)), QUANTISE,
                (x.data_ptr(), x.stride(0), groups, 1, *quantised), m,
            ),
            (
                multiply_operation(kind, bits, int(fine)), MULTIPLY,
                (
                    *quantised, m, groups, packed.data_ptr(),
                    0 if bias is None else bias.data_ptr(), out.data_ptr(), num_rows, grain,
                    num_tiles, at + ends[3],
                ), num_items,
            ),
        )  # fmt: skip
    return out
