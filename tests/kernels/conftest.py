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
        sinks: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,  # [Hq, context]
    ) -> torch.Tensor:
        """Attention written the plainest way, token by token and head by head, in fp64."""
        keys, values = self.keys[s].double(), self.values[s].double()
        group = q.shape[1] // keys.shape[1]
        out = torch.empty(*q.shape[:2], values.shape[2], dtype=torch.float64)
        for i in range(len(q)):
            stop = len(keys) - len(q) + i + 1
            start = max(0, stop - window) if window else 0
            for head in range(q.shape[1]):
                scores = keys[start:stop, head // group] @ q[i, head].double() * scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                if bias is not None:
                    scores = scores + bias[head, start:stop].double()
                if sinks is not None:
                    scores = torch.cat((scores, sinks[head].double()[None]))
                shares = scores.softmax(0)[: stop - start]
                out[i, head] = shares @ values[start:stop, head // group]
        return out

    def forget(self, s: int, before: int) -> None:
        """What a window has left behind is gone: its blocks are another's, its slots hold NaN."""
        block_tokens = self.k_pool.shape[1]
        for place in range(before):
            block = int(self.tables[s, place // block_tokens])
            for pool in (self.k_pool, self.v_pool):
                pool[block, place % block_tokens] = float("nan")
        self.tables[s, : before // block_tokens] = 0


@pytest.fixture
def make_scene() -> Callable[..., Scene]:
    def call(
        contexts: list[int],
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        shared_blocks: int = 0,
        value_dim: int = 0,
    ) -> Scene:
        """`shared_blocks`: the first blocks of every sequence are the same physical blocks.

        `value_dim`: the width of V where it is not K's. Block 0 is nobody's.
        """
        noise = torch.Generator().manual_seed(11)
        counts = [-(-context // block_tokens) for context in contexts]
        num_blocks = sum(counts) + 3
        free = (1 + torch.randperm(num_blocks - 1, generator=noise)).tolist()
        k_pool, v_pool = (
            torch.full((num_blocks, block_tokens, num_kv_heads, dim), float("nan"), dtype=dtype)
            for dim in (head_dim, value_dim or head_dim)
        )
        tables = torch.zeros(len(contexts), max(counts, default=0), dtype=torch.int32)
        scene = Scene([], [], k_pool, v_pool, tables, torch.tensor(contexts, dtype=torch.int32))
        for s, context in enumerate(contexts):
            taken = scene.tables[0, : min(shared_blocks, counts[s])].tolist() if s else []
            blocks = taken + [free.pop() for _ in range(counts[s] - len(taken))]
            tables[s, : counts[s]] = torch.tensor(blocks, dtype=torch.int32)
            for pool, rows in ((k_pool, scene.keys), (v_pool, scene.values)):
                new = torch.randn(context, *pool.shape[2:], generator=noise).to(dtype)
                for place in range(context):
                    slot = pool[blocks[place // block_tokens], place % block_tokens]
                    if place // block_tokens < len(taken):
                        new[place] = slot
                    else:
                        slot.copy_(new[place])
                rows.append(new)
        return scene

    return call
