"""Scheduler: which sequences take part in the next step, with how many tokens each.

Rules. Decode comes first, so a long prompt never delays a running reply; prompts share the rest of
the step's token budget in order of arrival. A block is allocated only when a token needs it. When
no block is left, the sequence that arrived last gives all of its own back, waits at the head of the
line and is computed again later: whoever arrived first always goes on, so someone always finishes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from engine.blocks import BlockPool, Digest
from engine.sequence import Phase, Sequence

# Who is let in only to be paused soon is computed twice. Over the 1,000 requests of compare-slab
# (512 blocks) one block a sequence made 594 pauses, and 133,000 tokens computed again; four make 93
# and 26,000, for 15.5 sequences at once instead of 16.4.
GROWTH_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class StepItem:
    sequence: Sequence
    num_tokens: int  # computed in this step, starting at sequence.num_computed


@dataclass(slots=True)
class StepPlan:
    """What the next forward pass computes, and who was admitted or paused to make it so."""

    decodes: list[StepItem] = field(default_factory=list)  # one token each
    prompts: list[StepItem] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    paused: list[Sequence] = field(default_factory=list)

    @property
    def items(self) -> list[StepItem]:
        return self.decodes + self.prompts

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)


class Reservation(Protocol):
    """A stricter rule for admission. Tessera has none; `compare-slab` measures what one costs."""

    def try_reserve(self, sequence: Sequence) -> bool: ...

    def give_back(self, sequence: Sequence) -> None: ...


class Scheduler:
    """Owns the line of waiting sequences and the list of running ones, both by arrival."""

    def __init__(
        self,
        pool: BlockPool,
        chunk_tokens: int,
        max_running: int,
        root: Digest,
        reservation: Reservation | None = None,
    ) -> None:
        self.pool = pool
        self.chunk_tokens = chunk_tokens
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._root = root
        self._reservation = reservation

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in line. Its prompt and one more token fit into an empty pool."""
        assert self.pool.blocks_for(sequence.num_tokens) <= self.pool.num_blocks
        self.waiting.append(sequence)

    # --- plan -----------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Choose the next step and take the blocks it needs."""
        plan = StepPlan()
        budget = self._plan_decodes(plan, self.chunk_tokens)
        budget = self._plan_prompts(plan, budget)
        self._admit(plan, budget)
        if plan.paused:  # a prompt that arrived first may have paused a decode planned before it
            plan.decodes = [i for i in plan.decodes if i.sequence.phase is Phase.RUNNING]
        return plan

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        for sequence in list(self.running):
            if sequence.phase is not Phase.RUNNING or sequence.num_pending != 1 or budget == 0:
                continue
            if self._make_room(plan, sequence, 1):
                self._take_blocks(sequence, 1)
                plan.decodes.append(StepItem(sequence, 1))
                budget -= 1
        return budget

    def _plan_prompts(self, plan: StepPlan, budget: int) -> int:
        for sequence in list(self.running):
            if sequence.phase is not Phase.RUNNING or sequence.num_pending <= 1 or budget == 0:
                continue
            # What fits now; blocks are not taken from others only to read a prompt faster.
            room = self.pool.num_available * self.pool.block_tokens + self._tail_room(sequence)
            num_tokens = min(sequence.num_pending, budget, room)
            if num_tokens == 0:
                if not self._make_room(plan, sequence, 1):
                    continue
                num_tokens = 1
            self._take_blocks(sequence, num_tokens)
            plan.prompts.append(StepItem(sequence, num_tokens))
            budget -= num_tokens
        return budget

    def _admit(self, plan: StepPlan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            sequence = self.waiting[0]
            if plan.paused:
                break  # blocks are short: nobody comes in during a step that paused someone
            shared = self._cached_prefix(sequence)
            needed = self.pool.blocks_for(sequence.num_tokens) - len(shared)
            spare = self._growth() + self.pool.num_cached_among(shared)
            if needed + spare > self.pool.num_available:
                break
            if self._reservation and not self._reservation.try_reserve(sequence):
                break
            self.waiting.popleft()
            self._start(sequence, shared)
            plan.admitted.append(sequence)
            num_tokens = min(sequence.num_pending, budget)
            self._take_blocks(sequence, num_tokens)
            plan.prompts.append(StepItem(sequence, num_tokens))
            budget -= num_tokens

    def _growth(self) -> int:
        """Blocks that the running sequences will want soon, which nobody new is let in to take."""
        blocks_for = self.pool.blocks_for
        return sum(
            min(GROWTH_BLOCKS, blocks_for(one.limit_tokens) - len(one.block_table))
            for one in self.running
        )

    def _cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks of the prefix cache to start from. At least one token is left to compute, in a
        block of the sequence's own, so that a shared block is never written."""
        if not sequence.use_prefix_cache:
            return []
        size = self.pool.block_tokens
        whole = (sequence.num_tokens - 1) // size
        return self.pool.find_prefix(sequence.digests_up_to(whole, size, self._root))

    def _start(self, sequence: Sequence, shared: list[int]) -> None:
        for block in shared:
            self.pool.share(block, sequence.owner)
        sequence.block_table = list(shared)
        sequence.num_computed = len(shared) * self.pool.block_tokens
        if sequence.phase is Phase.WAITING:
            sequence.num_cached = sequence.num_computed
        sequence.phase = Phase.RUNNING
        self.running.append(sequence)

    # --- blocks ---------------------------------------------------------------------------------

    def _tail_room(self, sequence: Sequence) -> int:
        return len(sequence.block_table) * self.pool.block_tokens - sequence.num_computed

    def _make_room(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        """Pause sequences from the last arrival on until `num_tokens` fit; False when `sequence`
        itself had to go."""
        missing = self.pool.blocks_for(sequence.num_computed + num_tokens)
        missing -= len(sequence.block_table)
        while missing > self.pool.num_available:
            victim = self.running[-1]
            self._pause(plan, victim)
            if victim is sequence:
                return False
        return True

    def _take_blocks(self, sequence: Sequence, num_tokens: int) -> None:
        wanted = self.pool.blocks_for(sequence.num_computed + num_tokens)
        table = sequence.block_table
        while len(table) < wanted:
            table.append(self.pool.allocate(sequence.owner))
        sequence.peak_blocks = max(sequence.peak_blocks, len(table))

    def _pause(self, plan: StepPlan, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.phase = Phase.PAUSED
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)
        plan.paused.append(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table, sequence.owner)
        sequence.block_table = []
        if self._reservation:
            self._reservation.give_back(sequence)

    # --- after the step -------------------------------------------------------------------------

    def commit(self, plan: StepPlan) -> None:
        """The step's K and V are in the pool: count them, and name the blocks that became full."""
        size = self.pool.block_tokens
        for item in plan.items:
            sequence = item.sequence
            first = sequence.num_computed // size
            sequence.num_computed += item.num_tokens
            full = sequence.num_computed // size
            if full > first and sequence.use_prefix_cache:
                digests = sequence.digests_up_to(full, size, self._root)
                for index in range(first, full):
                    self.pool.seal(sequence.block_table[index], digests[index])
            for index in range(first, len(sequence.block_table)):
                filled = min(sequence.num_computed - index * size, size)
                self.pool.set_filled(sequence.block_table[index], filled)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever phase it is; its blocks are available at once."""
        if sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
            self._give_back(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.phase = Phase.ENDED

    # --- figures --------------------------------------------------------------------------------

    def slots(self) -> tuple[int, int]:
        """(written, held) slots of the running sequences; a shared block counts once."""
        held = self.pool.num_used * self.pool.block_tokens
        return held - sum(self._tail_room(sequence) for sequence in self.running), held

    def check(self) -> None:
        """Assert the invariants of pool, tables and lists."""
        self.pool.check([(sequence.owner, sequence.block_table) for sequence in self.running])
        assert len(set(map(id, self.running))) == len(self.running)
        for sequence in self.running:
            assert sequence.phase is Phase.RUNNING
            assert 0 <= self._tail_room(sequence) < self.pool.block_tokens, sequence
        for sequence in self.waiting:
            assert sequence.phase in (Phase.WAITING, Phase.PAUSED)
            assert not sequence.block_table
