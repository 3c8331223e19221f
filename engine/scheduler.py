"""Scheduler: which sequences take part in the next step, with how many tokens each.

Rules. Decode comes first, so a long prompt never delays a running reply; prompts share the rest of
the step's token budget. Who goes first: the smaller priority, then who came first. A block is
allocated only when a token needs it. When no block is left, the last in that order gives all of its
own back, waits in its old place in line and is computed again later: the first always goes on, so
someone always finishes.

Where more chats want to write than the pool holds, they take turns: who has written for a while
makes room for an equal that waits (`engine.turns`).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection as Items
from operator import attrgetter
from typing import Protocol

from engine.blocks import BlockPool
from engine.plan import Load, StepItem, StepPlan
from engine.prefix import Digest
from engine.sequence import Pause, Phase, Sequence
from engine.tables import Copies, Start, Tables
from engine.turns import TURN_TOKENS, Turns

# Who is let in only to be paused soon is computed twice. Over the 1,000 requests of compare-slab
# (512 blocks) one block a sequence made 594 pauses, and 133,000 tokens computed again; four make 93
# and 26,000, for 15.5 sequences at once instead of 16.4.
GROWTH_BLOCKS = 4
# More prompts are not read side by side once those at hand fill a step: they would hold blocks.
MOST_READING = 4
FORK_STEPS = 4  # what left a window is kept so long for one who wants to fork
SHORT_TOKENS = 256  # of a prompt, without what was cached, that is soon read
_rank = attrgetter("rank")
SPLIT_TOKENS = 128  # a smaller budget is not split over more than two prompts


class Reservation(Protocol):
    """A stricter rule for admission. Tessera has none; `compare-slab` measures what one costs."""

    def try_reserve(self, sequence: Sequence) -> bool: ...

    def give_back(self, sequence: Sequence) -> None: ...


class Scheduler:
    """Owns the line of waiting sequences and the list of running ones, both by rank."""

    def __init__(
        self,
        pool: BlockPool,
        chunk_tokens: int,
        max_running: int,
        root: Digest,
        reservation: Reservation | None = None,
        turn_tokens: int = TURN_TOKENS,
    ) -> None:
        self.pool = pool
        self.tables = Tables(pool, root)
        self.chunk_tokens = chunk_tokens
        self.max_running = max_running
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._reservation = reservation
        self.turns = Turns(turn_tokens)
        self._arrivals = itertools.count(1)
        self._decode_turns = itertools.count(1)
        self._last_decode: dict[int, int] = {}  # request -> turn, where not all fit into a step
        self._pins: dict[int, int | None] = {}  # owner -> tokens from the start, None = all
        self._copies: Copies = {}  # of a step that did not happen
        self.held: list[StepItem] = []  # a piece of prompts that takes several steps

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def load(self) -> Load:
        """Nobody counts as writing where all who do are less important than a prompt."""
        writing = [one.priority for one in self.running if one.num_pending == 1]
        reading = [one for one in self.running if one.num_pending > 1]
        resumed = sum(one.num_preemptions > 0 for one in reading)
        reading += self.waiting
        short = sum(one.num_tokens - one.num_cached <= SHORT_TOKENS for one in reading)
        if writing and reading and min(writing) > min(one.priority for one in reading):
            writing = []
        return Load(len(writing), len(reading), short, resumed)

    # --- who is there -----------------------------------------------------------------------------

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in line. Its prompt and one more token fit into an empty pool."""
        assert self.pool.most_blocks(sequence.num_tokens) <= self.pool.num_blocks
        sequence.arrival = next(self._arrivals)
        # As many turns as who had fewest: the newest neither goes before all others nor after.
        present = (*self.running, *self.waiting)
        sequence.num_turns = min((one.num_turns for one in present), default=0)
        bisect.insort(self.waiting, sequence, key=_rank)

    def set_priority(self, sequence: Sequence, priority: int) -> None:
        sequence.priority = priority
        self.waiting.sort(key=_rank)
        self.running.sort(key=_rank)

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, in whatever phase it is; its blocks are available at once."""
        if sequence.phase is Phase.RUNNING:
            self._give_back(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.phase = Phase.ENDED
        sequence.parent = None

    def pin(self, owner: int, num_tokens: int | None) -> None:
        """Keep what this owner's newest request has in the pool: the first `num_tokens`, or all.
        Eviction takes it only when nobody could go on otherwise."""
        self._pins[owner] = num_tokens
        mine = [one for one in self.running if one.owner == owner]
        if mine:
            self._pin(max(mine, key=lambda one: one.arrival))
        elif num_tokens is None:
            self.pool.pin(self.pool.cached_of(owner), owner)

    def unpin(self, owner: int) -> None:
        self._pins.pop(owner, None)
        self.pool.pin((), owner)

    def _pin(self, sequence: Sequence) -> None:
        num_tokens = self._pins[sequence.owner]
        most = sequence.num_computed if num_tokens is None else num_tokens
        self.pool.pin(self.tables.named_blocks(sequence, most), sequence.owner)

    # --- plan -------------------------------------------------------------------------------------

    def plan(self, prompt_tokens: int | None = None) -> StepPlan:
        """Choose the next step and take the blocks it needs.

        Args:
            prompt_tokens: most prompt tokens, where the rest of the budget is more; 0 only while
                somebody writes.
        """
        plan, self._copies = StepPlan(copies=self._copies), {}
        budget = self._plan_decodes(plan, self.chunk_tokens)
        budget = max(budget, 1)  # however many write, prompts go on
        if prompt_tokens is not None:
            budget = min(budget, prompt_tokens)
        if not self.held:
            self._admit(plan, budget)
            self._plan_prompts(plan, budget)
        if plan.paused:  # who was paused may have been planned before
            plan.decodes = [i for i in plan.decodes if i.sequence.phase is Phase.RUNNING]
            plan.prompts = [i for i in plan.prompts if i.sequence.phase is Phase.RUNNING]
        return plan

    def _plan_decodes(self, plan: StepPlan, budget: int) -> int:
        for sequence in self._decoding(budget):
            if budget == 0:
                break
            if sequence.phase is Phase.RUNNING and self._make_room(plan, sequence, 1):
                self.tables.take(sequence, 1, plan.copies)
                plan.decodes.append(StepItem(sequence, 1))
                budget -= 1
        return budget

    def _decoding(self, budget: int) -> list[Sequence]:
        """Sequences that wait for one token; where not all fit into a step, who waited longest."""
        held = {item.sequence.request_id for item in self.held}
        decoding = [o for o in self.running if o.num_pending == 1 and o.request_id not in held]
        if len(decoding) <= budget:
            self._last_decode.clear()
            return decoding
        last = self._last_decode
        decoding.sort(key=lambda one: (one.priority, last.get(one.request_id, 0), one.arrival))
        for sequence in decoding[:budget]:
            last[sequence.request_id] = next(self._decode_turns)
        return decoding

    def _plan_prompts(self, plan: StepPlan, budget: int) -> None:
        """By rank, but each is sure of half of its equal share: a short prompt does not wait until
        a long one that came first is read, and the first loses at most half to those behind."""
        reading = self._reading(plan)
        if budget < SPLIT_TOKENS and len(reading) > 2:
            # Each prompt in a step costs as much as some tokens: the first, and the soonest read.
            reading = [reading[0], min(reading[1:], key=lambda one: one.num_pending)]
        share = budget // (2 * len(reading)) if reading else 0
        for place, sequence in enumerate(reading):
            most = budget - sum(min(share, one.num_pending) for one in reading[place + 1 :])
            if sequence.phase is not Phase.RUNNING or most == 0:
                continue
            # What fits now; blocks are not taken from others only to read a prompt faster.
            room = self.tables.room(sequence, with_kept=len(self.running) == 1)
            num_tokens = min(sequence.num_pending, most, room)
            if num_tokens == 0:
                if not self._make_room(plan, sequence, 1):
                    continue
                num_tokens = 1
            self.tables.take(sequence, num_tokens, plan.copies)
            plan.prompts.append(StepItem(sequence, num_tokens))
            budget -= num_tokens

    def _reading(self, plan: StepPlan) -> list[Sequence]:
        new = set(map(id, plan.admitted))  # one token may be all that is left of their prompt
        return [one for one in self.running if one.num_pending > 1 or id(one) in new]

    # --- admission --------------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, budget: int) -> None:
        if plan.paused:
            return  # blocks are short: nobody comes in during a step that paused someone
        reading = self._reading(plan)
        pending = sum(sequence.num_pending for sequence in reading)
        num_reading = len(reading)
        for sequence in list(self.waiting):
            if num_reading >= budget or (pending >= budget and num_reading >= MOST_READING):
                break
            if self._waits_for_parent(sequence):
                continue
            start = self._fitting_start(sequence) or self._displace(plan, sequence)
            if start is None:
                break
            if self._reservation and not self._reservation.try_reserve(sequence):
                break
            self.waiting.remove(sequence)
            self._start(sequence, start)
            plan.admitted.append(sequence)
            pending += sequence.num_pending
            num_reading += 1

    def _waits_for_parent(self, sequence: Sequence) -> bool:
        """Whether the one to fork from is still reading what both have in common."""
        parent = sequence.parent
        if parent is None or parent.phase in (Phase.PAUSED, Phase.ENDED):
            sequence.parent = None
            return False
        return parent.phase is Phase.WAITING or parent.num_computed < sequence.fork_tokens

    def _fitting_start(self, sequence: Sequence) -> Start | None:
        """Where the sequence can start, if there is room for it now."""
        if len(self.running) >= self.max_running:
            return None
        start = self._longest_start(sequence)
        if not self._fits(sequence, start):
            start = self.tables.cached_start(sequence, with_tail=False)
        return start if self._fits(sequence, start) else None

    def _longest_start(self, sequence: Sequence) -> Start:
        if sequence.parent is not None and sequence.parent.phase is Phase.RUNNING:
            start = self.tables.forked_start(sequence.parent, sequence.fork_tokens)
            if start is not None:
                return start
        return self.tables.cached_start(sequence)

    def _fits(self, sequence: Sequence, start: Start, without: Items[Sequence] = ()) -> bool:
        """Whether the sequence and the growth of the running ones fit, if those in `without` were
        paused. Pinned blocks count only where nobody else runs."""
        pool = self.pool
        staying = [one for one in self.running if one not in without]
        needed = self.tables.needed(sequence, start, self.chunk_tokens if staying else 1)
        freed = [b for one in without for b in one.held_blocks() if pool.num_owners(b) == 1]
        available = pool.num_available + len(freed) + (0 if staying else pool.num_kept)
        taken = pool.num_cached_among(start.blocks, with_kept=not staying)
        taken += len(set(freed) & set(start.blocks))
        return needed + self._growth(staying) + taken <= available

    def _growth(self, running: Items[Sequence]) -> int:
        """Blocks that running sequences will want soon, which nobody new is let in to take: those
        of the prompt that is not read yet, and a few more."""
        blocks_for, groups = self.pool.blocks_for, len(self.pool.groups)
        total = 0
        for one in running:
            unread = max(0, blocks_for(one.num_tokens) - one.num_logical)
            later = blocks_for(one.limit_tokens) - one.num_logical - unread
            total += unread + max(0, min(GROWTH_BLOCKS, later))
        return total * groups

    def _displace(self, plan: StepPlan, sequence: Sequence) -> Start | None:
        """Make room for a sequence by pausing some of less importance, or equals that had their
        turn, if that helps."""
        num_running, num_all = len(self.running), len(self.running) + len(self.waiting)
        gives_way = self.turns.gives_way
        victims = [o for o in self.running if gives_way(o, sequence, num_running, num_all)]
        if not victims:
            return None
        if not self._fits(sequence, self.tables.cached_start(sequence, False), without=victims):
            return None
        while victims and not (found := self._fitting_start(sequence)):
            victim = victims.pop()
            why = Pause.TURN if victim.priority == sequence.priority else Pause.PRIORITY
            victim.num_turns += why is Pause.TURN
            self._pause(plan, victim, why)
        return found or self._fitting_start(sequence)

    def _start(self, sequence: Sequence, start: Start) -> None:
        self.tables.begin(sequence, start)
        if sequence.phase is Phase.WAITING:
            sequence.num_cached = sequence.num_computed
            sequence.diverged_at = start.diverged_at
        sequence.phase = Phase.RUNNING
        sequence.parent = None
        sequence.start_tokens = sequence.num_tokens
        bisect.insort(self.running, sequence, key=_rank)

    # --- blocks -----------------------------------------------------------------------------------

    def _make_room(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> bool:
        """Pause sequences from the last rank on until `num_tokens` fit; False when `sequence`
        itself had to go. Who runs alone takes pinned blocks instead."""
        while (missing := self.tables.missing(sequence, num_tokens)) > self.pool.num_available:
            if len(self.running) == 1 and missing <= self.pool.num_available + self.pool.num_kept:
                return True
            if self.tables.leave_windows(sequence):
                continue
            victim = self.running[-1]
            self._pause(plan, victim)
            if victim is sequence:
                return False
        return True

    def _pause(self, plan: StepPlan, sequence: Sequence, why: Pause = Pause.MEMORY) -> None:
        for block in sequence.held_blocks():
            plan.copies.pop(block, None)
        self._give_back(sequence)
        sequence.phase, sequence.pause = Phase.PAUSED, why
        sequence.num_preemptions += 1
        bisect.insort(self.waiting, sequence, key=_rank)
        plan.paused.append(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.held = [item for item in self.held if item.sequence is not sequence]
        if sequence.owner in self._pins:
            self._pin(sequence)
        self.tables.give_back(sequence)
        if self._reservation:
            self._reservation.give_back(sequence)

    # --- after the step ---------------------------------------------------------------------------

    def commit(self, plan: StepPlan) -> None:
        """The step's K and V are in the pool."""
        if plan.prompts:
            self.held = []
        forks = self._forks()
        for item in plan.items:
            fork_tokens = forks.get(item.sequence.request_id)
            num_computed = item.sequence.num_computed + item.num_tokens
            if fork_tokens is not None and not 0 <= num_computed - fork_tokens <= FORK_STEPS:
                fork_tokens = None  # not yet there, or it had its chance
            self.tables.commit(item.sequence, item.num_tokens, fork_tokens)
            self.tables.count_waste(item.sequence)

    def hold(self, items: list[StepItem]) -> None:
        """These prompts take this step and more. Until a plan has them again and is committed, or
        one is undone, no other is begun; who is paused or ends is taken out."""
        self.held = items
        for item in items:
            self.tables.fill(item.sequence, item.num_tokens)

    def _forks(self) -> dict[int, int]:
        """Running request -> where somebody in line will fork from it in the next step."""
        return {
            one.parent.request_id: one.fork_tokens for one in self.waiting if one.parent is not None
        }

    def undo(self, plan: StepPlan) -> None:
        """The step could not be computed, nor what was held: take back the blocks that both took.
        Its copies are made in the next one."""
        for item in plan.items + self.held:
            self.tables.cut(item.sequence)
        self._copies, self.held = plan.copies, []

    def pause_last(self) -> Sequence | None:
        """Pause the last in rank, unless nobody else is running."""
        if len(self.running) < 2:
            return None
        victim = self.running[-1]
        self._pause(StepPlan(copies=self._copies), victim)
        return victim

    # --- figures ----------------------------------------------------------------------------------

    def slots(self) -> tuple[float, int]:
        """(written, held) slots of the running sequences; a shared block counts once."""
        return self.tables.slots(self.running)

    def check(self) -> None:
        """Assert the invariants of pool, tables and lists."""
        self.pool.check([(one.owner, list(one.held_blocks())) for one in self.running])
        for line in (self.running, self.waiting):
            assert len(set(map(id, line))) == len(line)
            assert sorted(line, key=_rank) == line
        held = {item.sequence.request_id: item.num_tokens for item in self.held}
        assert held.keys() <= {one.request_id for one in self.running}
        for one in self.running:
            assert one.phase is Phase.RUNNING
            self.tables.check(one, held.get(one.request_id, 0), FORK_STEPS)
        for one in self.waiting:
            assert one.phase in (Phase.WAITING, Phase.PAUSED)
            assert not one.block_tables
