"""Norms, rotary and activation on the CPU: one pass over each row, fp32 in registers.

torch's own bf16 operators take three to six calls, and as many round trips to fp32, for each.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu.jit import address, exp, kernel, narrow, widen
from kernels.cpu.tensors import KINDS, packed_rows


@functools.cache
def _norm_kernel(kind: type) -> Any:
    @kernel()
    def norm(x_at, x_row, weight_at, out_at, num_rows, heads, width, eps):
        x = numba.carray(address(x_at), num_rows * x_row, kind)
        weight = numba.carray(address(weight_at), width, np.float32)
        out = numba.carray(address(out_at), num_rows * heads * width, kind)
        for item in range(num_rows * heads):
            at = item // heads * x_row + item % heads * width
            squares = np.float32(0)
            for i in range(width):
                value = widen(x[at + i])
                squares += value * value
            factor = np.float32(1 / math.sqrt(squares / width + eps))
            for i in range(width):
                out[item * width + i] = narrow(out, widen(x[at + i]) * factor * weight[i])

    return norm


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As the reference; x is [T, width] or [T, heads, width]."""
    wide = x.unsqueeze(1) if x.ndim == 2 else x
    _check(wide, x.ndim in (2, 3) and _is_vector(weight, x.shape[-1]))
    out = torch.empty(x.shape, dtype=x.dtype)
    if out.numel():
        rows = packed_rows(wide)
        _norm_kernel(KINDS[x.dtype])(
            rows.data_ptr(), rows.stride(0), weight.data_ptr(), out.data_ptr(),
            wide.shape[0], wide.shape[1], wide.shape[2], float(eps),
        )  # fmt: skip
    return out


@functools.cache
def _add_norm_kernel(kind: type, sum_kind: type) -> Any:
    @kernel()
    def add_norm(x_at, residual_at, weight_at, norm_at, total_at, num_rows, width, eps):
        x = numba.carray(address(x_at), num_rows * width, kind)
        residual = numba.carray(address(residual_at), num_rows * width, sum_kind)
        weight = numba.carray(address(weight_at), width, np.float32)
        norm = numba.carray(address(norm_at), num_rows * width, kind)
        total = numba.carray(address(total_at), num_rows * width, sum_kind)
        for row in range(num_rows):
            at = row * width
            squares = np.float32(0)
            for i in range(width):
                value = widen(x[at + i]) + widen(residual[at + i])
                total[at + i] = narrow(total, value)
                squares += value * value
            factor = np.float32(1 / math.sqrt(squares / width + eps))
            for i in range(width):
                value = widen(x[at + i]) + widen(residual[at + i])
                norm[at + i] = narrow(norm, value * factor * weight[i])

    return add_norm


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the reference; x and residual are [T, width]."""
    _check(x, x.ndim == 2 and x.shape == residual.shape and _is_vector(weight, x.shape[1]))
    _check(residual, True)
    x, residual = x.contiguous(), residual.contiguous()
    norm, total = torch.empty_like(x), torch.empty_like(residual)
    if norm.numel():
        _add_norm_kernel(KINDS[x.dtype], KINDS[residual.dtype])(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), norm.data_ptr(),
            total.data_ptr(), x.shape[0], x.shape[1], float(eps),
        )  # fmt: skip
    return norm, total


@functools.cache
def _rotary_kernel(kind: type) -> Any:
    @kernel()
    def turn(x_at, x_row, cos_at, sin_at, num_rows, heads, width, half):
        x = numba.carray(address(x_at), num_rows * x_row, kind)
        cos = numba.carray(address(cos_at), num_rows * half * 2, np.float32)
        sin = numba.carray(address(sin_at), num_rows * half * 2, np.float32)
        for item in range(num_rows * heads):
            row = item // heads
            at, angle = row * x_row + item % heads * width, row * half * 2
            for i in range(half):
                first, second = widen(x[at + i]), widen(x[at + half + i])
                c, s = cos[angle + i], sin[angle + i]
                x[at + i] = narrow(x, first * c - second * s)
                x[at + half + i] = narrow(x, second * c + first * s)

    return turn


def rotary(
    q: torch.Tensor,  # [T, Hq, D], changed in place
    k: torch.Tensor,  # [T, Hkv, D], changed in place
    cos: torch.Tensor,  # [T, rotary_dim]
    sin: torch.Tensor,
) -> None:
    """As the reference; the heads of a row lie one after the other."""
    check_turned(q, k, cos, sin)
    cos, sin = cos.contiguous(), sin.contiguous()
    for x in (q, k):
        if x.numel():
            _rotary_kernel(KINDS[x.dtype])(
                x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(),
                x.shape[0], x.shape[1], x.shape[2], cos.shape[1] // 2,
            )  # fmt: skip


def check_turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Whether the angles go with Q and K, which can be turned where they lie."""
    fits = cos.dtype == sin.dtype == torch.float32 and cos.shape == sin.shape
    for x in (q, k):
        _check(x, x.ndim == 3 and fits and len(cos) == len(x) and cos.shape[1] <= x.shape[2])
        if packed_rows(x) is not x:
            raise ValueError(f"strides {x.stride()} cannot be turned in place")


@functools.cache
def _silu_kernel(kind: type) -> Any:
    @kernel()
    def silu(x_at, out_at, num_rows, width):
        x = numba.carray(address(x_at), num_rows * width * 2, kind)
        out = numba.carray(address(out_at), num_rows * width, kind)
        for row in range(num_rows):
            gate_at, up_at = row * width * 2, row * width * 2 + width
            for i in range(width):
                gate = widen(x[gate_at + i])
                share = np.float32(1) / (np.float32(1) + exp(-gate))
                out[row * width + i] = narrow(out, gate * share * widen(x[up_at + i]))

    return silu


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As the reference."""
    _check(gate_up, gate_up.ndim == 2 and gate_up.shape[1] % 2 == 0)
    gate_up = gate_up.contiguous()
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype)
    if out.numel():
        _silu_kernel(KINDS[gate_up.dtype])(gate_up.data_ptr(), out.data_ptr(), num_rows, width)
    return out


def _is_vector(weight: torch.Tensor, width: int) -> bool:
    return weight.shape == (width,) and weight.dtype == torch.float32 and weight.is_contiguous()


def _check(x: torch.Tensor, fits: bool) -> None:
    if not fits or x.dtype not in KINDS:
        raise ValueError(f"{tuple(x.shape)} of {x.dtype} does not go with the other arguments")
