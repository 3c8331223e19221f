"""OwnerNumbers: lowest free number, kept while blocks carry it."""

from __future__ import annotations

import random

import numpy as np

from app.owners import OwnerNumbers
from engine.messages import NO_OWNER, BlockState, PoolSnapshot


def snapshot(*blocks: tuple[BlockState, int, int]) -> PoolSnapshot:
    """Blocks as (state, owner, unfilled)."""
    states = bytes(state for state, _, _ in blocks)
    owners = np.array([owner for _, owner, _ in blocks], np.uint16).tobytes()
    unfilled = bytes(unfilled for _, _, unfilled in blocks)
    return PoolSnapshot(len(blocks), 16, 1024, states, owners, unfilled, 0, 0.0)


FREE = (BlockState.FREE, NO_OWNER, 16)


def cached(owner):
    return (BlockState.CACHED, owner, 0)


def active(owner, unfilled=0):
    return (BlockState.ACTIVE, owner, unfilled)


def test_the_lowest_number_that_nobody_has():
    numbers = OwnerNumbers()
    assert [numbers.take(name) for name in "abca"] == [0, 1, 2, 0]
    numbers.see(snapshot(active(0), cached(2), FREE), frozenset("a"))
    assert numbers.number("b") is None  # no block carries it
    assert numbers.number("c") == 2
    assert numbers.take("d") == 1
    assert numbers.take("b") == 3


def test_a_busy_chat_keeps_its_number_before_it_has_blocks():
    numbers = OwnerNumbers()
    numbers.take("a")
    numbers.see(snapshot(FREE), frozenset("a"))
    assert numbers.number("a") == 0
    numbers.see(snapshot(FREE), frozenset())
    assert numbers.number("a") is None


def test_a_number_of_a_deleted_chat_waits_until_no_block_carries_it():
    numbers = OwnerNumbers()
    numbers.take("a")
    numbers.see(snapshot(cached(0)), frozenset())
    numbers.release("a")
    assert numbers.take("b") == 1
    numbers.see(snapshot(FREE), frozenset("b"))
    assert numbers.take("c") == 0


def test_numbers_go_on_beyond_64_and_stay_different():
    numbers = OwnerNumbers()
    assert [numbers.take(str(i)) for i in range(70)] == list(range(70))


def test_fill_is_that_of_the_block_being_written():
    numbers = OwnerNumbers()
    for name in "abc":
        numbers.take(name)
    numbers.see(snapshot(active(0), active(0, 5), active(1), cached(2)), frozenset("abc"))
    assert [numbers.fill(name, 16) for name in "abcd"] == [11, 16, 16, 0]
    assert [numbers.has_blocks(name) for name in "abcd"] == [True, True, True, False]


def test_no_two_chats_ever_have_one_number_in_2000_random_steps():
    random.seed(7)
    numbers = OwnerNumbers()
    carried: set[int] = set()
    seen: set[int] = set()
    for _ in range(2000):
        name = random.choice("abcdefgh")
        match random.choice(["take", "end", "see", "release"]):
            case "take":
                fresh = numbers.number(name) is None
                number = numbers.take(name)
                assert not (fresh and number in seen)
                carried.add(number)
            case "end":
                carried.discard(numbers.number(name) or 0)
            case "release":
                numbers.release(name)
            case "see":
                seen = set(carried)
                numbers.see(snapshot(*(cached(one) for one in carried)), frozenset("ab"))
        held = [numbers.number(one) for one in "abcdefgh"]
        held = [one for one in held if one is not None]
        assert len(held) == len(set(held))
        if held:
            assert max(held) < 8 + len(carried)
