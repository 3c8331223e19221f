"""Pool and scheduler under random commands, with a model that reads what really lies in the blocks.

What a token leaves in its slot hangs on everything it sees, as K and V do. Each answer is compared
with a model that only has the list of tokens; every invariant is checked after every step.

    python -m tests.engine.test_stateful --operations 200000
"""

from __future__ import annotations

import argparse
import time

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.blocks import BlockPool
from engine.layer_groups import LayerGroup
from engine.messages import SamplingParams
from engine.plan import StepPlan
from engine.prefix import root_digest
from engine.scheduler import Scheduler
from engine.sequence import Phase, Sequence

WORDS = 23
MASK = (1 << 61) - 1
GROUPINGS = {
    "full": (LayerGroup((0, 1)),),
    "window": (LayerGroup((0, 1), 6),),
    "mixed": (LayerGroup((0, 1)), LayerGroup((2, 3), 5), LayerGroup((4,), 5)),
    "two windows": (LayerGroup((0,), 3), LayerGroup((1,), 9)),
    "window of one": (LayerGroup((0,)), LayerGroup((1,), 1)),
}


def value(token: int, place: int, seen: int) -> int:
    return (token * 1_000_003 + place * 7_919 + seen * 31 + 17) & MASK


class PlainModel:
    """The straightforward one: a list of tokens in, a token out; no block, no table."""

    def __init__(self, groups: tuple[LayerGroup, ...]) -> None:
        self._groups = groups
        self._known: dict[int, tuple[list[int], list[int]]] = {}  # request -> tokens, sums

    def answer(self, request_id: int, tokens: list[int], seed: int) -> int:
        known, sums = self._known.setdefault(request_id, ([], [0]))
        assert tokens[: len(known)] == known, "a sequence only grows"
        last = 0
        for place in range(len(known), len(tokens)):
            seen = 0
            for group in self._groups:
                first = max(0, place - group.window + 1) if group.window else 0
                seen += sums[place] - sums[min(first, place)]
            last = value(tokens[place], place, seen & MASK)
            known.append(tokens[place])
            sums.append(sums[-1] + last * (place + 1))
        return (last + seed) % WORDS


class PagedModel:
    """The same through block tables: one list of slots per block, shared by all groups."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks = [[-1] * pool.block_tokens for _ in range(pool.num_blocks)]

    def forward(self, plan: StepPlan) -> dict[int, int]:
        """{request: token} for the sequences that the step reads to their end."""
        before = {source: list(self._blocks[source]) for source in plan.copies.values()}
        for target, source in plan.copies.items():
            self._blocks[target] = list(before[source])
        answers: dict[int, int] = {}
        for item in plan.items:
            one, last = item.sequence, 0
            for place in range(one.num_computed, one.num_computed + item.num_tokens):
                last = self._token(one, place)
            if item.num_tokens == one.num_pending:
                answers[one.request_id] = (last + one.seed) % WORDS
        return answers

    def _token(self, one: Sequence, place: int) -> int:
        size, seen = self._pool.block_tokens, 0
        for group, table in zip(self._pool.groups, one.block_tables, strict=True):
            first = max(0, place - group.window + 1) if group.window else 0
            for q in range(first, place):
                seen += self._blocks[table[q // size]][q % size] * (q + 1)
        new = value(one.token_ids[place], place, seen & MASK)
        for table in one.block_tables:
            # A fork may have come to share the block in this very step; it does not see this slot.
            block = table[place // size]
            assert self._pool.is_writable(block) or self._pool.num_owners(block) > 1
            self._blocks[table[place // size]][place % size] = new
        return new


class Engine(RuleBasedStateMachine):
    """Commands as the engine gives them to the scheduler."""

    operations = 0

    @initialize(
        num_blocks=st.integers(4, 40),
        block_tokens=st.integers(1, 5),
        chunk=st.integers(1, 16),
        most=st.integers(1, 6),
        groups=st.sampled_from(sorted(GROUPINGS)),
    )
    def make(self, num_blocks: int, block_tokens: int, chunk: int, most: int, groups: str) -> None:
        self.pool = BlockPool(num_blocks, block_tokens, groups=GROUPINGS[groups])
        self.scheduler = Scheduler(self.pool, chunk, most, root_digest("t"), turn_tokens=3)
        self.paged = PagedModel(self.pool)
        self.plain = PlainModel(self.pool.groups)
        self.room = min(60, self.pool.most_tokens())
        self.live: dict[int, Sequence] = {}
        self.ended: list[list[int]] = []
        self.next_id = 1
        self.hold_steps = 0

    def _submit(self, tokens: list[int], limit: int, owner: int, **more: object) -> Sequence | None:
        limit = min(self.room, len(tokens) + limit)
        if not tokens or len(tokens) >= limit:
            return None  # refused before it comes here
        one = Sequence(
            self.next_id, list(tokens), len(tokens), limit, SamplingParams(), owner,
            seed=self.next_id % 3, **more,
        )  # fmt: skip
        self.next_id += 1
        self.live[one.request_id] = one
        self.scheduler.add(one)
        Engine.operations += 1
        return one

    @rule(
        system=st.sampled_from([[], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9]]),
        text=st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=14),
        limit=st.integers(1, 25),
        owner=st.integers(0, 4),
        priority=st.integers(0, 2),
        cache=st.booleans(),
        siblings=st.sampled_from([0, 0, 0, 1, 2]),
    )
    def submit(self, system, text, limit, owner, priority, cache, siblings) -> None:
        tokens = system + text
        first = self._submit(tokens, limit, owner, priority=priority, use_prefix_cache=cache)
        for _ in range(siblings if first else 0):
            self._submit(
                tokens, limit, owner, priority=priority, use_prefix_cache=cache, parent=first,
                fork_tokens=len(tokens) - 1,
            )  # fmt: skip

    @precondition(lambda self: self.ended)
    @rule(
        which=st.integers(0, 1000),
        keep=st.floats(0, 1),
        text=st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=6),
        owner=st.integers(0, 4),
        limit=st.integers(1, 12),
    )
    def edit(self, which, keep, text, owner, limit) -> None:
        """Another turn, or another way on from some place in what was said."""
        past = self.ended[which % len(self.ended)]
        self._submit(past[: round(keep * len(past))] + text, limit, owner)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 1000), limit=st.integers(1, 12), owner=st.integers(0, 4))
    def fork(self, which, limit, owner) -> None:
        parent = list(self.live.values())[which % len(self.live)]
        self._submit(
            parent.token_ids, limit, owner, parent=parent, fork_tokens=parent.num_tokens - 1,
            use_prefix_cache=parent.use_prefix_cache,
        )  # fmt: skip

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 1000))
    def abort(self, which) -> None:
        self._end(list(self.live.values())[which % len(self.live)])

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 1000), priority=st.integers(0, 2))
    def change_priority(self, which, priority) -> None:
        Engine.operations += 1
        one = list(self.live.values())[which % len(self.live)]
        self.scheduler.set_priority(one, priority)

    @rule(owner=st.integers(0, 4), num_tokens=st.none() | st.integers(0, 30))
    def pin(self, owner, num_tokens) -> None:
        Engine.operations += 1
        self.scheduler.pin(owner, num_tokens)
        self.scheduler.check()

    @rule(owner=st.integers(0, 4), drop=st.booleans())
    def unpin(self, owner, drop) -> None:
        Engine.operations += 1
        self.scheduler.unpin(owner)
        if drop:
            self.pool.drop_cached(owner)
        self.scheduler.check()

    @rule(prompt_tokens=st.none() | st.integers(1, 4))
    def no_memory(self, prompt_tokens) -> None:
        """The device had no memory for the step."""
        Engine.operations += 1
        self.scheduler.undo(self.scheduler.plan(prompt_tokens))
        self.scheduler.pause_last()
        self.scheduler.check()

    @rule(
        times=st.integers(1, 6),
        prompt_tokens=st.none() | st.integers(1, 4),
        hold=st.sampled_from([0, 0, 1, 2, 9]),
    )
    def steps(self, times, prompt_tokens, hold) -> None:
        for _ in range(times):
            self._step(prompt_tokens, hold)

    def _step(self, prompt_tokens: int | None = None, hold: int = 0) -> StepPlan:
        """Prompts of a step in which others write are held for `hold` steps more."""
        Engine.operations += 1
        plan = self.scheduler.plan(prompt_tokens)
        if plan.prompts and plan.decodes and hold:
            self.scheduler.hold(plan.prompts)
            self.hold_steps, plan.prompts = hold, []
        elif self.scheduler.held:
            assert not plan.prompts
            assert not plan.admitted
            self.hold_steps -= 1
            if self.hold_steps <= 0 or not plan.decodes:
                plan.prompts = self.scheduler.held
        answers = self.paged.forward(plan)
        self.scheduler.commit(plan)
        for request_id, token in answers.items():
            one = self.live[request_id]
            assert token == self.plain.answer(one.request_id, one.token_ids, one.seed), one
            one.token_ids.append(token)
            if one.num_tokens >= one.limit_tokens or token == WORDS - 1:
                self._end(one)
        self.scheduler.check()
        written, held = self.scheduler.slots()
        assert 0 <= written <= held
        return plan

    def _end(self, one: Sequence) -> None:
        Engine.operations += 1
        del self.live[one.request_id]
        self.scheduler.end(one)
        self.ended = [*self.ended[-20:], one.token_ids]
        self.scheduler.check()

    def teardown(self) -> None:
        """Whatever was begun comes to its end, and every block is there again."""
        if not hasattr(self, "scheduler"):
            return
        steps = stalled = 0
        while self.live:
            first = min(self.live.values(), key=lambda one: one.rank)
            computed, phase = first.num_computed, first.phase
            self._step()
            # Where a step has not room for all who write, each has a turn, newcomers first.
            stood = phase is Phase.RUNNING and first.num_computed == computed
            stalled = stalled + 1 if stood and first.request_id in self.live else 0
            assert stalled < 2 * self.scheduler.max_running, "the first in rank always goes on"
            steps += 1
            assert steps < 1_500, first
        assert self.scheduler.is_idle
        self.pool.check_idle()
        self.pool.check([])


CI = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestEngine = Engine.TestCase
TestEngine.settings = CI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=200_000)
    wanted = parser.parse_args().operations
    start_s = time.monotonic()
    rounds = 0
    while Engine.operations < wanted:
        run_state_machine_as_test(Engine, settings=settings(CI, max_examples=200, database=None))
        rounds += 1
        print(f"{Engine.operations:,} operations, {time.monotonic() - start_s:,.0f} s", flush=True)
    print(f"{Engine.operations:,} operations in {rounds} rounds, every check passed")


if __name__ == "__main__":
    main()
