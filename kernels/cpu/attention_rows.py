"""One query row of each sequence over the paged cache on the CPU: keys are read where they lie.

PagedAttention's decode (Kwon et al. 2023) over one item, see `kernels.cpu.attention`: some keys of
one sequence, KV head after KV head with the query heads that share it. So each row of K and V is
read once, and what is needed next is asked for while the present keys are worked on: 4,000 tokens
from memory take 6.2 ms in 30 layers, 8.7 without (KV of 92 MB, two Zen 4 cores).
"""

from __future__ import annotations

import functools

import numba
import numpy as np
import torch

from kernels.cpu.attention_parts import (
    ATTEND_WORDS,
    ITEM,
    ROW_SPLIT_KEYS,
    SHAPE,
    TILE,
    find_rows,
    mark,
    shape_tensor,
    vectors_of,
    worker_bytes,
)
from kernels.cpu.emit import LANES, tile_shape
from kernels.cpu.jit import address, narrow, operation, widen
from kernels.cpu.vector import add_rows, score_keys, soften


def can_read_rows(dim: int, v_dim: int, per_word: int) -> bool:
    """Whether rows of K and V are whole vectors (of K, half ones)."""
    return dim % (per_word * LANES // 2) == 0 and v_dim % LANES == 0


@functools.cache
def rows_operation(q_kind: type, kv_kind: type, stripe: int, vectors: int, has_half: int) -> int:
    """The operation for all models whose group is cut into so many rows and V into so many vectors;
    arguments as those of `tiles_operation`."""

    per_word = 2 if kv_kind is np.uint16 else 1
    pairs = per_word - 1
    column_bytes = LANES * 4 // per_word
    tile_vectors = TILE // LANES

    def attend(record, item, worker):
        r = numba.carray(address(record), ATTEND_WORDS, np.int64)
        f = numba.carray(address(record), ATTEND_WORDS, np.float64)
        q_at, q_row, k_at, v_at = r[0], r[1], r[2], r[3]
        tables_at, table_row, items_at, num_items = r[5], r[6], r[7], r[8]
        out_at, num_tokens, kv_heads, block_tokens = r[9], r[10], r[11], r[12]
        sinks_at, slopes_at, shape_at, scratch_at = r[13], r[14], r[15], r[16]
        partial_at, num_parts, window, rounds = r[17], r[18], r[19], r[20]
        scale, softcap, alibi_scale = f[21], f[22], f[23]
        shape = numba.carray(address(shape_at), SHAPE, np.int64)
        dim, v_dim, group, most_rows = shape[0], shape[1], shape[2], shape[3]
        scratch_bytes, k_from, v_from = shape[5], shape[6], shape[7]
        k_ahead_from, v_ahead_from, total_from = shape[8], shape[9], shape[10]
        scores_from, shares_from, rows_from = shape[11], shape[12], shape[13]
        places_from = shape[14]
        words = dim // per_word
        k_bytes, v_bytes = dim * 4 // per_word, v_dim * 4 // per_word
        q = numba.carray(address(q_at), num_tokens * q_row, q_kind)
        items = numba.carray(address(items_at), (num_items, ITEM), np.int64)
        out = numba.carray(address(out_at), (num_tokens, kv_heads * group, v_dim), q_kind)
        sinks = numba.carray(address(sinks_at), kv_heads * group, np.float32)
        slopes = numba.carray(address(slopes_at), kv_heads * group, np.float32)
        rounded = numba.carray(address(scratch_at), rounds, np.uint16)
        parts = numba.carray(address(partial_at), (num_parts, most_rows, v_dim + 2), np.float32)
        base = scratch_at + worker * scratch_bytes
        queries = numba.carray(address(base), most_rows * dim, kv_kind)
        k_spots = numba.carray(address(base + k_from), TILE, np.int64)
        v_spots = numba.carray(address(base + v_from), TILE, np.int64)
        k_ahead = numba.carray(address(base + k_ahead_from), TILE, np.int64)
        v_ahead = numba.carray(address(base + v_ahead_from), TILE, np.int64)
        total = numba.carray(address(base + total_from), (most_rows, v_dim), np.float32)
        scores = numba.carray(address(base + scores_from), (most_rows, TILE), np.float32)
        state = numba.carray(address(base + rows_from), (3, most_rows), np.float32)
        rows = numba.carray(address(base + places_from), TILE, np.int64)
        # where
        seq, step, row, place = (
            items[item, 0], items[item, 1], items[item, 2], items[item, 3],
        )  # fmt: skip
        first, first_part = items[item, 5], items[item, 6]
        table = numba.carray(address(tables_at + seq * table_row * 4), table_row, np.int32)
        oldest = max(0, place - window + 1) if window > 0 else 0
        end = place + 1
        if first_part >= 0:
            end = min(end, first + ROW_SPLIT_KEYS)
        find_rows(table, first, oldest, end, block_tokens, kv_heads, 0, rows)
        for head in range(kv_heads):
            # load
            for g in range(most_rows):
                state[0, g] = -np.inf
                state[1, g] = 0
                if sinks_at != 0 and g < group and first <= oldest:
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
                for t in range(TILE):
                    k_spots[t] = k_at + rows[t] * k_bytes
                    v_spots[t] = v_at + rows[t] * v_bytes
                # What comes next: this head's next keys, or the next head's first.
                is_last = start + TILE >= end
                find_rows(
                    table, first if is_last else start + TILE, oldest, end, block_tokens,
                    kv_heads, min(head + is_last, kv_heads - 1), rows,
                )  # fmt: skip
                for t in range(TILE):
                    k_ahead[t] = k_at + rows[t] * k_bytes
                    v_ahead[t] = v_at + rows[t] * v_bytes
                for t in range(0, count, LANES):
                    for g in range(group):
                        score_keys(
                            base + g * k_bytes, base + k_from + t * 8,
                            base + k_ahead_from + t * 8,
                            base + scores_from + (g * TILE + t) * 4, words, has_half,
                            pairs,
                        )  # fmt: skip
                for g in range(group):
                    slope = np.float32(0)
                    if slopes_at != 0:
                        slope = slopes[head * group + g]
                    mark(
                        scores, g, start, end - 1, 0, scale, softcap, slope, alibi_scale,
                        rounded,
                    )  # fmt: skip
                    at = base + rows_from + g * 4
                    soften(
                        base + scores_from + g * TILE * 4,
                        base + shares_from + g * TILE * 4,
                        at, at + most_rows * 4, at + most_rows * 8, tile_vectors, 0,
                    )  # fmt: skip
                for g in range(0, most_rows, stripe):
                    for column in range(0, v_dim // LANES, vectors):
                        add_rows(
                            base + shares_from + g * TILE * 4, TILE, base + v_from,
                            base + v_ahead_from, column * column_bytes,
                            base + total_from + (g * v_dim + column * LANES) * 4, v_dim,
                            base + rows_from + (2 * most_rows + g) * 4, count,
                            stripe, vectors, pairs,
                        )  # fmt: skip
            # store
            part = first_part + head * step
            for g in range(group):
                if first_part >= 0:
                    parts[part, g, v_dim] = state[0, g]
                    parts[part, g, v_dim + 1] = state[1, g]
                    for d in range(v_dim):
                        parts[part, g, d] = total[g, d]
                else:
                    inverse = np.float32(1) / state[1, g]
                    for d in range(v_dim):
                        out[row, head * group + g, d] = narrow(out, total[g, d] * inverse)

    return operation(attend)


@functools.cache
def shape_of(
    dim: int, v_dim: int, group: int, per_word: int
) -> tuple[torch.Tensor, int, tuple[int, int, int], int]:
    """(numbers for the kernel, a worker's bytes of memory, its constants, rows of an item).

    The numbers are as those of `attention_tiles.shape_of`; in the memory lie addresses of K and V,
    of those that come next, sums, scores, shares, the rows' state and places behind the queries.
    The constants: rows whose sums are held at once, vectors of V, whether K has half a vector more.
    """
    most, most_vectors = tile_shape()
    stripes = -(-group // most)
    stripe = -(-group // stripes)
    rows = stripe * stripes
    sizes = (
        rows * dim * 4 // per_word,
        *[TILE * 8] * 4,
        rows * v_dim * 4,
        rows * TILE * 4,
        rows * TILE * 4,
        3 * rows * 4,
        TILE * 8,
    )
    constants = (stripe, vectors_of(v_dim, most_vectors), int(dim // per_word % LANES > 0))
    return (
        shape_tensor((dim, v_dim, group, rows, v_dim), sizes),
        worker_bytes(sizes),
        constants,
        rows,
    )
