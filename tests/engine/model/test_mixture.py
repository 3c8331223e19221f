"""Mixture: every row through its own experts, nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from engine.model.mixture import Mixture


@dataclass
class TimesExpert:
    """Multiplies by a number, and keeps count of its rows."""

    factor: float
    rows: list[int] = field(default_factory=list)
    num_bytes: int = 8

    def __call__(self, x):
        self.rows.append(len(x))
        return x * self.factor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 7])
def test_shares_of_the_chosen(num_rows, normalised, dtype):
    torch.manual_seed(3)
    router, x = torch.randn(5, 6), torch.randn(num_rows, 6).to(dtype)
    experts = tuple(TimesExpert(2.0**i) for i in range(5))
    mixture = Mixture(router, experts, 3, normalised)
    got = mixture(x)
    assert (got.dtype, got.shape) == (dtype, x.shape)
    for row, result in zip(x, got, strict=True):
        shares = (router.double() @ row.double()).softmax(0)
        best = shares.argsort(descending=True)[:3].tolist()
        factor = sum(float(shares[i]) * 2.0**i for i in best)
        factor /= float(shares[best].sum()) if normalised else 1.0
        limit = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(result.double(), row.double() * factor, rtol=limit, atol=limit)
    assert sum(sum(expert.rows) for expert in experts) == 3 * num_rows
    assert all(0 not in expert.rows for expert in experts)
    assert mixture.num_bytes == router.nbytes + 40
