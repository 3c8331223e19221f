"""Sequence: a request's tokens, its block table and how far its K and V are computed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from engine.blocks import Digest, chain_digest
from engine.messages import SamplingParams


class Phase(enum.Enum):
    WAITING = "waiting"  # holds nothing yet
    RUNNING = "running"  # holds blocks; reads its prompt or writes
    PAUSED = "paused"  # was running, gave its blocks back, is in line again
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. The engine thread is its only owner."""

    request_id: int
    token_ids: list[int]  # prompt, then what was sampled
    num_prompt: int
    limit_tokens: int  # token_ids never grows past this
    params: SamplingParams
    owner: int = 0
    seed: int = 0
    use_prefix_cache: bool = True
    phase: Phase = Phase.WAITING
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0  # tokens whose K and V are in the pool
    digests: list[Digest] = field(default_factory=list)  # of the full blocks of token_ids
    num_cached: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_preemptions: int = 0
    peak_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_new(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that have no K and V yet; 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    def digests_up_to(self, num_blocks: int, block_tokens: int, root: Digest) -> list[Digest]:
        """Digests of the first `num_blocks` full blocks, computed once and kept."""
        while len(self.digests) < num_blocks:
            start = len(self.digests) * block_tokens
            parent = self.digests[-1] if self.digests else root
            self.digests.append(chain_digest(parent, self.token_ids[start : start + block_tokens]))
        return self.digests[:num_blocks]
