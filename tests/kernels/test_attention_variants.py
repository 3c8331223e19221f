"""Sinks, ALiBi, values of another width and windows that let blocks go, on every backend."""

from __future__ import annotations

import pytest
import torch

FP32, BF16 = torch.float32, torch.bfloat16
CONTEXTS = [1, 7, 8, 9, 33, 70, 150]
CHUNKS = [1, 7, 3, 9, 33, 17, 40]  # whole prompts, and chunks behind cached tokens
SHAPES = [(3, 3, 64), (1, 7, 80), (2, 1, 96)]  # (KV heads, group, head size)
dtypes = pytest.mark.parametrize("dtype", [FP32, BF16])
shapes = pytest.mark.parametrize(("num_kv_heads", "group", "head_dim"), SHAPES)


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def slopes_for(num_heads):
    return 2.0 ** -torch.arange(1, num_heads + 1) * 0.9


def check(ops, scene, num_heads, dtype, scale, bias=None, window=0, softcap=0.0, **how):
    """Decode and prefill against the plainest way; bias [Hq, places] is what `how` amounts to."""
    head_dim = scene.k_pool.shape[3]
    limit = {FP32: 2e-5, BF16: 2e-2}[dtype]
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    starts = torch.tensor([0, *CHUNKS]).cumsum(0).int()
    q = noise(len(CONTEXTS), num_heads, head_dim).to(dtype)
    long_q = noise(sum(CHUNKS), num_heads, head_dim, seed=4).to(dtype)
    got = ops.paged_decode(q, *pools, scene.lens, scale, window, softcap, **how)
    long_got = ops.paged_prefill(long_q, *pools, starts, scene.lens, scale, window, softcap, **how)
    assert got.dtype == long_got.dtype == dtype
    for s in range(len(CONTEXTS)):
        rows = slice(starts[s], starts[s + 1])
        for result, asked in ((got[s : s + 1], q[s : s + 1]), (long_got[rows], long_q[rows])):
            right = scene.dense(s, asked, scale, window, softcap, how.get("sinks"), bias)
            torch.testing.assert_close(result.double(), right, rtol=limit, atol=limit)


@dtypes
@shapes
def test_sinks(ops_for, make_scene, num_kv_heads, group, head_dim, dtype):
    scene = make_scene(CONTEXTS, num_kv_heads, head_dim, 8, dtype)
    sinks = 3 * noise(num_kv_heads * group, seed=9)
    check(ops_for(dtype), scene, num_kv_heads * group, dtype, head_dim**-0.5, sinks=sinks)


@pytest.mark.parametrize("far", [-200.0, 200.0])
def test_a_sink_far_off_takes_nothing_or_all(ops_for, make_scene, far):
    scene = make_scene(CONTEXTS, 2, 24, 8, FP32)
    check(ops_for(FP32), scene, 6, FP32, 0.2, sinks=torch.full((6,), far))


@dtypes
@pytest.mark.parametrize("alibi_dtype", [FP32, BF16])
@shapes
def test_alibi(ops_for, make_scene, num_kv_heads, group, head_dim, alibi_dtype, dtype):
    """In bf16 place and product are rounded, as models trained so expect."""
    num_heads = num_kv_heads * group
    contexts = [*CONTEXTS[:-1], 290]  # bf16 counts to 256 without gaps
    scene = make_scene(contexts, num_kv_heads, head_dim, 8, dtype)
    slopes = slopes_for(num_heads).to(alibi_dtype)
    bias = (slopes[:, None] * torch.arange(290).to(alibi_dtype)).float() * 0.3
    scale = head_dim**-0.5
    ops = ops_for(dtype)
    check(ops, scene, num_heads, dtype, scale, bias, alibi=slopes, alibi_scale=0.3)


@dtypes
@pytest.mark.parametrize("window", [1, 7, 8, 40])
def test_all_at_once_with_blocks_that_left_the_window(ops_for, make_scene, window, dtype):
    """Tables have 0 there; block 0, and slots of the first block before the window, hold NaN."""
    scene = make_scene(CONTEXTS, 2, 24, 8, dtype, value_dim=40)
    for s, (context, chunk) in enumerate(zip(CONTEXTS, CHUNKS, strict=True)):
        scene.forget(s, max(0, context - chunk - window + 1))
    slopes = slopes_for(6)
    bias = slopes[:, None] * torch.arange(max(CONTEXTS))
    sinks = noise(6, seed=9)
    how = {"window": window, "softcap": 4.0, "sinks": sinks, "alibi": slopes}
    check(ops_for(dtype), scene, 6, dtype, 1.0, bias, **how)


@dtypes
def test_blocks_that_left_a_plain_window(ops_for, make_scene, dtype):
    scene = make_scene(CONTEXTS, 2, 24, 8, dtype)
    for s, (context, chunk) in enumerate(zip(CONTEXTS, CHUNKS, strict=True)):
        scene.forget(s, max(0, context - chunk - 12 + 1))
    check(ops_for(dtype), scene, 6, dtype, 0.3, window=12)


@dtypes
@pytest.mark.parametrize(("head_dim", "value_dim"), [(24, 16), (40, 80), (96, 1)])
def test_values_of_another_width(ops_for, make_scene, head_dim, value_dim, dtype):
    scene = make_scene(CONTEXTS, 2, head_dim, 8, dtype, value_dim=value_dim)
    check(ops_for(dtype), scene, 6, dtype, 0.2)


def test_softcap_over_several_tiles(ops_for, make_scene):
    """1,300 new tokens over 1,500: more scores than are held at once."""
    scene = make_scene([1500], 1, 16, 16, FP32)
    q = noise(1300, 2, 16)
    starts = torch.tensor([0, 1300], dtype=torch.int32)
    pools = (scene.k_pool, scene.v_pool, scene.tables)
    for window in (0, 100):
        got = ops_for(FP32).paged_prefill(q, *pools, starts, scene.lens, 1.0, window, 5.0)
        right = scene.dense(0, q, 1.0, window, 5.0)
        torch.testing.assert_close(got.double(), right, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("backend", ["cpu"])
def test_values_per_head_that_do_not_fit_are_refused(ops_for, make_scene):
    scene = make_scene([5], 2, 24, 8, FP32)
    args = (noise(1, 6, 24), scene.k_pool, scene.v_pool, scene.tables, scene.lens, 1.0)
    with pytest.raises(ValueError, match="6 heads"):
        ops_for(FP32).paged_decode(*args, sinks=torch.zeros(5))
    with pytest.raises(ValueError, match="float64"):
        ops_for(FP32).paged_decode(*args, alibi=torch.zeros(6, dtype=torch.float64))
