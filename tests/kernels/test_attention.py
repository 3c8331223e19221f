"""Paged attention of every backend against attention written the plainest way."""

from __future__ import annotations

import pytest
import torch

FP32, BF16 = torch.float32, torch.bfloat16

# (KV heads, group, head size): SmolLM2's, a prime group, Phi's sizes, one head alone, a wide group
SHAPES = [(3, 3, 64), (1, 7, 80), (2, 1, 96), (1, 1, 64), (2, 16, 24)]


def close(got, right, dtype):
    limit = {FP32: 2e-5, BF16: 2e-2}[dtype]
    torch.testing.assert_close(got.double(), right, rtol=limit, atol=limit)


def queries(num_rows, num_heads, head_dim, dtype):
    noise = torch.Generator().manual_seed(num_rows)
    return torch.randn(num_rows, num_heads, head_dim, generator=noise).to(dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("block_tokens", [1, 7, 16])
@pytest.mark.parametrize(("num_kv_heads", "group", "head_dim"), SHAPES)
def test_decode(ops_for, make_scene, num_kv_heads, group, head_dim, block_tokens, dtype):
    contexts = [1, 2, 7, 15, 16, 17, 32, 45, 112]
    scene = make_scene(contexts, num_kv_heads, head_dim, block_tokens, dtype)
    q = queries(len(contexts), num_kv_heads * group, head_dim, dtype)
    scale = head_dim**-0.5
    got = ops_for(dtype).paged_decode(
        q, scene.k_pool, scene.v_pool, scene.tables, scene.lens, scale
    )
    assert got.dtype == dtype
    assert got.shape == q.shape
    for s in range(len(contexts)):
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], scale), dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("block_tokens", [1, 7, 16])
@pytest.mark.parametrize(("num_kv_heads", "group", "head_dim"), SHAPES)
def test_prefill(ops_for, make_scene, num_kv_heads, group, head_dim, block_tokens, dtype):
    chunks = [1, 7, 16, 3, 33, 20]
    contexts = [1, 7, 33, 48, 64, 23]  # whole prompts, and chunks behind cached tokens
    scene = make_scene(contexts, num_kv_heads, head_dim, block_tokens, dtype)
    starts = torch.tensor([0, *chunks]).cumsum(0).int()
    q = queries(sum(chunks), num_kv_heads * group, head_dim, dtype)
    scale = head_dim**-0.5
    got = ops_for(dtype).paged_prefill(
        q, scene.k_pool, scene.v_pool, scene.tables, starts, scene.lens, scale
    )
    assert got.dtype == dtype
    assert got.shape == q.shape
    for s in range(len(chunks)):
        rows = slice(starts[s], starts[s + 1])
        close(got[rows], scene.dense(s, q[rows], scale), dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("window", [1, 7, 8, 16, 17, 40])
def test_window(ops_for, make_scene, window, dtype):
    """The newest `window` tokens, the query's own counted in; at and around block edges."""
    contexts = [1, 7, 8, 9, 16, 17, 41]
    scene = make_scene(contexts, 2, 24, 8, dtype)
    ops, scale = ops_for(dtype), 0.3
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    q = queries(len(contexts), 6, 24, dtype)
    got = ops.paged_decode(q, *pools, scene.lens, scale, window)
    chunks = [min(10, context) for context in contexts]
    starts = torch.tensor([0, *chunks]).cumsum(0).int()
    long_q = queries(sum(chunks), 6, 24, dtype)
    long_got = ops.paged_prefill(long_q, *pools, starts, scene.lens, scale, window)
    for s in range(len(contexts)):
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], scale, window), dtype)
        rows = slice(starts[s], starts[s + 1])
        close(long_got[rows], scene.dense(s, long_q[rows], scale, window), dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_softcap(ops_for, make_scene, dtype):
    contexts = [1, 19, 33]
    scene = make_scene(contexts, 2, 16, 16, dtype)
    ops = ops_for(dtype)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    q = queries(3, 4, 16, dtype) * 4
    got = ops.paged_decode(q, *pools, scene.lens, 1.0, 0, 5.0)
    starts = torch.tensor([0, 1, 6, 10], dtype=torch.int32)
    long_q = queries(10, 4, 16, dtype) * 4
    long_got = ops.paged_prefill(long_q, *pools, starts, scene.lens, 1.0, 9, 5.0)
    for s in range(3):
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], 1.0, 0, 5.0), dtype)
        rows = slice(starts[s], starts[s + 1])
        close(long_got[rows], scene.dense(s, long_q[rows], 1.0, 9, 5.0), dtype)


def test_tables_may_share_blocks(ops_for, make_scene):
    contexts = [40, 33, 48, 20]
    scene = make_scene(contexts, 3, 64, 16, FP32, shared_blocks=2)
    assert len(set(scene.tables[:, 0].tolist())) == 1
    q = queries(4, 9, 64, FP32)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    got = ops_for(FP32).paged_decode(q, *pools, scene.lens, 0.125)
    for s in range(4):
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], 0.125), FP32)


def test_fp32_queries_over_a_bf16_pool(ops_for, make_scene):
    scene = make_scene([5, 37], 2, 80, 16, BF16)
    ops = ops_for(BF16)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    q = queries(2, 6, 80, FP32)
    got = ops.paged_decode(q, *pools, scene.lens, 0.1)
    long_q = queries(9, 6, 80, FP32)
    starts = torch.tensor([0, 4, 9], dtype=torch.int32)
    long_got = ops.paged_prefill(long_q, *pools, starts, scene.lens, 0.1)
    assert got.dtype == long_got.dtype == FP32
    for s in range(2):
        # Products are made in the pool's type, so they are as exact as it is.
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], 0.1), BF16)
        rows = slice(starts[s], starts[s + 1])
        close(long_got[rows], scene.dense(s, long_q[rows], 0.1), BF16)


def test_strided_queries(ops_for, make_scene):
    """Q is usually a slice of one joined Q, K, V product."""
    scene = make_scene([5, 37], 2, 16, 8, FP32)
    wide = queries(2, 10, 16, FP32)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    got = ops_for(FP32).paged_decode(wide[:, 2:8], *pools, scene.lens, 0.25)
    for s in range(2):
        close(got[s : s + 1], scene.dense(s, wide[s : s + 1, 2:8], 0.25), FP32)


@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_huge_scores_stay_finite(ops_for, make_scene, dtype):
    scene = make_scene([64, 3], 1, 32, 16, dtype)
    q = queries(2, 3, 32, dtype) * 1000
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    got = ops_for(dtype).paged_decode(q, *pools, scene.lens, 1.0)
    for s in range(2):
        close(got[s : s + 1], scene.dense(s, q[s : s + 1], 1.0), dtype)


def test_empty_batch(ops_for, make_scene):
    scene = make_scene([], 2, 64, 16, FP32)
    ops = ops_for(FP32)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    q = torch.empty(0, 4, 64)
    assert ops.paged_decode(q, *pools, scene.lens, 0.1).shape == (0, 4, 64)
    starts = torch.zeros(1, dtype=torch.int32)
    assert ops.paged_prefill(q, *pools, starts, scene.lens, 0.1).shape == (0, 4, 64)


@pytest.mark.parametrize("backend", ["cpu"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_alone_equals_in_company(ops_for, make_scene, dtype):
    """A sequence's decode result is the same bit for bit whoever else is in the batch.

    Not so in the reference: it pads to the longest, which changes the order of its sums.
    """
    scene = make_scene([30, 1, 100], 3, 64, 16, dtype)
    ops = ops_for(dtype)
    q = queries(3, 9, 64, dtype)
    together = ops.paged_decode(q, scene.k_pool, scene.v_pool, scene.tables, scene.lens, 0.125)
    for s in range(3):
        one = slice(s, s + 1)
        alone = ops.paged_decode(
            q[one], scene.k_pool, scene.v_pool, scene.tables[one], scene.lens[one], 0.125
        )
        assert torch.equal(alone[0], together[s])
