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


def layer_normed(x, weight, bias, eps):
    x = x.double()
    x = x - x.mean(-1, keepdim=True)
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    return x if bias is None else x + bias.double()


@dtypes
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", [(5, 240), (1, 80), (0, 64)])
def test_layer_norm(ops_for, shape, with_bias, dtype):
    x, weight = randn(*shape, dtype=dtype) + 2, randn(shape[-1], seed=1)
    bias = randn(shape[-1], seed=2) if with_bias else None
    got = ops_for(dtype).layer_norm(x, weight, bias, 1e-5)
    assert got.dtype == dtype
    close(got, layer_normed(x, weight, bias, 1e-5), dtype)


def test_layer_norm_with_a_weight_for_each_head(ops_for):
    x, weight = randn(3, 7, 80) + 1, randn(7, 80, seed=1)
    close(
        ops_for(FP32).layer_norm(x, weight, None, 1e-5), layer_normed(x, weight, None, 1e-5), FP32
    )


@dtypes
def test_add_layer_norm(ops_for, dtype):
    x, residual = randn(4, 80, dtype=dtype), randn(4, 80, seed=1)
    weight, bias = randn(80, seed=2), randn(80, seed=3)
    norm, total = ops_for(dtype).add_layer_norm(x, residual, weight, bias, 1e-5)
    assert (norm.dtype, total.dtype) == (dtype, FP32)
    right = x.double() + residual.double()
    close(total, right, FP32)
    close(norm, layer_normed(right, weight, bias, 1e-5), dtype)


ACTIVATIONS = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


@dtypes
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(ops_for, kind, dtype):
    x = 3 * randn(5, 46, dtype=dtype)
    plain, gated = ops_for(dtype).act(x, kind), ops_for(dtype).act_mul(x, kind)
    assert plain.dtype == gated.dtype == dtype
    right = ACTIVATIONS[kind](x.double())
    close(plain, right, dtype)
    close(gated, right[:, :23] * x[:, 23:].double(), dtype)


def test_an_unknown_activation_is_refused(ops_for):
    with pytest.raises(ValueError, match="swoosh"):
        ops_for(FP32).act(randn(2, 4), "swoosh")
