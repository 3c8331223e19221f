"""warm_up: every kernel that a model's steps use is compiled and loaded before the first message.

Numba compiles a kernel at its first call, some seconds each, and keeps it on disk; even from there
it takes a quarter of a second. The first reply should not wait for that, nor everybody else when
the first long context comes.
"""

from __future__ import annotations

import torch

from engine.batch import Batch
from engine.kv_cache import KVCache
from engine.model.loader import LoadedModel

# Past what is split among threads, and enough new rows that a chunk's kernel takes them.
CONTEXT, CHUNK = 600, 24


def warm_up(
    model: LoadedModel, cache: KVCache, block_tokens: int, limit_tokens: int, device: torch.device
) -> None:
    """One step of a decode row beside a chunk. It writes into the first block, which is empty."""
    context = min(CONTEXT, limit_tokens)
    chunk = min(CHUNK, context)
    groups = range(len(model.kv.groups))

    def numbers(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    tables = torch.zeros(2, -(-context // block_tokens), dtype=torch.int32, device=device)
    batch = Batch(
        token_ids=numbers([0] * (1 + chunk)),
        positions=numbers([context - 1, *range(context - chunk, context)]),
        slots=tuple(numbers([0] * (1 + chunk)) for _ in groups),
        cu_seqlens_q=numbers([0, 1, 1 + chunk], torch.int32),
        context_lens=numbers([context, context], torch.int32),
        block_tables=tuple(tables for _ in groups),
        logit_rows=numbers([0, chunk]),
        num_decodes=1,
    )
    model.forward(batch, cache)
