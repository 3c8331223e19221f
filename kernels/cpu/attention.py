"""Paged attention on the CPU: decode compiled by Numba, prefill gathered once for torch."""

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F

from kernels.cpu.jit import address, exp, kernel, lock_threads, narrow, widen
from kernels.cpu.tensors import KINDS, check_pools, packed_rows
from kernels.reference import Scoring

_TILE = 64  # keys whose scores are held at once
_TILE_SCORES = 1 << 20  # scores of a prefill that are held at once, 4 MiB


@functools.cache
def _decode_kernel(
    dim: int, v_dim: int, group: int, q_kind: type, kv_kind: type, has_sinks: bool, alibi_kind: Any
) -> Any:
    """The kernel for one head size and group: constants let the inner loops unroll.

    `alibi_kind` is None where there is no ALiBi: what a model does not have costs it nothing.

    An item is one sequence and one KV head, so each row of K and V is read once for its group.
    Softmax runs online over tiles of keys. Items share nothing: a sequence's result does not hang
    on its company.
    """

    has_alibi = alibi_kind is not None
    slope_kind = alibi_kind or np.float32
    widest = max(dim, v_dim)

    @kernel(parallel=True)
    def attend(
        q_at, q_row, k_at, v_at, pool_slots, tables_at, table_row, lens_at, out_at,
        num_seqs, kv_heads, block_tokens, scale, window, softcap, sinks_at, alibi_at, alibi_scale,
    ):  # fmt: skip
        q = numba.carray(address(q_at), num_seqs * q_row, q_kind)
        keys = numba.carray(address(k_at), (pool_slots, kv_heads, dim), kv_kind)
        values = numba.carray(address(v_at), (pool_slots, kv_heads, v_dim), kv_kind)
        tables = numba.carray(address(tables_at), num_seqs * table_row, np.int32)
        lens = numba.carray(address(lens_at), num_seqs, np.int32)
        out = numba.carray(address(out_at), num_seqs * kv_heads * group * v_dim, q_kind)
        sinks = numba.carray(address(sinks_at), kv_heads * group, np.float32)
        slopes = numba.carray(address(alibi_at), kv_heads * group, slope_kind)
        for item in numba.prange(num_seqs * kv_heads):
            # where
            seq, head = item // kv_heads, item % kv_heads
            context = np.int64(lens[seq])
            first = max(0, context - window) if window > 0 else 0
            # load
            query = np.empty((group, dim), np.float32)
            row = np.empty(widest, np.float32)
            slots = np.empty(_TILE, np.int64)
            scores = np.empty((group, _TILE), np.float32)
            total = np.empty((group, v_dim), np.float32)
            weight = np.empty(group, np.float32)
            highest = np.empty(group, np.float32)
            for g in range(group):
                weight[g] = 0
                highest[g] = -np.inf
                if has_sinks:
                    weight[g] = 1
                    highest[g] = sinks[head * group + g]
                for d in range(v_dim):
                    total[g, d] = 0
                for d in range(dim):
                    at = seq * q_row + (head * group + g) * dim + d
                    query[g, d] = widen(q[at]) * np.float32(scale)
            # compute
            for start in range(first, context, _TILE):
                count = min(_TILE, context - start)
                for t in range(count):
                    place = start + t
                    block = np.int64(tables[seq * table_row + place // block_tokens])
                    slot = block * block_tokens + place % block_tokens
                    slots[t] = slot
                    for d in range(dim):
                        row[d] = widen(keys[slot, head, d])
                    for g in range(group):
                        score = np.float32(0)
                        for d in range(dim):
                            score += query[g, d] * row[d]
                        scores[g, t] = score
                for g in range(group):
                    best = highest[g]
                    for t in range(count):
                        if softcap > 0:
                            scores[g, t] = softcap * math.tanh(scores[g, t] / softcap)
                        if has_alibi:
                            place = widen(narrow(slopes, np.float32(start + t)))
                            bias = narrow(slopes, widen(slopes[head * group + g]) * place)
                            scores[g, t] += widen(bias) * np.float32(alibi_scale)
                        best = max(best, scores[g, t])
                    keep = exp(highest[g] - best)
                    highest[g] = best
                    added = np.float32(0)
                    for t in range(count):
                        share = exp(scores[g, t] - best)
                        scores[g, t] = share
                        added += share
                    weight[g] = weight[g] * keep + added
                    for d in range(v_dim):
                        total[g, d] *= keep
                for t in range(count):
                    slot = slots[t]
                    for d in range(v_dim):
                        row[d] = widen(values[slot, head, d])
                    for g in range(group):
                        share = scores[g, t]
                        for d in range(v_dim):
                            total[g, d] += share * row[d]
            # store
            for g in range(group):
                inverse = np.float32(1) / weight[g]
                at = (seq * kv_heads * group + head * group + g) * v_dim
                for d in range(v_dim):
                    out[at + d] = narrow(out, total[g, d] * inverse)

    return attend


def paged_decode(
    q: torch.Tensor,  # [S, Hq, D]
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    alibi_scale: float = 1.0,
) -> torch.Tensor:
    """As the reference; reads no slot beyond a sequence's context, and none before its window."""
    num_seqs, num_heads, dim = q.shape
    kv_heads, v_dim = v_pool.shape[2:]
    _check_paged(q, k_pool, v_pool, block_tables, context_lens)
    sinks, alibi = _checked(sinks, num_heads, torch.float32), _checked(alibi, num_heads, *KINDS)
    out = torch.empty((num_seqs, num_heads, v_dim), dtype=q.dtype)
    if not num_seqs:
        return out
    q, tables, lens = packed_rows(q), block_tables.contiguous(), context_lens.contiguous()
    attend = _decode_kernel(
        dim, v_dim, num_heads // kv_heads, KINDS[q.dtype], KINDS[k_pool.dtype],
        sinks is not None, None if alibi is None else KINDS[alibi.dtype],
    )  # fmt: skip
    with lock_threads():
        attend(
            q.data_ptr(), q.stride(0), k_pool.data_ptr(), v_pool.data_ptr(),
            k_pool.shape[0] * k_pool.shape[1], tables.data_ptr(), tables.shape[1],
            lens.data_ptr(), out.data_ptr(), num_seqs, kv_heads, k_pool.shape[1],
            float(scale), int(window), float(softcap), 0 if sinks is None else sinks.data_ptr(),
            0 if alibi is None else alibi.data_ptr(), float(alibi_scale),
        )  # fmt: skip
    return out


def _checked(
    per_head: torch.Tensor | None, num_heads: int, *dtypes: torch.dtype
) -> torch.Tensor | None:
    """[Hq], in memory as a kernel reads it."""
    if per_head is None:
        return None
    if per_head.shape != (num_heads,) or per_head.dtype not in dtypes:
        raise ValueError(f"{tuple(per_head.shape)} of {per_head.dtype} for {num_heads} heads")
    return per_head.contiguous()


def _check_paged(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
) -> None:
    check_pools(k_pool, v_pool)
    if q.ndim != 3 or q.shape[2] != k_pool.shape[3] or q.shape[1] % k_pool.shape[2]:
        raise ValueError(f"q {tuple(q.shape)} does not go with the pool {tuple(k_pool.shape)}")
    if block_tables.dtype != torch.int32 or context_lens.dtype != torch.int32:
        raise ValueError("block tables and context lengths are int32")
    if block_tables.ndim != 2 or len(block_tables) != len(context_lens):
        raise ValueError(f"tables {tuple(block_tables.shape)}, {len(context_lens)} lengths")


# --- prefill ------------------------------------------------------------------------------------

# Rows of a chunk up to which decode, and two products, are used. Milliseconds for 30 layers of 9
# heads of 64 behind 4,000 tokens, two cores, as decode / products / torch's attention: 1 row 19 /
# 38 / 109; 8 rows 63 / 49 / 69; 32 rows 199 / 147 / 140; 128 rows 668 / 488 / 612.
_FEW_ROWS = 6
_SOME_ROWS = 128


def paged_prefill(
    q: torch.Tensor,  # [T, Hq, D]
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    alibi_scale: float = 1.0,
) -> torch.Tensor:
    """As the reference: each sequence's K and V are gathered once, then one product per sequence.

    torch's own attention takes the chunk whole, a chunk's scores are never held at once; what it
    does not know (soft-caps, sinks, ALiBi) is computed tile by tile. Short chunks behind a long
    past have ways of their own, which cost less per row.
    """
    _check_paged(q, k_pool, v_pool, block_tables, context_lens)
    sinks, alibi = _checked(sinks, q.shape[1], torch.float32), _checked(alibi, q.shape[1], *KINDS)
    how = Scoring(scale, window, softcap, sinks, alibi, alibi_scale)
    plain = not softcap and sinks is None and alibi is None
    out = torch.empty((*q.shape[:2], v_pool.shape[3]), dtype=q.dtype)
    starts, contexts = cu_seqlens_q.tolist(), context_lens.tolist()
    block_tokens = k_pool.shape[1]
    for seq, context in enumerate(contexts):
        rows = slice(starts[seq], starts[seq + 1])
        if rows.stop - rows.start <= _FEW_ROWS:
            out[rows] = _by_decode(q[rows], k_pool, v_pool, block_tables[seq], context, how)
            continue
        oldest = max(0, context - (rows.stop - rows.start) - window + 1) if window else 0
        first = oldest // block_tokens * block_tokens  # place of the first key that is gathered
        table = block_tables[seq, first // block_tokens : -(-context // block_tokens)]
        keys, values = (pool[table].flatten(0, 1)[: context - first] for pool in (k_pool, v_pool))
        for gathered in (keys, values):  # what nobody sees may be NaN
            gathered[: oldest - first] = 0
        num_past = len(keys) - (rows.stop - rows.start)
        if plain and not window and num_past and rows.stop - rows.start <= _SOME_ROWS:
            out[rows] = _by_products(q[rows], keys, values, how)
        elif plain:
            out[rows] = _by_torch(q[rows], keys, values, how)
        else:
            out[rows] = _by_tiles(q[rows], keys, values, how, first)
    return out


def _by_decode(
    chunk: torch.Tensor,  # [n, Hq, D]
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_table: torch.Tensor,  # [max_blocks]
    context: int,
    how: Scoring,
) -> torch.Tensor:  # [n, Hq, Dv]
    """Every row as if it were a sequence of its own that writes: nothing is gathered."""
    num_rows = len(chunk)
    lens = torch.arange(context - num_rows + 1, context + 1, dtype=torch.int32)
    tables = block_table.expand(num_rows, -1)
    return paged_decode(
        chunk, k_pool, v_pool, tables, lens,
        how.scale, how.window, how.softcap, how.sinks, how.alibi, how.alibi_scale,
    )  # fmt: skip


def _by_products(
    chunk: torch.Tensor,  # as `_by_torch`
    keys: torch.Tensor,
    values: torch.Tensor,
    how: Scoring,
) -> torch.Tensor:
    """Two plain products: each key is read once for all query heads of its group. For some rows
    and a long past, with no window."""
    num_rows, num_heads, dim = chunk.shape
    kv_heads, num_keys = keys.shape[1], len(keys)
    queries = (chunk.float() * how.scale).view(num_rows, kv_heads, -1, dim)
    queries = queries.permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    scores = torch.bmm(queries, keys.float().permute(1, 2, 0))  # [Hkv, G * n, N]
    by_row = scores.view(kv_heads, -1, num_rows, num_keys)
    future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu_(1)
    by_row[..., num_keys - num_rows :].masked_fill_(future, float("-inf"))
    attended = torch.bmm(scores.softmax(-1), values.float().transpose(0, 1))
    attended = attended.view(kv_heads, -1, num_rows, values.shape[2])
    return attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads, -1)


def _by_torch(
    chunk: torch.Tensor,  # [n, Hq, D]
    keys: torch.Tensor,  # [N, Hkv, D], the newest n of them the chunk's own
    values: torch.Tensor,  # [N, Hkv, Dv]
    how: Scoring,
) -> torch.Tensor:  # [n, Hq, Dv]
    num_rows, num_keys = len(chunk), len(keys)
    batched = [x.to(chunk.dtype).transpose(0, 1)[None] for x in (chunk, keys, values)]
    whole = num_rows == num_keys and not 0 < how.window < num_rows
    seen = None if whole else _mask(num_rows, num_keys, how.window, chunk.dtype)
    attended = F.scaled_dot_product_attention(
        *batched, seen, is_causal=whole, scale=how.scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def _by_tiles(
    chunk: torch.Tensor,  # as `_by_torch`
    keys: torch.Tensor,
    values: torch.Tensor,
    how: Scoring,
    first_place: int,  # of the first key in its sequence
) -> torch.Tensor:
    num_rows, num_heads, _ = chunk.shape
    kv_heads, ahead = keys.shape[1], len(keys) - num_rows
    queries = (chunk.float() * how.scale).unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
    keys, values = (x.float().transpose(0, 1).contiguous() for x in (keys, values))
    places = torch.arange(first_place, first_place + keys.shape[1])
    out = torch.empty((num_rows, num_heads, values.shape[2]))
    tile_rows = max(16, _TILE_SCORES // (num_heads * keys.shape[1]))
    for start in range(0, num_rows, tile_rows):
        stop = min(start + tile_rows, num_rows)
        rows = slice(ahead + start, ahead + stop)
        first = max(0, rows.start - how.window + 1) if how.window else 0
        span = slice(first, rows.stop)  # keys that some row of the tile sees
        flat = queries[:, :, start:stop].flatten(1, 2)  # [Hkv, G * rows, D]
        scores = torch.bmm(flat, keys[:, span].transpose(1, 2)).unflatten(1, (-1, stop - start))
        shares = _shares(scores, how, places[rows, None], places[span])
        attended = torch.bmm(shares.flatten(1, 2), values[:, span])
        out[start:stop] = (
            attended.unflatten(1, (-1, stop - start)).permute(2, 0, 1, 3).flatten(1, 2)
        )
    return out


def _shares(
    scores: torch.Tensor,  # [Hkv, G, n, N], written over
    how: Scoring,
    rows: torch.Tensor,  # [n, 1] places of the queries
    keys: torch.Tensor,  # [N] places of the keys
) -> torch.Tensor:
    """Softmax as `how` says; in place, for a tile does not fit the processor's caches twice."""
    if how.softcap:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    bias = how.bias(keys)
    if bias is not None:
        scores += bias.view(*scores.shape[:2], 1, -1)
    hidden = keys > rows
    if how.window:
        hidden |= keys <= rows - how.window
    scores.masked_fill_(hidden, float("-inf"))
    if how.sinks is None:
        return scores.softmax(-1)
    sinks = how.sinks.view(*scores.shape[:2], 1, 1)
    highest = torch.maximum(scores.amax(-1, keepdim=True), sinks)
    scores.sub_(highest).exp_()
    return scores.div_(scores.sum(-1, keepdim=True) + (sinks - highest).exp())


@functools.lru_cache(maxsize=8)
def _mask(num_rows: int, num_keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_rows, num_keys], 0 where a row sees a key, else -inf. Kept: 30 layers ask for it."""
    rows = torch.arange(num_keys - num_rows, num_keys)[:, None]
    keys = torch.arange(num_keys)[None]
    hidden = keys > rows
    if window:
        hidden |= keys <= rows - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
