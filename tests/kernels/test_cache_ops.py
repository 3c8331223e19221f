"""Writing into the pool: store_kv and copy_blocks of every backend."""

from __future__ import annotations

import pytest
import torch

from kernels import reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "heads", "dim"), [(4, 2, 64), (1, 1, 16), (7, 3, 80)])
def test_store_kv(ops_for, num_tokens, heads, dim, source, dtype):
    noise = torch.Generator().manual_seed(2)
    # Slices of one joined product, as the decoder passes them.
    wide = torch.randn(num_tokens, 2 * heads, dim, generator=noise).to(source)
    k, v = wide.split(heads, 1)
    k_pool, v_pool = (torch.full((5, 7, heads, dim), 9.0, dtype=dtype) for _ in range(2))
    slots = torch.randperm(35, generator=noise)[:num_tokens]
    ops_for(dtype).store_kv(k, v, k_pool, v_pool, slots)
    for new, pool in ((k, k_pool), (v, v_pool)):
        rows = pool.flatten(0, 1)
        assert torch.equal(rows[slots], new.to(dtype))
        untouched = torch.ones(35, dtype=torch.bool)
        untouched[slots] = False
        assert bool((rows[untouched] == 9.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("dim", "value_dim"), [(24, 16), (5, 80), (64, 0)])
def test_values_may_be_of_another_width(ops_for, dim, value_dim, dtype):
    """(64, 0): a latent cache keeps one tensor, there is nothing to write to the other."""
    ops = ops_for(dtype)
    k, v = torch.randn(5, 3, dim).to(dtype), torch.randn(5, 3, value_dim).to(dtype)
    k_pool = torch.full((4, 7, 3, dim), 9.0, dtype=dtype)
    v_pool = torch.full((4, 7, 3, value_dim), 9.0, dtype=dtype)
    slots = torch.tensor([3, 27, 0, -1, 11])
    ops.store_kv(k, v, k_pool, v_pool, slots)
    used = slots >= 0
    for new, pool in ((k, k_pool), (v, v_pool)):
        rows = pool.flatten(0, 1)
        assert torch.equal(rows[slots[used]], new[used])
        assert int((rows != 9.0).any(2).any(1).sum()) == (4 if pool.numel() else 0)
    ops.copy_blocks(k_pool, v_pool, torch.tensor([[3, 2]]))
    assert torch.equal(k_pool[2], k_pool[3])
    assert torch.equal(v_pool[2], v_pool[3])


def test_store_kv_skips_padding(ops_for):
    k = torch.ones(3, 1, 4)
    k_pool, v_pool = torch.zeros(2, 2, 1, 4), torch.zeros(2, 2, 1, 4)
    ops_for(torch.float32).store_kv(k, 2 * k, k_pool, v_pool, torch.tensor([-1, 2, -5]))
    assert k_pool.sum() == 4
    assert k_pool[1, 0].sum() == 4
    assert v_pool[1, 0].sum() == 8


def test_store_kv_rounds_as_torch_does(ops_for):
    """To nearest, ties to even; infinities and NaN stay what they are."""
    values = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, -3.0e38, 1e-40, float("inf")]
    k = torch.tensor([*values, 3.39e38, float("nan")]).view(1, 1, -1)
    k_pool, v_pool = (torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16) for _ in range(2))
    ops_for(torch.bfloat16).store_kv(k, k, k_pool, v_pool, torch.tensor([0]))
    torch.testing.assert_close(k_pool.flatten(), k.flatten().bfloat16(), equal_nan=True)


def test_store_kv_refuses_shapes_that_disagree(ops_for):
    k = torch.ones(3, 1, 4)
    pool = torch.zeros(2, 2, 1, 4)
    with pytest.raises(ValueError, match="slots"):
        ops_for(torch.float32).store_kv(k, k, pool, pool, torch.tensor([1, 2]))


def test_store_kv_with_no_token(ops_for):
    pool = torch.zeros(2, 2, 1, 4)
    k = torch.empty(0, 1, 4)
    ops_for(torch.float32).store_kv(k, k, pool, pool, torch.empty(0, dtype=torch.int64))
    assert pool.sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copy_blocks_reads_all_before_it_writes(ops_for, dtype):
    k_pool = torch.randn(6, 3, 2, 5).to(dtype)
    v_pool = torch.randn(6, 3, 2, 5).to(dtype)
    old_k, old_v = k_pool.clone(), v_pool.clone()
    pairs = torch.tensor([[0, 4], [4, 5], [2, 0]])
    ops_for(dtype).copy_blocks(k_pool, v_pool, pairs)
    for pool, old in ((k_pool, old_k), (v_pool, old_v)):
        assert torch.equal(pool[[4, 5, 0]], old[[0, 4, 2]])
        assert torch.equal(pool[[1, 2, 3]], old[[1, 2, 3]])


@pytest.mark.parametrize("rotary_dim", [16, 32, 64])
@pytest.mark.parametrize("num_tokens", [1, 5, 8, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turn_and_store_is_both_ops(ops_for, dtype, num_tokens, rotary_dim):
    """One pass over Q, K and V against the reference's two."""
    noise = torch.Generator().manual_seed(num_tokens)
    qkv = torch.randn(num_tokens, 5 + 2 * 2, 64, generator=noise).to(dtype)
    angles = torch.randn(num_tokens, rotary_dim // 2, generator=noise).repeat(1, 2)
    slots = torch.randperm(48, generator=noise)[:num_tokens]
    results = []
    for ops in (ops_for(torch.bfloat16), reference):
        q, k, v = qkv.clone().split((5, 2, 2), 1)
        pools = [torch.full((3, 16, 2, 64), 7.0, dtype=torch.bfloat16) for _ in range(2)]
        ops.turn_and_store(q, k, v, angles.cos(), angles.sin(), *pools, slots)
        results.append((q, k, *pools))
    for got, right in zip(*results, strict=True):
        torch.testing.assert_close(got.float(), right.float(), rtol=2**-7, atol=1e-5)
