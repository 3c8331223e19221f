"""Paged attention on the CPU: what is computed together, by which kernel, and by how many threads.

The work is cut into items, some rows of one sequence and one KV head each, which threads take one
after the other: a thread that the system holds up leaves more of them to the rest.
"""

from __future__ import annotations

import torch

from kernels.cpu import attention_rows, attention_tiles
from kernels.cpu.attention_parts import (
    ATTEND,
    MERGE_PARTS,
    find_items,
    find_row_items,
    merge_operation,
)
from kernels.cpu.crew import launch, num_workers
from kernels.cpu.jit import LOCK, scratch
from kernels.cpu.tensors import KINDS, as_per_head, check_paged, packed_rows


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
    """As the reference; reads no slot beyond a sequence's context, and none before its window.

    A sequence's result does not hang on its company.
    """
    starts = tuple(range(len(context_lens) + 1))
    how = (scale, window, softcap, sinks, alibi, alibi_scale)
    return _attend(q, k_pool, v_pool, block_tables, starts, context_lens, *how)


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
    """As the reference. A row's result hangs on its chunk and context, not on its company."""
    starts = tuple(cu_seqlens_q.tolist())
    how = (scale, window, softcap, sinks, alibi, alibi_scale)
    return _attend(q, k_pool, v_pool, block_tables, starts, context_lens, *how)


def _attend(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,
    starts: tuple[int, ...],  # [S + 1], the first row of each sequence
    context_lens: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: torch.Tensor | None,
    alibi: torch.Tensor | None,
    alibi_scale: float,
) -> torch.Tensor:
    check_paged(q, k_pool, v_pool, block_tables, context_lens)
    num_tokens, num_heads, dim = q.shape
    kv_heads, v_dim = v_pool.shape[2:]
    group, per_word = num_heads // kv_heads, 4 // k_pool.element_size()
    sinks = as_per_head(sinks, num_heads, torch.float32)
    alibi = as_per_head(alibi, num_heads, *KINDS)
    kinds = (KINDS[q.dtype], KINDS[k_pool.dtype])
    slopes = None if alibi is None else alibi.float()
    rounds = alibi is not None and alibi.dtype == torch.bfloat16
    contexts = tuple(context_lens.tolist())
    has_single_rows = starts == tuple(range(len(starts)))
    if has_single_rows and attention_rows.can_read_rows(dim, v_dim, per_word):
        shape, worker_bytes, constants, most_rows = attention_rows.shape_of(
            dim, v_dim, group, per_word
        )
        attend = attention_rows.rows_operation(*kinds, *constants)
        items, merges, num_parts = find_row_items(contexts, kv_heads, window)
    else:
        shape, worker_bytes, v_vectors = attention_tiles.shape_of(dim, v_dim, group, per_word)
        attend = attention_tiles.tiles_operation(*kinds, v_vectors)
        most_rows, per_item = attention_tiles.most_rows_of(group)
        items, merges, num_parts = find_items(starts, contexts, kv_heads, per_item, window)
    out = torch.empty((num_tokens, num_heads, v_dim), dtype=q.dtype)
    if not len(items):
        return out
    q, tables = packed_rows(q), block_tables.contiguous()
    with LOCK:
        workers = num_workers()
        memory_bytes = workers * worker_bytes
        memory_at = scratch(memory_bytes + num_parts * most_rows * (v_dim + 2) * 4)
        parts_at = memory_at + memory_bytes
        record = (
            q.data_ptr(), q.stride(0), k_pool.data_ptr(), v_pool.data_ptr(),
            k_pool.shape[0] * k_pool.shape[1], tables.data_ptr(), tables.shape[1],
            items.data_ptr(), len(items), out.data_ptr(), num_tokens, kv_heads, k_pool.shape[1],
            0 if sinks is None else sinks.data_ptr(), 0 if slopes is None else slopes.data_ptr(),
            shape.data_ptr(), memory_at, parts_at, num_parts, window, rounds, scale, softcap,
            alibi_scale,
        )  # fmt: skip
        merging = (
            merges.data_ptr(), parts_at, num_parts, out.data_ptr(), num_tokens, num_heads, v_dim,
            group, most_rows,
        )  # fmt: skip
        launch(
            workers,
            (attend, ATTEND, record, len(items)),
            (merge_operation(kinds[0]), MERGE_PARTS, merging, len(merges)),
        )
    return out
