"""Sequence: a request's tokens, its block tables and how far its K and V are computed."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.messages import SamplingParams
from engine.prefix import Digest, chain_digest

GONE = -1  # stands in a block table where a block has left its group's window


class Pause(enum.Enum):
    """Why a sequence gave its blocks back."""

    MEMORY = "The pool is full; it goes on when there is room."
    TURN = "The pool is full; another chat has its turn."
    PRIORITY = "The pool is full; the chat in front goes first."


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
    priority: int = 1  # the smaller goes first
    parent: Sequence | None = None  # to fork from, as far as `fork_tokens`
    fork_tokens: int = 0
    phase: Phase = Phase.WAITING
    arrival: int = 0  # place in the order of submission, set by the scheduler
    num_turns: int = 0  # how often it made room for an equal that waited
    start_tokens: int = 0  # num_tokens when it was last admitted
    block_tables: list[list[int]] = field(default_factory=list)  # per layer group; [] = holds none
    num_gone: list[int] = field(default_factory=list)  # per layer group: how many are GONE
    num_computed: int = 0  # tokens whose K and V are in the pool
    digests: list[Digest] = field(default_factory=list)  # of the full blocks of token_ids
    num_cached: int = 0  # prompt tokens that were not computed at first admission
    diverged_at: int | None = None  # first prompt token that what is cached does not go on with
    num_preemptions: int = 0
    pause: Pause = Pause.MEMORY  # the last one
    peak_blocks: int = 0
    sum_written: float = 0.0  # over the steps: slots with a token, of those held
    sum_held: int = 0

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

    @property
    def rank(self) -> tuple[int, int, int]:
        """Who goes first: the smaller priority, then who had fewer turns, then who came first."""
        return self.priority, self.num_turns, self.arrival

    @property
    def num_logical(self) -> int:
        """Blocks of one table, the GONE ones included; the same in every group."""
        return len(self.block_tables[0]) if self.block_tables else 0

    @property
    def num_held(self) -> int:
        return sum(map(len, self.block_tables)) - sum(self.num_gone)

    def held_blocks(self) -> Iterator[int]:
        for table, gone in zip(self.block_tables, self.num_gone, strict=True):
            yield from table[gone:]

    def digests_up_to(self, num_blocks: int, block_tokens: int, root: Digest) -> list[Digest]:
        """Digests of the first `num_blocks` full blocks, computed once and kept."""
        while len(self.digests) < num_blocks:
            start = len(self.digests) * block_tokens
            parent = self.digests[-1] if self.digests else root
            self.digests.append(chain_digest(parent, self.token_ids[start : start + block_tokens]))
        return self.digests[:num_blocks]
