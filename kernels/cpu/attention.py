"""Paged attention on the CPU: decode compiled by Numba, prefill gathered once for torch."""

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
import torch
import torch.nn.functional as F

from kernels import reference
from kernels.cpu.jit import address, exp, kernel, lock_threads, narrow, widen
from kernels.cpu.tensors import KINDS, check_pools, packed_rows

_TILE = 64  # keys whose scores are held at once


@functools.cache
def _decode_kernel(dim: int, group: int, q_kind: type, kv_kind: type) -> Any:
    """The kernel for one head size and group: constants let the inner loops unroll.

    An item is one sequence and one KV head, so each row of K and V is read once for its group.
    Softmax runs online over tiles of keys. Items share nothing: a sequence's result does not hang
    on its company.
    """

    @kernel(parallel=True)
    def attend(
        q_at, q_row, k_at, v_at, pool_slots, tables_at, table_row, lens_at, out_at,
        num_seqs, kv_heads, block_tokens, scale, window, softcap,
    ):  # fmt: skip
        q = numba.carray(address(q_at), num_seqs * q_row, q_kind)
        keys = numba.carray(address(k_at), (pool_slots, kv_heads, dim), kv_kind)
        values = numba.carray(address(v_at), (pool_slots, kv_heads, dim), kv_kind)
        tables = numba.carray(address(tables_at), num_seqs * table_row, np.int32)
        lens = numba.carray(address(lens_at), num_seqs, np.int32)
        out = numba.carray(address(out_at), num_seqs * kv_heads * group * dim, q_kind)
        for item in numba.prange(num_seqs * kv_heads):
            # where
            seq, head = item // kv_heads, item % kv_heads
            context = np.int64(lens[seq])
            first = max(0, context - window) if window > 0 else 0
            # load
            query = np.empty((group, dim), np.float32)
            row = np.empty(dim, np.float32)
            slots = np.empty(_TILE, np.int64)
            scores = np.empty((group, _TILE), np.float32)
            total = np.empty((group, dim), np.float32)
            weight = np.empty(group, np.float32)
            highest = np.empty(group, np.float32)
            for g in range(group):
                weight[g] = 0
                highest[g] = -np.inf
                for d in range(dim):
                    total[g, d] = 0
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
                        best = max(best, scores[g, t])
                    keep = exp(highest[g] - best)
                    highest[g] = best
                    added = np.float32(0)
                    for t in range(count):
                        share = exp(scores[g, t] - best)
                        scores[g, t] = share
                        added += share
                    weight[g] = weight[g] * keep + added
                    for d in range(dim):
                        total[g, d] *= keep
                for t in range(count):
                    slot = slots[t]
                    for d in range(dim):
                        row[d] = widen(values[slot, head, d])
                    for g in range(group):
                        share = scores[g, t]
                        for d in range(dim):
                            total[g, d] += share * row[d]
            # store
            for g in range(group):
                inverse = np.float32(1) / weight[g]
                at = (seq * kv_heads * group + head * group + g) * dim
                for d in range(dim):
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
) -> torch.Tensor:
    """As the reference; reads no slot beyond a sequence's context."""
    num_seqs, num_heads, dim = q.shape
    kv_heads = k_pool.shape[2]
    _check_paged(q, k_pool, v_pool, block_tables, context_lens)
    out = torch.empty((num_seqs, num_heads, dim), dtype=q.dtype)
    if not num_seqs:
        return out
    q, tables, lens = packed_rows(q), block_tables.contiguous(), context_lens.contiguous()
    kinds = KINDS[q.dtype], KINDS[k_pool.dtype]
    attend = _decode_kernel(dim, num_heads // kv_heads, *kinds)
    with lock_threads():
        attend(
            q.data_ptr(), q.stride(0), k_pool.data_ptr(), v_pool.data_ptr(),
            k_pool.shape[0] * k_pool.shape[1], tables.data_ptr(), tables.shape[1],
            lens.data_ptr(), out.data_ptr(), num_seqs, kv_heads, k_pool.shape[1],
            float(scale), int(window), float(softcap),
        )  # fmt: skip
    return out


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
) -> torch.Tensor:
    """As the reference: each sequence's K and V are gathered once, then one product per sequence.

    torch's own attention takes the chunk whole; a chunk's scores are never held at once.
    """
    if softcap:  # torch's attention has none
        tables, starts = block_tables, cu_seqlens_q
        return reference.paged_prefill(
            q, k_pool, v_pool, tables, starts, context_lens, scale, window, softcap
        )
    _check_paged(q, k_pool, v_pool, block_tables, context_lens)
    out = torch.empty(q.shape, dtype=q.dtype)
    starts, contexts = cu_seqlens_q.tolist(), context_lens.tolist()
    block_tokens = k_pool.shape[1]
    for seq, context in enumerate(contexts):
        rows = slice(starts[seq], starts[seq + 1])
        num_rows = rows.stop - rows.start
        oldest = max(0, context - num_rows - window + 1) if window else 0
        first_block = oldest // block_tokens
        table = block_tables[seq, first_block : -(-context // block_tokens)]
        num_keys = context - first_block * block_tokens
        chunk = q[rows].transpose(0, 1)[None]  # [1, Hq, n, D]
        keys, values = (
            pool[table].flatten(0, 1)[:num_keys].to(q.dtype).transpose(0, 1)[None]
            for pool in (k_pool, v_pool)
        )  # [1, Hkv, N, D]
        whole = num_rows == num_keys and not 0 < window < num_rows
        seen = None if whole else _mask(num_rows, num_keys, window, q.dtype)
        attended = F.scaled_dot_product_attention(
            chunk, keys, values, seen, is_causal=whole, scale=scale, enable_gqa=True
        )
        out[rows] = attended[0].transpose(0, 1)
    return out


@functools.lru_cache(maxsize=8)
def _mask(num_rows: int, num_keys: int, window: int, dtype: torch.dtype) -> torch.Tensor:
    """[num_rows, num_keys], 0 where a row sees a key, else -inf. Kept: 30 layers ask for it."""
    rows = torch.arange(num_keys - num_rows, num_keys)[:, None]
    keys = torch.arange(num_keys)[None]
    hidden = keys > rows
    if window:
        hidden |= keys <= rows - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
