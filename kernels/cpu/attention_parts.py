"""What both attention kernels of the CPU share: items, masks, and parts that are put together."""

from __future__ import annotations

import functools
import itertools
import math
import struct

import numba
import numpy as np
import torch

from kernels.cpu.emit import LANES
from kernels.cpu.jit import address, exp, narrow, operation, widen

TILE = 64  # keys whose scores are held at once
SPLIT_KEYS = 512  # keys of an item, where few rows see more
ROW_SPLIT_KEYS = 256  # the same of single rows
ITEM, MERGE = 7, 5  # numbers that describe one, see `find_items`
# What both kernels are told: Q and its stride, pools and their slots, tables and their width, items
# and their number, out, number of tokens, KV heads, block tokens; addresses of sinks, slopes,
# shape, the workers' memory and parts; number of parts, window, whether ALiBi is rounded to bf16;
# scale, soft-cap, ALiBi's scale.
ATTEND = struct.Struct("<21q3d")
ATTEND_WORDS = 24
# Merges, parts and their number, out, number of tokens, heads, V's size, group, rows of a part.
MERGE_PARTS = struct.Struct("<9q")
SHAPE = 16  # numbers that describe a model's heads and a worker's memory, at most


@numba.njit(inline="always")
def find_rows(table, start, oldest, end, block_tokens, kv_heads, head, rows):
    """rows[t] = where the key at place start + t lies, in rows of the pool; for places that are
    not seen that of one that is: what was never written may be NaN."""
    first = max(start, oldest)
    block, offset = first // block_tokens, first % block_tokens
    row = (np.int64(table[block]) * block_tokens + offset) * kv_heads + head
    for t in range(TILE):
        rows[t] = row
        if oldest <= start + t < end - 1:
            offset += 1
            row += kv_heads
            if offset == block_tokens:
                block += 1
                offset = 0
                row = np.int64(table[block]) * block_tokens * kv_heads + head


@numba.njit(inline="always")
def mark(scores, row, start, place, window, scale, softcap, slope, alibi_scale, rounded):
    """Scores of a row at `place` with keys from `start` on: scaled, capped, biased, masked."""
    for t in range(TILE):
        scores[row, t] *= np.float32(scale)
    if softcap > 0:
        for t in range(TILE):
            scores[row, t] = softcap * math.tanh(scores[row, t] / softcap)
    if slope != 0:
        for t in range(TILE):
            far = np.float32(start + t)
            if len(rounded):  # as a model in bf16 computes its bias
                far = widen(narrow(rounded, far))
                scores[row, t] += widen(narrow(rounded, slope * far)) * np.float32(alibi_scale)
            else:
                scores[row, t] += slope * far * np.float32(alibi_scale)
    for t in range(max(0, place - start + 1), TILE):
        scores[row, t] = -np.inf
    if window > 0:
        for t in range(min(TILE, place - window + 1 - start)):
            scores[row, t] = -np.inf


@functools.cache
def merge_operation(q_kind: type) -> int:
    """Parts of the same rows over other keys -> what one item over all of them would be."""

    def merge(record, item, worker):
        r = numba.carray(address(record), 9, np.int64)
        v_dim, group, most_rows = r[6], r[7], r[8]
        merges = numba.carray(address(r[0] + item * MERGE * 8), MERGE, np.int64)
        parts = numba.carray(address(r[1]), (r[2], most_rows, v_dim + 2), np.float32)
        out = numba.carray(address(r[3]), (r[4], r[5], v_dim), q_kind)
        head, first_row, num_rows = merges[0], merges[1], merges[2]
        first, last = merges[3], merges[3] + merges[4]
        for row in range(num_rows * group):
            best = np.float32(-np.inf)
            for part in range(first, last):
                best = max(best, parts[part, row, v_dim])
            weight = np.float32(0)
            for part in range(first, last):
                factor = exp(parts[part, row, v_dim] - best)
                weight += factor * parts[part, row, v_dim + 1]
                for d in range(v_dim):
                    before = np.float32(0) if part == first else parts[first, row, d]
                    parts[first, row, d] = before + factor * parts[part, row, d]
            for d in range(v_dim):
                value = parts[first, row, d] / weight
                out[first_row + row // group, head * group + row % group, d] = narrow(out, value)

    return operation(merge)


@functools.lru_cache(maxsize=8)  # every layer of a step asks for the same
def find_items(
    starts: tuple[int, ...],  # [S + 1], the first row of each chunk
    contexts: tuple[int, ...],  # [S]
    kv_heads: int,
    per_item: int,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(items, merges, number of parts) of chunks, dearest items first.

    An item: sequence, KV head, first row, its place, number of rows, first key, part or -1.
    A merge: KV head, first row, number of rows, first part, number of parts.
    """
    items: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    num_parts = 0
    for seq, context in enumerate(contexts):
        start, num_rows = starts[seq], starts[seq + 1] - starts[seq]
        for row in range(0, num_rows, per_item):
            rows = min(per_item, num_rows - row)
            place = context - num_rows + row
            first = max(0, place - window + 1) if window else 0
            keys = range(first, place + rows, SPLIT_KEYS)
            is_split = num_rows <= per_item and len(keys) > 1
            for head in range(kv_heads):
                if not is_split:
                    items.append((seq, head, start + row, place, rows, first, -1))
                    continue
                merges.append((head, start + row, rows, num_parts, len(keys)))
                for key in keys:
                    items.append((seq, head, start + row, place, rows, key, num_parts))
                    num_parts += 1
    items.sort(key=lambda item: -item[4] * (item[3] + item[4] - item[5]))
    return _as_tensors(items, merges, num_parts)


@functools.lru_cache(maxsize=8)
def find_row_items(
    contexts: tuple[int, ...], kv_heads: int, window: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The same of single rows. An item has all KV heads, which lie side by side in memory: in the
    place of the head is the number of parts from one head to the next."""
    items: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    num_parts = 0
    for seq, context in enumerate(contexts):
        first = max(0, context - window) if window else 0
        keys = range(first, context, ROW_SPLIT_KEYS)
        if len(keys) == 1:
            items.append((seq, 0, seq, context - 1, 1, first, -1))
            continue
        for head in range(kv_heads):
            merges.append((head, seq, 1, num_parts + head * len(keys), len(keys)))
        for part, key in enumerate(keys):
            items.append((seq, len(keys), seq, context - 1, 1, key, num_parts + part))
        num_parts += kv_heads * len(keys)
    items.sort(key=lambda item: -min(item[3] + 1 - item[5], ROW_SPLIT_KEYS))
    return _as_tensors(items, merges, num_parts)


def _as_tensors(
    items: list[tuple[int, ...]], merges: list[tuple[int, ...]], num_parts: int
) -> tuple[torch.Tensor, torch.Tensor, int]:
    return (
        torch.tensor(items, dtype=torch.int64).view(-1, ITEM),
        torch.tensor(merges, dtype=torch.int64).view(-1, MERGE),
        num_parts,
    )


# --- a worker's memory ----------------------------------------------------------------------------


def vectors_of(v_dim: int, most: int) -> int:
    """Vectors of V in a tile of sums: few kinds, for each is compiled."""
    needed = -(-v_dim // LANES)
    return next(n for n in (4, 2, 1) if n <= most and needed % n == 0)


def _ends(sizes: tuple[int, ...]) -> list[int]:
    return list(itertools.accumulate(-(-size // 64) * 64 for size in sizes))


def worker_bytes(sizes: tuple[int, ...]) -> int:
    """Of pieces of so many bytes, each from a multiple of 64 on."""
    return _ends(sizes)[-1]


def shape_tensor(numbers: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """[SHAPE] int64: the numbers, the bytes of a worker's memory, where its pieces begin but the
    first, which begins at 0."""
    values = [*numbers, worker_bytes(sizes), *_ends(sizes)[:-1]]
    return torch.tensor(values + [0] * (SHAPE - len(values)), dtype=torch.int64)
