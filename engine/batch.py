"""StepPlan -> tensors. Every shape of a step is written here, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.scheduler import StepPlan


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


def build_batch(plan: StepPlan, block_tokens: int, device: torch.device) -> Batch:
    """The tensors of a planned step. Logits are wanted for a sequence's last token, and only where
    the step reaches it."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    cu_seqlens = [0]
    context_lens: list[int] = []
    logit_rows: list[int] = []
    items = plan.items
    for sequence, num_tokens in ((item.sequence, item.num_tokens) for item in items):
        start = sequence.num_computed
        end = start + num_tokens
        table = sequence.block_table
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        slots += [
            table[p // block_tokens] * block_tokens + p % block_tokens for p in range(start, end)
        ]
        cu_seqlens.append(len(token_ids))
        context_lens.append(end)
        if end == sequence.num_tokens:
            logit_rows.append(len(token_ids) - 1)
    widest = max(len(item.sequence.block_table) for item in items)
    tables = [i.sequence.block_table + [0] * (widest - len(i.sequence.block_table)) for i in items]

    def tensor(values: list[int] | list[list[int]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Batch(
        token_ids=tensor(token_ids, torch.int64),
        positions=tensor(positions, torch.int64),
        slots=tensor(slots, torch.int64),
        cu_seqlens_q=tensor(cu_seqlens, torch.int32),
        context_lens=tensor(context_lens, torch.int32),
        block_tables=tensor(tables, torch.int32),
        logit_rows=tensor(logit_rows, torch.int64),
        num_decodes=len(plan.decodes),
        max_context=max(context_lens),
    )
