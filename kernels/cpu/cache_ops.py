"""store_kv and copy_blocks on the CPU."""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch

from kernels import reference
from kernels.cpu.jit import address, kernel, narrow, widen
from kernels.cpu.tensors import KINDS, check_pools, packed_rows

copy_blocks = reference.copy_blocks  # two gathers and two scatters; nothing to gain


@functools.cache
def _store_kernel(kind: type, kv_kind: type) -> Any:
    @kernel()
    def store(
        k_at, k_row, v_at, v_row, k_pool_at, v_pool_at, slots_at, num_tokens, num_slots, width,
        v_width,
    ):  # fmt: skip
        k = numba.carray(address(k_at), num_tokens * k_row, kind)
        v = numba.carray(address(v_at), num_tokens * v_row, kind)
        k_pool = numba.carray(address(k_pool_at), num_slots * width, kv_kind)
        v_pool = numba.carray(address(v_pool_at), num_slots * v_width, kv_kind)
        slots = numba.carray(address(slots_at), num_tokens, np.int64)
        for token in range(num_tokens):
            slot = slots[token]
            if 0 <= slot < num_slots:
                for i in range(width):
                    k_pool[slot * width + i] = narrow(k_pool, widen(k[token * k_row + i]))
                for i in range(v_width):
                    v_pool[slot * v_width + i] = narrow(v_pool, widen(v[token * v_row + i]))

    return store


def store_kv(
    k: torch.Tensor,  # [T, Hkv, D]
    v: torch.Tensor,  # [T, Hkv, Dv]
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,  # [T] int64
) -> None:
    """As the reference."""
    fits = k.shape[1:] == k_pool.shape[2:] and v.shape[1:] == v_pool.shape[2:]
    if not fits or k.shape[:2] != v.shape[:2] or slots.shape != k.shape[:1]:
        raise ValueError(
            f"k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)}, "
            f"pools {tuple(k_pool.shape)}, {tuple(v_pool.shape)}"
        )
    if slots.dtype != torch.int64 or k.dtype != v.dtype or k.dtype not in KINDS:
        raise ValueError(f"slots of {slots.dtype}, k of {k.dtype}, v of {v.dtype}")
    check_pools(k_pool, v_pool)
    if not len(slots):
        return
    k, v, slots = packed_rows(k), packed_rows(v), slots.contiguous()
    _store_kernel(KINDS[k.dtype], KINDS[k_pool.dtype])(
        k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), k_pool.data_ptr(),
        v_pool.data_ptr(), slots.data_ptr(), len(slots), k_pool.shape[0] * k_pool.shape[1],
        k.shape[1] * k.shape[2], v.shape[1] * v.shape[2],
    )  # fmt: skip
