"""Plain PyTorch twin of every op: the oracle, and the fallback on any device.

Pools are [num_blocks, block_tokens, num_kv_heads, head_dim]; K and V are read only through block
tables. D is head_dim, Hq and Hkv the numbers of query and KV heads, G = Hq // Hkv.
"""

from __future__ import annotations

import torch


def store_kv(
    k: torch.Tensor,  # [T, Hkv, D]
    v: torch.Tensor,  # [T, Hkv, D]
    k_pool: torch.Tensor,  # [num_blocks, block_tokens, Hkv, D]
    v_pool: torch.Tensor,
    slots: torch.Tensor,  # [T] int64, block * block_tokens + offset; negative = padding
) -> None:
    """Write row i of k and v to slots[i], in the pool's dtype."""
    raise NotImplementedError


def paged_decode(
    q: torch.Tensor,  # [S, Hq, D] one query per sequence
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,  # [S, max_blocks] int32
    context_lens: torch.Tensor,  # [S] int32, the query's own token counted in
    scale: float,
    window: int = 0,  # 0 = full; else the newest `window` tokens, the query's own counted in
    softcap: float = 0.0,  # 0 = off
) -> torch.Tensor:  # [S, Hq, D] in q's dtype
    raise NotImplementedError


def paged_prefill(
    q: torch.Tensor,  # [T, Hq, D] chunks of several sequences, packed
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,  # [S, max_blocks] int32
    cu_seqlens_q: torch.Tensor,  # [S + 1] int32
    context_lens: torch.Tensor,  # [S] int32, cached + chunk
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:  # [T, Hq, D]
    """Causal over cached context plus chunk; K and V of the chunk are already in the pool."""
    raise NotImplementedError


def copy_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    pairs: torch.Tensor,  # [N, 2] int64 (from, to)
) -> None:
    raise NotImplementedError


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    raise NotImplementedError


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual)"""
    raise NotImplementedError


def rotary(
    q: torch.Tensor,  # [T, Hq, D], changed in place
    k: torch.Tensor,  # [T, Hkv, D], changed in place
    cos: torch.Tensor,  # [T, rotary_dim] (halves repeated, as transformers does)
    sin: torch.Tensor,
) -> None:
    raise NotImplementedError


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]: silu(first half) * second half"""
    raise NotImplementedError
