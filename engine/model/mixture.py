"""Mixture: an MLP of many experts, of which each token passes through a few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F


class Part(Protocol):
    """An MLP: [n, hidden] -> [n, hidden]."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of one layer. An expert multiplies only the rows that were sent to it."""

    router: torch.Tensor  # [num_experts, hidden] fp32: near shares must not swap by rounding
    experts: tuple[Part, ...]
    num_chosen: int
    normalised: bool

    @property
    def num_bytes(self) -> int:
        return self.router.nbytes + sum(expert.num_bytes for expert in self.experts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[n, hidden] in x's dtype; the shares are applied, and summed up, in fp32."""
        shares, chosen = self._choices(x)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            rows, places = torch.where(chosen == expert)
            part = self.experts[expert](x[rows]).float()
            total.index_add_(0, rows, part * shares[rows, places, None])
        return total.to(x.dtype)

    def _choices(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(shares fp32, numbers of the experts), [n, num_chosen] each."""
        shares = F.linear(x.float(), self.router).softmax(-1)
        shares, chosen = shares.topk(self.num_chosen, dim=-1)
        return (shares / shares.sum(-1, keepdim=True) if self.normalised else shares), chosen
