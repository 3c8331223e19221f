"""Norms, rotary and activation of every backend against formulas in fp64."""

from __future__ import annotations

import pytest
import torch

FP32, BF16 = torch.float32, torch.bfloat16
LIMITS = {FP32: 3e-6, BF16: 1e-2}
dtypes = pytest.mark.parametrize("dtype", [FP32, BF16])


def randn(*shape, dtype=FP32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, right, dtype):
    torch.testing.assert_close(got.double(), right, rtol=LIMITS[dtype], atol=LIMITS[dtype])


def normed(x, weight, eps):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@dtypes
@pytest.mark.parametrize("shape", [(5, 576), (1, 80), (3, 4, 24), (0, 64)])
def test_rms_norm(ops_for, shape, dtype):
    x, weight = randn(*shape, dtype=dtype), randn(shape[-1], seed=1)
    got = ops_for(dtype).rms_norm(x, weight, 1e-5)
    assert got.dtype == dtype
    close(got, normed(x, weight, 1e-5), dtype)


def test_rms_norm_of_a_slice(ops_for):
    wide = randn(4, 6, 24)
    weight = randn(24, seed=1)
    close(
        ops_for(FP32).rms_norm(wide[:, 1:3], weight, 1e-6), normed(wide[:, 1:3], weight, 1e-6), FP32
    )


@dtypes
@pytest.mark.parametrize("residual_dtype", [FP32, BF16])
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_add_rms_norm(ops_for, num_rows, residual_dtype, dtype):
    x = randn(num_rows, 80, dtype=dtype)
    residual = randn(num_rows, 80, dtype=residual_dtype, seed=1)
    kept = residual.clone(), x.clone()
    weight = randn(80, seed=2)
    norm, total = ops_for(dtype).add_rms_norm(x, residual, weight, 1e-5)
    assert (norm.dtype, total.dtype) == (dtype, residual_dtype)
    right = x.double() + residual.double()
    close(total, right, residual_dtype)
    close(norm, normed(right, weight, 1e-5), dtype)
    assert torch.equal(residual, kept[0])  # neither argument is written
    assert torch.equal(x, kept[1])


@dtypes
@pytest.mark.parametrize(("dim", "rotary_dim"), [(64, 64), (80, 32), (24, 24)])
def test_rotary_turns_pairs_of_halves(ops_for, dim, rotary_dim, dtype):
    num_tokens, q_heads, k_heads = 5, 6, 2
    wide = randn(num_tokens, q_heads + 2 * k_heads, dim, dtype=dtype)
    before = wide.clone()
    angles = randn(num_tokens, rotary_dim // 2, seed=3) * 3
    both = torch.cat((angles, angles), -1)
    q, k, _ = wide.split((q_heads, k_heads, k_heads), 1)
    ops_for(dtype).rotary(q, k, both.cos(), both.sin())
    half = rotary_dim // 2
    first, second = before[..., :half].double(), before[..., half:rotary_dim].double()
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    heads = q_heads + k_heads
    close(wide[:, :heads, :rotary_dim], turned[:, :heads], dtype)
    assert torch.equal(wide[:, :heads, rotary_dim:], before[:, :heads, rotary_dim:])
    assert torch.equal(wide[:, heads:], before[:, heads:])  # V stays


@dtypes
@pytest.mark.parametrize("shape", [(1, 2 * 1536), (5, 2 * 13), (0, 8)])
def test_silu_mul(ops_for, shape, dtype):
    x = randn(*shape, dtype=dtype) * 4
    got = ops_for(dtype).silu_mul(x)
    gate, up = x.double().chunk(2, -1)
    assert got.dtype == dtype
    close(got, gate * torch.sigmoid(gate) * up, dtype)


def test_silu_mul_at_the_ends(ops_for):
    x = torch.tensor([[-200.0, 200.0, -90.0, 0.0, 1.0, 1.0, 1.0, 1.0]])
    got = ops_for(FP32).silu_mul(x)
    torch.testing.assert_close(got, torch.tensor([[0.0, 200.0, 0.0, 0.0]]))
