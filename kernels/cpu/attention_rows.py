"""One query row of each sequence over the paged cache on the CPU: keys are read where they lie.

PagedAttention's decode (Kwon et al. 2023) over one item, see `kernels.cpu.attention`: a KV head of
one sequence and the query heads that share it, so each row of K and V is read once for all of them.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numba
import numpy as np

from kernels.cpu.attention_parts import ITEM, SPLIT_KEYS, TILE, find_rows, mark
from kernels.cpu.emit import LANES, tile_shape
from kernels.cpu.jit import address, kernel, narrow, widen
from kernels.cpu.vector import add_rows, prefetch, score_keys, soften, take


def can_read_rows(dim: int, v_dim: int, per_word: int) -> bool:
    """Whether rows of K and V are whole vectors (of K, half ones)."""
    return dim % (per_word * LANES // 2) == 0 and v_dim % LANES == 0


@functools.cache
def rows_kernel(
    dim: int, v_dim: int, group: int, q_kind: type, kv_kind: type, has_sinks: bool, alibi_kind: Any
) -> Any:
    """The kernel for one head size and group; arguments as those of `tiles_kernel`."""

    has_alibi = alibi_kind is not None
    slope_kind = alibi_kind or np.float32
    per_word = 2 if kv_kind is np.uint16 else 1
    pairs = per_word - 1
    words = dim // per_word
    stripe, most_rows, vectors = _stripes(v_dim, group)
    k_bytes, v_bytes = dim * 4 // per_word, v_dim * 4 // per_word
    column_bytes = LANES * 4 // per_word
    tile_vectors = TILE // LANES
    offsets, scratch_bytes = scratch(dim, v_dim, group, per_word)
    k_from, v_from, total_from, scores_from, shares_from, rows_from = offsets

    @kernel(parallel=True)
    def attend(
        q_at, q_row, k_at, v_at, pool_slots, tables_at, table_row, items_at, num_items, out_at,
        num_tokens, kv_heads, block_tokens, scale, window, softcap, sinks_at, alibi_at,
        alibi_scale, scratch_at, partial_at, num_parts, workers, counter_at,
    ):  # fmt: skip
        numba.carray(address(counter_at), 1, np.int64)[0] = 0
        q = numba.carray(address(q_at), num_tokens * q_row, q_kind)
        items = numba.carray(address(items_at), (num_items, ITEM), np.int64)
        out = numba.carray(address(out_at), (num_tokens, kv_heads * group, v_dim), q_kind)
        sinks = numba.carray(address(sinks_at), kv_heads * group, np.float32)
        slopes = numba.carray(address(alibi_at), kv_heads * group, slope_kind)
        parts = numba.carray(address(partial_at), (num_parts, most_rows, v_dim + 2), np.float32)
        for worker in numba.prange(workers):
            base = scratch_at + worker * scratch_bytes
            queries = numba.carray(address(base), most_rows * dim, kv_kind)
            k_spots = numba.carray(address(base + k_from), TILE, np.int64)
            v_spots = numba.carray(address(base + v_from), TILE, np.int64)
            total = numba.carray(address(base + total_from), (most_rows, v_dim), np.float32)
            scores = numba.carray(address(base + scores_from), (most_rows, TILE), np.float32)
            state = numba.carray(address(base + rows_from), (3, most_rows), np.float32)
            rows = np.empty(TILE, np.int64)
            while True:
                item = take(counter_at)
                if item >= num_items:
                    break
                # where
                seq, head, row, place = (
                    items[item, 0], items[item, 1], items[item, 2], items[item, 3],
                )  # fmt: skip
                first, part = items[item, 5], items[item, 6]
                table = numba.carray(address(tables_at + seq * table_row * 4), table_row, np.int32)
                oldest = max(0, place - window + 1) if window > 0 else 0
                end = place + 1 if part < 0 else min(place + 1, first + SPLIT_KEYS)
                # load
                for g in range(most_rows):
                    state[0, g] = -np.inf
                    state[1, g] = 0
                    if has_sinks and g < group and first <= oldest:
                        state[0, g] = sinks[head * group + g]
                        state[1, g] = 1
                    for d in range(v_dim):
                        total[g, d] = 0
                    at = row * q_row + (head * group + g) * dim
                    for d in range(dim):
                        value = widen(q[at + d]) if g < group else np.float32(0)
                        queries[g * dim + d] = narrow(queries, value)
                # compute
                for start in range(first, end, TILE):
                    count = min(TILE, end - start)
                    find_rows(table, start, oldest, end, block_tokens, kv_heads, head, rows)
                    for t in range(TILE):
                        k_spots[t] = k_at + rows[t] * k_bytes
                        v_spots[t] = v_at + rows[t] * v_bytes
                    # Rows lie apart, so the machine does not guess which comes next.
                    for t in range(count):
                        for line in range(0, v_bytes, 64):
                            prefetch(v_spots[t] + line)
                    if start + TILE < end:
                        find_rows(
                            table, start + TILE, oldest, end, block_tokens, kv_heads, head, rows
                        )
                        for t in range(TILE):
                            for line in range(0, k_bytes, 64):
                                prefetch(k_at + rows[t] * k_bytes + line)
                    for t in range(0, count, LANES):
                        for g in range(group):
                            score_keys(
                                base + g * k_bytes, base + k_from + t * 8,
                                base + scores_from + (g * TILE + t) * 4, words, pairs,
                            )  # fmt: skip
                    for g in range(group):
                        mark(
                            scores, g, start, end - 1, 0, scale, softcap, has_alibi, slopes,
                            head * group + g, alibi_scale,
                        )  # fmt: skip
                        at = base + rows_from + g * 4
                        soften(
                            base + scores_from + g * TILE * 4, base + shares_from + g * TILE * 4,
                            at, at + most_rows * 4, at + most_rows * 8, tile_vectors, 0,
                        )  # fmt: skip
                    for g in range(0, most_rows, stripe):
                        for column in range(0, v_dim // LANES, vectors):
                            add_rows(
                                base + shares_from + g * TILE * 4, TILE, base + v_from,
                                column * column_bytes,
                                base + total_from + (g * v_dim + column * LANES) * 4, v_dim,
                                base + rows_from + (2 * most_rows + g) * 4, count,
                                stripe, vectors, pairs,
                            )  # fmt: skip
                # store
                for g in range(group):
                    if part >= 0:
                        parts[part, g, v_dim] = state[0, g]
                        parts[part, g, v_dim + 1] = state[1, g]
                        for d in range(v_dim):
                            parts[part, g, d] = total[g, d]
                    else:
                        inverse = np.float32(1) / state[1, g]
                        for d in range(v_dim):
                            out[row, head * group + g, d] = narrow(out, total[g, d] * inverse)

    return attend


@functools.cache
def _stripes(v_dim: int, group: int) -> tuple[int, int, int]:
    """(rows whose sums are held at once, rows of an item filled up to whole stripes, vectors)."""
    most, most_vectors = tile_shape()
    needed = v_dim // LANES
    vectors = max(n for n in range(1, most_vectors + 1) if needed % n == 0)
    stripes = -(-group // most)
    stripe = -(-group // stripes)
    return stripe, stripe * stripes, vectors


def most_rows_of(v_dim: int, group: int) -> int:
    return _stripes(v_dim, group)[1]


@functools.cache
def scratch(dim: int, v_dim: int, group: int, per_word: int) -> tuple[tuple[int, ...], int]:
    """Where addresses of K, of V, sums, scores, shares and the rows' state lie behind the queries
    in a worker's memory, and its size, in bytes."""
    rows = most_rows_of(v_dim, group)
    sizes = (
        rows * dim * 4 // per_word,
        TILE * 8,
        TILE * 8,
        rows * v_dim * 4,
        rows * TILE * 4,
        rows * TILE * 4,
        3 * rows * 4,
    )
    ends = tuple(itertools.accumulate(-(-size // 64) * 64 for size in sizes))
    return ends[:-1], ends[-1]
