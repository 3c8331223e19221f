"""StepPlan -> tensors. Every shape of a step is written here, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.plan import StepItem, StepPlan


@dataclass(frozen=True, slots=True)
class Batch:
    """The tensors of one step. Sequences with exactly one new token (decode) come first.

    T new tokens over S sequences; `num_decodes` of them decode, so rows 0..num_decodes-1 of the
    token axis are theirs and `cu_seqlens_q[i] == i` for i <= num_decodes.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    slots: tuple[torch.Tensor, ...]  # per layer group [T] int64: block * block_tokens + offset,
    # where K and V of a token go
    cu_seqlens_q: torch.Tensor  # [S + 1] int32, prefix sum of new tokens
    context_lens: torch.Tensor  # [S] int32, tokens visible after the step: cached + new
    block_tables: tuple[torch.Tensor, ...]  # per layer group [S, max_blocks] int32; 0 where a row
    # is shorter, and where a block has left the group's window
    logit_rows: torch.Tensor  # [L] int64, rows of the token axis whose logits are wanted
    num_decodes: int

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
    cu_seqlens = [0]
    context_lens: list[int] = []
    logit_rows: list[int] = []
    items = plan.items
    for sequence, num_tokens in ((item.sequence, item.num_tokens) for item in items):
        start = sequence.num_computed
        end = start + num_tokens
        token_ids += sequence.token_ids[start:end]
        positions += range(start, end)
        cu_seqlens.append(len(token_ids))
        context_lens.append(end)
        if end == sequence.num_tokens:
            logit_rows.append(len(token_ids) - 1)

    def tensor(values: list[int] | list[list[int]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    groups = range(len(items[0].sequence.block_tables))
    return Batch(
        token_ids=tensor(token_ids, torch.int64),
        positions=tensor(positions, torch.int64),
        slots=tuple(tensor(_slots(items, g, block_tokens), torch.int64) for g in groups),
        cu_seqlens_q=tensor(cu_seqlens, torch.int32),
        context_lens=tensor(context_lens, torch.int32),
        block_tables=tuple(tensor(_tables(items, g), torch.int32) for g in groups),
        logit_rows=tensor(logit_rows, torch.int64),
        num_decodes=len(plan.decodes),
    )


def _slots(items: list[StepItem], group: int, block_tokens: int) -> list[int]:
    slots: list[int] = []
    for item in items:
        table, start = item.sequence.block_tables[group], item.sequence.num_computed
        places = range(start, start + item.num_tokens)
        slots += [table[p // block_tokens] * block_tokens + p % block_tokens for p in places]
    return slots


def _tables(items: list[StepItem], group: int) -> list[list[int]]:
    tables = [item.sequence.block_tables[group] for item in items]
    widest = max(map(len, tables))
    return [[max(block, 0) for block in table] + [0] * (widest - len(table)) for table in tables]
