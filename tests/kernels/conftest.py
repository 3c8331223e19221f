"""Fixtures of the kernel tests: every backend of this machine, and pools with scattered tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from kernels.dispatch import Ops, choose


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ops_for(backend: str) -> Callable[[torch.dtype], Ops]:
    def call(dtype: torch.dtype) -> Ops:
        ops = choose(torch.device("cpu"), dtype, backend)
        assert ops.backend == backend
        return ops

    return call


@dataclass
class Scene:
    """Sequences whose K and V lie scattered over a pool; slots nobody wrote hold NaN."""

    keys: list[torch.Tensor]  # per sequence [context, Hkv, D]
    values: list[torch.Tensor]
    k_pool: torch.Tensor
    v_pool: torch.Tensor
    tables: torch.Tensor  # [S, max_blocks] int32
    lens: torch.Tensor  # [S] int32

    def dense(
        self,
        s: int,
        q: torch.Tensor,  # [n, Hq, D], the newest n tokens of sequence s
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attention written the plainest way, token by token and head by head, in fp64."""
        keys, values = self.keys[s].double(), self.values[s].double()
        group = q.shape[1] // keys.shape[1]
        out = torch.empty(q.shape, dtype=torch.float64)
        for i in range(len(q)):
            stop = len(keys) - len(q) + i + 1
            start = max(0, stop - window) if window else 0
            for head in range(q.shape[1]):
                scores = keys[start:stop, head // group] @ q[i, head].double() * scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                out[i, head] = scores.softmax(0) @ values[start:stop, head // group]
        return out


@pytest.fixture
def make_scene() -> Callable[..., Scene]:
    def call(
        contexts: list[int],
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        shared_blocks: int = 0,
    ) -> Scene:
        """`shared_blocks`: the first blocks of every sequence are the same physical blocks."""
        noise = torch.Generator().manual_seed(11)
        counts = [-(-context // block_tokens) for context in contexts]
        num_blocks = sum(counts) + 3
        free = torch.randperm(num_blocks, generator=noise).tolist()
        shape = (num_blocks, block_tokens, num_kv_heads, head_dim)
        k_pool, v_pool = (torch.full(shape, float("nan"), dtype=dtype) for _ in range(2))
        tables = torch.zeros(len(contexts), max(counts, default=0), dtype=torch.int32)
        scene = Scene([], [], k_pool, v_pool, tables, torch.tensor(contexts, dtype=torch.int32))
        for s, context in enumerate(contexts):
            taken = scene.tables[0, : min(shared_blocks, counts[s])].tolist() if s else []
            blocks = taken + [free.pop() for _ in range(counts[s] - len(taken))]
            tables[s, : counts[s]] = torch.tensor(blocks, dtype=torch.int32)
            for pool, rows in ((k_pool, scene.keys), (v_pool, scene.values)):
                new = torch.randn(context, num_kv_heads, head_dim, generator=noise).to(dtype)
                for place in range(context):
                    slot = pool[blocks[place // block_tokens], place % block_tokens]
                    if place // block_tokens < len(taken):
                        new[place] = slot
                    else:
                        slot.copy_(new[place])
                rows.append(new)
        return scene

    return call
