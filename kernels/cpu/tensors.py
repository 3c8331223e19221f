"""What launchers ask of tensors before their addresses go to a kernel."""

from __future__ import annotations

import numpy as np
import torch

# bf16 is seen as its bits: Numba knows no such number.
KINDS: dict[torch.dtype, type] = {torch.float32: np.float32, torch.bfloat16: np.uint16}


def check_pools(k_pool: torch.Tensor, v_pool: torch.Tensor) -> None:
    """Both can be addressed, and differ at most in the width of a head."""
    for pool in (k_pool, v_pool):
        if pool.ndim != 4 or not pool.is_contiguous() or pool.dtype not in KINDS:
            raise ValueError(f"pool {tuple(pool.shape)} of {pool.dtype} cannot be addressed")
    if k_pool.shape[:3] != v_pool.shape[:3] or k_pool.dtype != v_pool.dtype:
        raise ValueError(f"pools differ: {tuple(k_pool.shape)}, {tuple(v_pool.shape)}")


def packed_rows(x: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D], copied unless each row's heads lie one after the other."""
    if x.stride(2) == 1 and x.stride(1) == x.shape[2] and x.stride(0) >= 0:
        return x
    return x.contiguous()


def as_per_head(
    per_head: torch.Tensor | None, num_heads: int, *dtypes: torch.dtype
) -> torch.Tensor | None:
    """[Hq], in memory as a kernel reads it."""
    if per_head is None:
        return None
    if per_head.shape != (num_heads,) or per_head.dtype not in dtypes:
        raise ValueError(f"{tuple(per_head.shape)} of {per_head.dtype} for {num_heads} heads")
    return per_head.contiguous()


def check_paged(
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
