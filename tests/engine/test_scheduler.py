"""Scheduler: order, budget, pausing, progress; random traffic with check() after each step."""

from __future__ import annotations

import random

import pytest

from engine.blocks import BlockPool
from engine.messages import BACKGROUND, FRONT, SamplingParams
from engine.plan import Load, StepPlan
from engine.prefix import root_digest
from engine.scheduler import Scheduler
from engine.sequence import Pause, Phase, Sequence


def make(num_blocks: int = 16, block_tokens: int = 4, chunk: int = 8, most: int = 64) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, block_tokens), chunk, most, root_digest("t"))


def request(number: int, num_prompt: int, limit: int = 64, cache: bool = False) -> Sequence:
    tokens = [number * 1000 + i for i in range(num_prompt)]
    return Sequence(number, tokens, num_prompt, limit, SamplingParams(), number, 0, cache)


def step(scheduler: Scheduler) -> StepPlan:
    """One step with a model that always answers 1."""
    plan = scheduler.plan()
    scheduler.commit(plan)
    for item in plan.items:
        if item.sequence.num_pending == 0:
            item.sequence.token_ids.append(1)
    scheduler.check()
    return plan


def shape(plan: StepPlan) -> list[tuple[int, int]]:
    return [(item.sequence.request_id, item.num_tokens) for item in plan.items]


def test_decode_comes_first_and_prompts_share_the_rest() -> None:
    """By arrival, but nobody waits wholly for a long prompt that came first."""
    scheduler = make(num_blocks=64, chunk=8)
    for number, length in ((1, 3), (2, 20), (3, 5)):
        scheduler.add(request(number, length))
    assert shape(step(scheduler)) == [(1, 3), (3, 5)], "the first, and the soonest read"
    for num_tokens in (6, 6, 6, 2):
        assert shape(step(scheduler)) == [(1, 1), (3, 1), (2, num_tokens)]


def test_with_a_large_budget_each_prompt_is_sure_of_half_its_share() -> None:
    scheduler = make(num_blocks=400, chunk=300)
    for number, length in ((1, 400), (2, 400), (3, 20)):
        scheduler.add(request(number, length, limit=500))
    assert shape(step(scheduler)) == [(1, 230), (2, 50), (3, 20)]


def test_a_step_reads_fewer_prompt_tokens_while_others_write() -> None:
    scheduler = make(num_blocks=64, chunk=16)
    scheduler.add(request(1, 3))
    assert shape(step(scheduler)) == [(1, 3)]
    scheduler.add(request(2, 20))
    plan = scheduler.plan(prompt_tokens=4)
    assert shape(plan) == [(1, 1), (2, 4)]
    scheduler.commit(plan)
    scheduler.end(scheduler.running[0])
    assert shape(scheduler.plan()) == [(2, 16)]


def test_who_is_less_important_than_a_prompt_may_be_held_up() -> None:
    scheduler = make(num_blocks=64, chunk=16)
    writer = request(1, 3)
    scheduler.add(writer)
    step(scheduler)
    assert scheduler.load() == Load(1, 0, 0)
    front = request(2, 20)
    front.priority = FRONT
    scheduler.add(front)
    assert scheduler.load() == Load(0, 1, 1)
    scheduler.set_priority(writer, FRONT)
    assert scheduler.load() == Load(1, 1, 1)


def test_everybody_writes_where_a_step_has_not_room_for_all() -> None:
    scheduler = make(num_blocks=64, chunk=2)
    for number in range(5):
        scheduler.add(request(number, 1))
    for _ in range(10):
        step(scheduler)
    before = {one.request_id: one.num_new for one in scheduler.running}
    assert len(before) == 5
    for _ in range(40):
        step(scheduler)
    assert {one.num_new - before[one.request_id] for one in scheduler.running} == {16}


def test_blocks_are_taken_only_when_a_token_needs_one() -> None:
    scheduler = make(block_tokens=4)
    sequence = request(1, 4)
    scheduler.add(sequence)
    step(scheduler)
    assert sequence.num_held == 1
    step(scheduler)
    assert sequence.num_held == 2
    for _ in range(3):
        step(scheduler)
    assert sequence.num_held == 2


def test_the_last_arrival_is_paused_and_comes_back() -> None:
    scheduler = make(num_blocks=10, block_tokens=2, chunk=16)
    first, second = request(1, 3, limit=14), request(2, 1, limit=14)
    scheduler.add(first)
    scheduler.add(second)
    paused: list[int] = []
    for _ in range(14):
        paused += [s.request_id for s in step(scheduler).paused]
        if first.num_tokens >= 14 and first.phase is Phase.RUNNING:
            scheduler.end(first)
    assert paused == [2]
    assert second.pause is Pause.MEMORY
    assert second.phase is Phase.RUNNING
    assert second.num_preemptions == 1
    assert first.num_preemptions == 0


def test_nobody_comes_in_to_take_what_the_running_ones_want_soon() -> None:
    """Four blocks each, but no more than a sequence can still want at all."""
    scheduler = make(num_blocks=9, block_tokens=2, chunk=64)
    long, short, last = request(1, 2, limit=100), request(2, 2, limit=4), request(3, 6, limit=6)
    for sequence in (long, short, last):
        scheduler.add(sequence)
    step(scheduler)  # long has 1 and wants 4 soon, short has 1 and wants 1: too few for 3
    assert [s.phase for s in (long, short, last)] == [
        Phase.RUNNING,
        Phase.RUNNING,
        Phase.WAITING,
    ]
    scheduler.end(short)
    step(scheduler)  # long has 2 and wants 4 soon: 3 are left
    assert last.phase is Phase.RUNNING


def test_equals_take_turns_where_the_pool_holds_only_some() -> None:
    """Six chats, a pool for two: after a while nobody is far behind, and all come to their end."""
    pool = BlockPool(12, 4)
    scheduler = Scheduler(pool, 64, 64, root_digest("t"), turn_tokens=8)
    chats = [request(number, 4, limit=44) for number in range(6)]
    for chat in chats:
        scheduler.add(chat)
    for _ in range(75):
        step(scheduler)
    written = [chat.num_new for chat in chats]
    assert min(written) >= sum(written) / 6 / 2, written
    assert sum(chat.num_preemptions for chat in chats) < 30
    assert {chat.pause for chat in chats if chat.phase is Phase.PAUSED} == {Pause.TURN}
    for _ in range(400):
        step(scheduler)
        for chat in [c for c in scheduler.running if c.num_tokens >= c.limit_tokens]:
            scheduler.end(chat)
    assert scheduler.is_idle


def test_a_newcomer_does_not_starve_who_had_many_turns() -> None:
    scheduler = Scheduler(BlockPool(6, 4), 64, 64, root_digest("t"), turn_tokens=4)
    old = request(1, 2, limit=24)
    live = [old]
    scheduler.add(old)
    for number in range(2, 100):
        live.append(request(number, 2, limit=8))
        scheduler.add(live[-1])
        for _ in range(8):
            step(scheduler)
            for one in [one for one in live if one.num_tokens >= one.limit_tokens]:
                scheduler.end(one)
                live.remove(one)
        if old.phase is Phase.ENDED:
            break
    assert old.phase is Phase.ENDED, old
    assert number < 20


def test_nobody_takes_turns_in_the_background() -> None:
    scheduler = Scheduler(BlockPool(10, 4), 64, 64, root_digest("t"), turn_tokens=8)
    chats = [request(number, 4, limit=40) for number in range(4)]
    for chat in chats:
        chat.priority = BACKGROUND
        scheduler.add(chat)
    for _ in range(30):
        step(scheduler)
    assert [chat.num_new for chat in chats][2:] == [0, 0]


def test_who_is_more_important_is_let_in_at_once() -> None:
    scheduler = make(num_blocks=16, block_tokens=4, chunk=64)
    slow = [request(number, 4, limit=40) for number in range(2)]
    for chat in slow:
        scheduler.add(chat)
    for _ in range(12):
        step(scheduler)
    front = request(9, 20, limit=30)
    front.priority = FRONT
    scheduler.add(front)
    plan = step(scheduler)
    assert front.phase is Phase.RUNNING
    assert plan.paused == [slow[1]]
    assert slow[1].pause is Pause.PRIORITY
    assert slow[1].num_turns == 0, "it goes on in its old place"


def test_ended_sequences_give_back_every_block_in_every_phase() -> None:
    scheduler = make(num_blocks=16, block_tokens=2, chunk=4)
    running, reading, waiting = request(1, 2), request(2, 9), request(3, 9)
    for sequence in (running, reading, waiting):
        scheduler.add(sequence)
    step(scheduler)
    assert [s.phase for s in (running, reading, waiting)] == [
        Phase.RUNNING,
        Phase.RUNNING,
        Phase.WAITING,
    ]
    for sequence in (waiting, running, reading):
        scheduler.end(sequence)
        scheduler.check()
    assert scheduler.is_idle
    assert scheduler.pool.num_free == 16


def test_a_prompt_that_is_wholly_cached_still_computes_one_token_in_its_own_block() -> None:
    for length in (4, 8, 9, 12):
        scheduler = make(block_tokens=4, chunk=64)
        first = request(1, length, cache=True)
        scheduler.add(first)
        for _ in range(6):
            step(scheduler)
        scheduler.end(first)
        again = request(1, length, cache=True)
        scheduler.add(again)
        plan = scheduler.plan()
        item = plan.items[0]
        assert item.num_tokens == 1
        assert again.num_cached == length - 1
        assert len(plan.copies) == int((length - 1) % 4 > 0)
        assert all(scheduler.pool.num_owners(b) == 1 for b in again.held_blocks())
        scheduler.commit(plan)
        scheduler.check()


def test_running_sequences_share_a_common_prefix() -> None:
    scheduler = make(block_tokens=4, chunk=64)
    for number in (1, 2):
        sequence = Sequence(number, list(range(10)), 10, 64, SamplingParams(), number)
        scheduler.add(sequence)
        step(scheduler)
    assert scheduler.pool.num_shared == 2
    written, held = scheduler.slots()
    assert held == scheduler.pool.num_used * 4
    # two shared full blocks, 3 tokens of the first (one was sampled and read), 2 of the second
    assert written == 8 + 3 + 2


@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_always_ends_and_keeps_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    block_tokens = rng.choice([1, 2, 4, 16])
    scheduler = make(
        rng.choice([4, 7, 32]), block_tokens, rng.choice([1, 5, 64]), rng.choice([2, 9])
    )
    room = scheduler.pool.num_blocks * block_tokens
    live: list[Sequence] = []
    ended = 0
    for number in range(2500):
        if number < 2000 and rng.random() < 0.3:
            limit = rng.randint(1, room)
            sequence = request(rng.randrange(4), rng.randint(1, limit), limit, rng.random() < 0.7)
            scheduler.add(sequence)
            live.append(sequence)
        if live and rng.random() < 0.05:
            scheduler.end(live.pop(rng.randrange(len(live))))
        step(scheduler)
        for sequence in [s for s in live if s.num_tokens > s.limit_tokens]:
            scheduler.end(sequence)
            live.remove(sequence)
            ended += 1
    rounds = 0
    while live:
        plan = step(scheduler)
        assert plan.items, "work is waiting, but nothing goes on"
        for sequence in [s for s in live if s.num_tokens > s.limit_tokens]:
            scheduler.end(sequence)
            live.remove(sequence)
        rounds += 1
        assert rounds < 400_000
    assert ended > 0
    assert scheduler.is_idle
    assert scheduler.pool.num_available == scheduler.pool.num_blocks
