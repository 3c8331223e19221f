"""Chunks over the paged cache on the CPU: blocked attention, each tile of keys packed once.

FlashAttention's loop (Dao et al. 2022) over one item, see `kernels.cpu.attention`: for each tile of
64 keys, K is transposed and V interleaved as the machine's products want them, then stripes of rows
go over the tile: scores, softmax, sums.
"""

from __future__ import annotations

import functools

import numba
import numpy as np
import torch

from kernels.cpu.attention_parts import (
    ATTEND_WORDS,
    ITEM,
    SHAPE,
    SPLIT_KEYS,
    TILE,
    find_rows,
    mark,
    shape_tensor,
    vectors_of,
    worker_bytes,
)
from kernels.cpu.emit import LANES, tile_shape
from kernels.cpu.jit import address, narrow, operation, widen
from kernels.cpu.vector import interleave, soften, tile_product, transpose_words

# Rows of an item, query heads of the group counted: keys are packed once for so many.
MOST_ROWS = 192


@numba.njit(inline="always")
def _pack_keys(keys, kt, places, spots, spots_at, keys_at, kt_at, dim, per_word, row_bytes):
    """keys[places[t]] -> kt[word, t, value in word]; a last half word is filled with 0."""
    words = (dim + per_word - 1) // per_word
    whole = dim // per_word // LANES * LANES
    for t in range(TILE):
        spots[t] = keys_at + places[t] * row_bytes
    for t in range(0, TILE, LANES):
        for word in range(0, whole, LANES):
            transpose_words(spots_at + t * 8, word * 4, kt_at + (word * TILE + t) * 4, TILE)
    for t in range(TILE):
        for d in range(whole * per_word, words * per_word):
            value = keys[places[t] * dim + d] if d < dim else 0
            kt[(d // per_word * TILE + t) * per_word + d % per_word] = value


@numba.njit(inline="always")
def _pack_values(values, packed, places, values_at, packed_at, dim, width, per_word):
    """values[places[t]] -> packed[t // per_word, d, t % per_word]; columns from `dim` on stay."""
    whole = dim // LANES * LANES if per_word == 2 else 0
    for t in range(0, TILE, per_word):
        for d in range(0, whole, LANES):
            interleave(
                values_at + (places[t] * dim + d) * 2,
                values_at + (places[t + 1] * dim + d) * 2,
                packed_at + (t * width + d * 2) * 2, 1,
            )  # fmt: skip
        for i in range(per_word):
            for d in range(whole, dim):
                packed[t * width + d * per_word + i] = values[places[t + i] * dim + d]


@functools.cache
def tiles_operation(q_kind: type, kv_kind: type, v_vectors: int) -> int:
    """The operation for all head sizes, groups and kinds of scoring: it is compiled once."""

    stripe, vectors = tile_shape()
    per_word = 2 if kv_kind is np.uint16 else 1
    pairs = per_word - 1
    share_words, key_vectors = TILE // per_word, TILE // LANES

    def attend(record, item, worker):
        r = numba.carray(address(record), ATTEND_WORDS, np.int64)
        f = numba.carray(address(record), ATTEND_WORDS, np.float64)
        q_at, q_row, k_at, v_at, pool_slots = r[0], r[1], r[2], r[3], r[4]
        tables_at, table_row, items_at, num_items = r[5], r[6], r[7], r[8]
        out_at, num_tokens, kv_heads, block_tokens = r[9], r[10], r[11], r[12]
        sinks_at, slopes_at, shape_at, scratch_at = r[13], r[14], r[15], r[16]
        partial_at, num_parts, window, rounds = r[17], r[18], r[19], r[20]
        scale, softcap, alibi_scale = f[21], f[22], f[23]
        shape = numba.carray(address(shape_at), SHAPE, np.int64)
        dim, v_dim, group, most_rows, width = shape[0], shape[1], shape[2], shape[3], shape[4]
        scratch_bytes, k_from, v_from, spots_from = shape[5], shape[6], shape[7], shape[8]
        total_from, scores_from, shares_from, rows_from = (
            shape[9], shape[10], shape[11], shape[12],
        )  # fmt: skip
        row_places_from, places_from = shape[13], shape[14]
        words = (dim + per_word - 1) // per_word
        row_bytes = dim * 4 // per_word
        q = numba.carray(address(q_at), num_tokens * q_row, q_kind)
        keys = numba.carray(address(k_at), pool_slots * kv_heads * dim, kv_kind)
        values = numba.carray(address(v_at), pool_slots * kv_heads * v_dim, kv_kind)
        items = numba.carray(address(items_at), (num_items, ITEM), np.int64)
        out = numba.carray(address(out_at), (num_tokens, kv_heads * group, v_dim), q_kind)
        sinks = numba.carray(address(sinks_at), kv_heads * group, np.float32)
        slopes = numba.carray(address(slopes_at), kv_heads * group, np.float32)
        rounded = numba.carray(address(scratch_at), rounds, np.uint16)
        parts = numba.carray(address(partial_at), (num_parts, most_rows, v_dim + 2), np.float32)
        base = scratch_at + worker * scratch_bytes
        queries = numba.carray(address(base), most_rows * words * per_word, kv_kind)
        kt = numba.carray(address(base + k_from), words * TILE * per_word, kv_kind)
        packed = numba.carray(address(base + v_from), TILE * width, kv_kind)
        spots = numba.carray(address(base + spots_from), TILE, np.int64)
        total = numba.carray(address(base + total_from), (most_rows, width), np.float32)
        scores = numba.carray(address(base + scores_from), (stripe, TILE), np.float32)
        state = numba.carray(address(base + rows_from), (4, most_rows), np.float32)
        row_places = numba.carray(address(base + row_places_from), most_rows, np.int64)
        places = numba.carray(address(base + places_from), TILE, np.int64)
        if width > v_dim:
            for i in range(TILE * width):
                packed[i] = 0
        # where
        seq, head, first_row = items[item, 0], items[item, 1], items[item, 2]
        first_place, num_rows = items[item, 3], items[item, 4]
        first, part = items[item, 5], items[item, 6]
        table = numba.carray(address(tables_at + seq * table_row * 4), table_row, np.int32)
        oldest = max(0, first_place - window + 1) if window > 0 else 0
        end = first_place + num_rows
        if part >= 0:
            end = min(end, first + SPLIT_KEYS)
        used = (num_rows * group + stripe - 1) // stripe * stripe
        # load
        for row in range(used):
            g, is_row = row % group, row < num_rows * group
            state[0, row] = -np.inf
            state[1, row] = 0
            state[3, row] = slopes[head * group + g] if slopes_at != 0 else 0
            row_places[row] = first_place + row // group
            if sinks_at != 0 and is_row and first <= oldest:
                state[0, row] = sinks[head * group + g]
                state[1, row] = 1
            for d in range(width):
                total[row, d] = 0
            at = (first_row + row // group) * q_row + (head * group + g) * dim
            for d in range(words * per_word):
                value = widen(q[at + d]) if is_row and d < dim else np.float32(0)
                queries[row * words * per_word + d] = narrow(queries, value)
        # compute
        for start in range(first, end, TILE):
            find_rows(table, start, oldest, end, block_tokens, kv_heads, head, places)
            _pack_keys(
                keys, kt, places, spots, base + spots_from, k_at, base + k_from, dim,
                per_word, row_bytes,
            )  # fmt: skip
            _pack_values(values, packed, places, v_at, base + v_from, v_dim, width, per_word)
            for row in range(0, used, stripe):
                if start > row_places[row + stripe - 1]:
                    continue
                if window > 0 and start + TILE <= row_places[row] - window + 1:
                    continue
                for column in range(0, TILE, LANES * vectors):
                    tile_product(
                        base + row * words * 4, words, base + k_from + column * 4, TILE,
                        base + scores_from + column * 4, TILE, base, words,
                        stripe, vectors, pairs, 0,
                    )  # fmt: skip
                for r in range(stripe):
                    at = base + rows_from + (row + r) * 4
                    mark(
                        scores, r, start, row_places[row + r], window, scale, softcap,
                        state[3, row + r], alibi_scale, rounded,
                    )  # fmt: skip
                    soften(
                        base + scores_from + r * TILE * 4,
                        base + shares_from + r * share_words * 4,
                        at, at + most_rows * 4, at + most_rows * 8, key_vectors, pairs,
                    )  # fmt: skip
                for column in range(0, width, LANES * v_vectors):
                    tile_product(
                        base + shares_from, share_words, base + v_from + column * 4, width,
                        base + total_from + (row * width + column) * 4, width,
                        base + rows_from + (2 * most_rows + row) * 4, share_words,
                        stripe, v_vectors, pairs, 1,
                    )  # fmt: skip
        # store
        for row in range(num_rows * group):
            g = row % group
            inverse = np.float32(1) / state[1, row]
            if part >= 0:
                inverse = np.float32(1)
                parts[part, row, v_dim] = state[0, row]
                parts[part, row, v_dim + 1] = state[1, row]
            for d in range(v_dim):
                if part >= 0:
                    parts[part, row, d] = total[row, d]
                else:
                    out[first_row + row // group, head * group + g, d] = narrow(
                        out, total[row, d] * inverse
                    )

    return operation(attend)


@functools.cache
def most_rows_of(group: int) -> tuple[int, int]:
    """(rows of the largest item filled up to whole stripes, query rows of it)."""
    stripe, query_rows = tile_shape()[0], max(1, MOST_ROWS // group)
    return -(-query_rows * group // stripe) * stripe, query_rows


@functools.cache
def shape_of(dim: int, v_dim: int, group: int, per_word: int) -> tuple[torch.Tensor, int, int]:
    """(numbers for the kernel, a worker's bytes of memory, vectors of a product with V).

    The numbers: head sizes, group, rows of an item, columns that V is filled up to, bytes of a
    worker's memory, and where in it K, V, addresses, sums, scores, shares, the rows' state, their
    places and those of keys lie behind the queries.
    """
    stripe, vectors = tile_shape()
    most_rows = most_rows_of(group)[0]
    v_vectors = vectors_of(v_dim, vectors)
    words, width = -(-dim // per_word), -(-v_dim // LANES) * LANES
    sizes = (
        most_rows * words * 4,
        words * TILE * 4,
        TILE * width * 4 // per_word,
        TILE * 8,
        most_rows * width * 4,
        stripe * TILE * 4,
        stripe * TILE * 4,
        4 * most_rows * 4,
        most_rows * 8,
        TILE * 8,
    )
    return (
        shape_tensor((dim, v_dim, group, most_rows, width), sizes),
        worker_bytes(sizes),
        v_vectors,
    )
