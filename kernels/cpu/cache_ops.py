"""store_kv, alone and after rotary, and copy_blocks on the CPU."""

from __future__ import annotations

import functools
import struct
from typing import Any

import numba
import numpy as np
import torch

from kernels import reference
from kernels.cpu import rows
from kernels.cpu.crew import launch, num_workers
from kernels.cpu.emit import LANES
from kernels.cpu.jit import LOCK, address, kernel, narrow, operation, widen
from kernels.cpu.tensors import KINDS, check_pools, packed_rows
from kernels.cpu.vector import move, turn

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
    _check_stored(k, v, k_pool, v_pool, slots)
    if not len(slots):
        return
    k, v, slots = packed_rows(k), packed_rows(v), slots.contiguous()
    _store_kernel(KINDS[k.dtype], KINDS[k_pool.dtype])(
        k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0), k_pool.data_ptr(),
        v_pool.data_ptr(), slots.data_ptr(), len(slots), k_pool.shape[0] * k_pool.shape[1],
        k.shape[1] * k.shape[2], v.shape[1] * v.shape[2],
    )  # fmt: skip


def _check_stored(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    fits = k.shape[1:] == k_pool.shape[2:] and v.shape[1:] == v_pool.shape[2:]
    if not fits or k.shape[:2] != v.shape[:2] or slots.shape != k.shape[:1]:
        raise ValueError(
            f"k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)}, "
            f"pools {tuple(k_pool.shape)}, {tuple(v_pool.shape)}"
        )
    if slots.dtype != torch.int64 or k.dtype != v.dtype or k.dtype not in KINDS:
        raise ValueError(f"slots of {slots.dtype}, k of {k.dtype}, v of {v.dtype}")
    check_pools(k_pool, v_pool)


# --- rotary and store -----------------------------------------------------------------------------

# Q with its stride and heads, K and V with their strides, KV heads, head size, half of what is
# turned, angles, pools, slots and their number, slots of the pool, tokens of an item.
TURN = struct.Struct("<18q")
TOKENS = 4  # of an item: fewer are done before another thread hears of them


@numba.njit(inline="always")
def _turn_and_store_token(
    q, q_heads, k, v, kv_heads, dim, half, cos, sin, k_slot, v_slot, size, bf16, pool_bf16,
    pool_size,
):  # fmt: skip
    """One token: addresses of its rows of Q, K and V, of its angles and of its slot, 0 if none."""
    for head in range(q_heads + kv_heads):
        at = q + head * dim * size if head < q_heads else k + (head - q_heads) * dim * size
        for i in range(0, half, LANES):
            turn(at + i * size, half, cos + i * 4, sin + i * 4, bf16)
    if k_slot != 0:
        for i in range(0, kv_heads * dim, LANES):
            move(k + i * size, k_slot + i * pool_size, bf16, pool_bf16)
            move(v + i * size, v_slot + i * pool_size, bf16, pool_bf16)


@functools.cache
def turn_operation(kind: type, kv_kind: type) -> int:
    """An item is some tokens."""
    bf16, pool_bf16 = int(kind is np.uint16), int(kv_kind is np.uint16)
    size, pool_size = 4 - 2 * bf16, 4 - 2 * pool_bf16

    def turn_and_store(record, item, worker):
        r = numba.carray(address(record), 18, np.int64)
        q_at, q_row, q_heads, k_at, k_row, v_at, v_row = r[0], r[1], r[2], r[3], r[4], r[5], r[6]
        kv_heads, dim, half, cos_at, sin_at = r[7], r[8], r[9], r[10], r[11]
        k_pool_at, v_pool_at, slots_at, num_tokens, num_slots = r[12], r[13], r[14], r[15], r[16]
        slots = numba.carray(address(slots_at), num_tokens, np.int64)
        width = kv_heads * dim * pool_size
        for t in range(item * r[17], min((item + 1) * r[17], num_tokens)):
            is_kept = 0 <= slots[t] < num_slots
            k_slot = k_pool_at + slots[t] * width if is_kept else 0
            _turn_and_store_token(
                q_at + t * q_row * size, q_heads, k_at + t * k_row * size, v_at + t * v_row * size,
                kv_heads, dim, half, cos_at + t * half * 8, sin_at + t * half * 8, k_slot,
                v_pool_at + slots[t] * width, size, bf16, pool_bf16, pool_size,
            )  # fmt: skip

    return operation(turn_and_store)


def turn_and_store(
    q: torch.Tensor,  # [T, Hq, D], changed in place
    k: torch.Tensor,  # [T, Hkv, D], changed in place
    v: torch.Tensor,  # [T, Hkv, D]
    cos: torch.Tensor,  # [T, rotary_dim]
    sin: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,  # [T] int64
) -> None:
    """As the reference."""
    dim, rotary_dim = q.shape[2], cos.shape[1]
    whole = rotary_dim % (2 * LANES) == 0 and k.shape[1] * dim % LANES == 0
    packed = all(packed_rows(x) is x for x in (q, k, v)) and slots.is_contiguous()
    if not whole or not packed or k.shape != v.shape:
        rows.rotary(q, k, cos, sin)
        store_kv(k, v, k_pool, v_pool, slots)
        return
    rows.check_turned(q, k, cos, sin)
    _check_stored(k, v, k_pool, v_pool, slots)
    if not len(slots):
        return
    cos, sin = cos.contiguous(), sin.contiguous()
    with LOCK:
        record = (
            q.data_ptr(), q.stride(0), q.shape[1], k.data_ptr(), k.stride(0), v.data_ptr(),
            v.stride(0), k.shape[1], dim, rotary_dim // 2, cos.data_ptr(), sin.data_ptr(),
            k_pool.data_ptr(), v_pool.data_ptr(), slots.data_ptr(), len(slots),
            k_pool.shape[0] * k_pool.shape[1], TOKENS,
        )  # fmt: skip
        turn_it = turn_operation(KINDS[k.dtype], KINDS[k_pool.dtype])
        launch(num_workers(), (turn_it, TURN, record, -(-len(slots) // TOKENS)))
