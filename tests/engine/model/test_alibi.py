"""Slopes of ALiBi, against what transformers computes."""

from __future__ import annotations

import pytest
import torch

from engine.model.alibi import alibi_of
from engine.model.config import from_hf

CPU = torch.device("cpu")


def config(kind, num_heads, **changes):
    sizes = {"hidden_size": 16 * num_heads, "num_hidden_layers": 1, "vocab_size": 9}
    return from_hf({"model_type": kind, "num_attention_heads": num_heads, **sizes, **changes}, "m")


@pytest.mark.parametrize("num_heads", [1, 2, 3, 7, 8, 12, 71, 112])
def test_the_bias_of_each_place(num_heads):
    """Up to 700: Falcon's bf16 leaves gaps beyond 256."""
    from transformers.models.bloom import modeling_bloom
    from transformers.models.falcon import modeling_falcon
    from transformers.models.mpt import modeling_mpt

    ones = torch.ones(1, 700, dtype=torch.int64)
    places = torch.arange(700)

    def bias(kind, **changes):
        alibi = alibi_of(config(kind, num_heads, **changes), CPU)
        return (alibi.slopes[:, None] * places.to(alibi.slopes.dtype)).float() * alibi.scale

    bloom = modeling_bloom.build_alibi_tensor(ones, num_heads, torch.float32)[:, 0]
    assert torch.equal(bias("bloom"), bloom)
    falcon = modeling_falcon.build_alibi_tensor(ones, num_heads, torch.float32)[:, 0] / 4
    assert torch.equal(bias("falcon", alibi=True), falcon)
    mpt = modeling_mpt.build_mpt_alibi_tensor(num_heads, 700)[:, 0]  # 0 at the newest key
    torch.testing.assert_close(bias("mpt") - bias("mpt")[:, -1:], mpt, rtol=1e-5, atol=1e-4)


def test_a_model_with_rotary_positions_has_none():
    assert alibi_of(config("falcon", 3), CPU) is None
