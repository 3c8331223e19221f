"""Turns: long while nobody is hurried, short enough for ten seconds, never all for their price."""

from __future__ import annotations

import pytest

from engine.messages import BACKGROUND, FRONT, NORMAL, SamplingParams
from engine.sequence import Sequence
from engine.turns import LEAST_TOKENS, TURN_TOKENS, Turns


def chat(written: int, context: int = 100, priority: int = NORMAL) -> Sequence:
    one = Sequence(1, [0] * (context + 1), context, 10_000, SamplingParams(), priority=priority)
    one.num_computed = context
    one.start_tokens = one.num_tokens - written
    return one


def length(turns: Turns, context: int, num_running: int, num_all: int) -> int:
    """Tokens after which an equal gets its place."""
    waiting = chat(0)
    return next(
        n for n in range(10_000) if turns.gives_way(chat(n, context), waiting, num_running, num_all)
    )


def test_before_anything_is_measured_a_turn_is_worth_its_pause():
    assert length(Turns(), 50, 3, 12) == TURN_TOKENS
    assert length(Turns(), 1000, 3, 12) == 500


def test_everybody_is_served_once_in_a_cycle():
    turns = Turns()
    turns.cycle_steps = 160
    assert length(turns, 400, 3, 12) == 40  # a quarter runs at once, so a quarter of the cycle
    assert length(turns, 400, 6, 12) == 80
    assert length(turns, 50, 11, 12) == TURN_TOKENS  # no hurry: as without


def test_a_turn_is_never_shorter_than_what_it_costs():
    turns = Turns()
    turns.cycle_steps = 8
    assert length(turns, 100, 1, 12) == LEAST_TOKENS
    assert length(turns, 3_200, 1, 12) == 200


@pytest.mark.parametrize("written", [0, 1_000])
def test_only_equals_take_turns(written):
    turns = Turns()
    assert turns.gives_way(chat(written, priority=BACKGROUND), chat(0), 1, 2)
    assert not turns.gives_way(chat(written, priority=FRONT), chat(0), 1, 2)
    background = chat(0, priority=BACKGROUND)
    assert not turns.gives_way(chat(written, priority=BACKGROUND), background, 1, 2)
