"""StepPlan -> tensors. Every shape of a step is written here, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step. Sequences with exactly one new token (decode) come first.

    T new tokens over S sequences; `num_decodes` of them decode, so rows 0..num_decodes-1 of the
    token axis are theirs and `cu_seqlens_q[i] == i` for i <= num_decodes.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: torch.Tensor  # [T] int64: block * block_tokens + offset, where K and V of a token go
    cu_seqlens_q: torch.Tensor  # [S + 1] int32, prefix sum of new tokens
    context_lens: torch.Tensor  # [S] int32, tokens visible after the step: cached + new
    block_tables: torch.Tensor  # [S, max_blocks] int32, rows padded with 0
    logit_rows: torch.Tensor  # [L] int64, rows of the token axis whose logits are wanted
    num_decodes: int
    max_context: int  # max of context_lens

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_seqs(self) -> int:
        return self.context_lens.shape[0]
