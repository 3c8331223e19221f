"""Pace: prompts are read in pieces that fit between two tokens, whatever a token costs."""

from __future__ import annotations

import pytest

from engine.pace import FIRST_TOKENS, SLOWDOWN, Pace


def read(pace: Pace, num_tokens: int, cost_ms, decoding: int = 1, normal_ms: float = 20.0):
    """Steps until a prompt is read; `cost_ms(tokens, done)`. The length of each step."""
    done, steps = 0, []
    while done < num_tokens:
        piece = pace.prompt_tokens(decoding, 1)
        assert piece is not None
        step_ms = normal_ms + (cost_ms(piece, done) if piece else 0)
        pace.record(decoding, piece, step_ms)
        steps.append(step_ms)
        done += piece
    return steps


def test_nobody_writes_so_nobody_waits():
    assert Pace().prompt_tokens(0, 3) is None
    assert Pace().prompt_tokens(3, 0) is None


@pytest.mark.parametrize("per_token_ms", [0.01, 0.5, 3.0])
def test_a_step_is_never_three_times_as_long(per_token_ms):
    steps = read(Pace(), 4000, lambda tokens, done: tokens * per_token_ms)
    first_guess = 20 + FIRST_TOKENS * per_token_ms
    assert max(steps) < max(3 * 20, first_guess + 1e-6)
    used = sorted(steps)[len(steps) // 2]
    assert used > (SLOWDOWN - 0.6) * 20 or per_token_ms < 0.1, "and the time is used"


def test_it_follows_a_context_that_makes_tokens_dearer():
    def cost(tokens: int, done: int) -> float:
        return tokens * (0.4 + done / 500)

    assert max(read(Pace(), 4000, cost)) < 3 * 20


def test_a_step_alone_is_measured_for_each_number_of_chats_and_again():
    pace = Pace()
    assert pace.prompt_tokens(1, 1) == 0
    pace.record(1, 0, 20.0)
    assert pace.prompt_tokens(1, 1) == FIRST_TOKENS
    assert pace.prompt_tokens(8, 1) == 0
    pace.record(8, 0, 40.0)
    steps = read(pace, 100_000, lambda tokens, done: tokens * 0.5, decoding=8, normal_ms=40.0)
    assert steps.count(40.0) > 3


def test_prompts_never_stand_still_for_a_measurement_that_does_not_come():
    pace = Pace()
    assert [pace.prompt_tokens(3, 1) for _ in range(4)] == [0, FIRST_TOKENS, 0, FIRST_TOKENS]


def test_a_piece_costs_something_by_itself_too():
    """What came before a piece is read once for it: the whole step still stays below its limit."""

    def cost(tokens: int, done: int) -> float:
        return 8 + 0.5 * tokens

    steps = read(Pace(), 4000, cost)
    assert max(steps) < 3 * 20
    # Twelve of the twenty milliseconds left are worth 24 tokens, not the 13 of a mere proportion.
    assert len(steps) < 4000 / 20


def test_many_who_wait_for_their_first_token_may_take_more():
    pace = Pace()
    pace.record(2, 0, 20.0)
    for tokens in (16, 30):
        pace.record(2, tokens, 20.0 + tokens)  # a millisecond each
    few, many = pace.prompt_tokens(2, 1), pace.prompt_tokens(2, 20)
    assert few <= int((SLOWDOWN - 1) * 20)
    assert many > 8 * few


def test_one_disturbed_step_is_forgotten():
    pace = Pace()
    pace.record(1, 0, 20.0)
    for tokens in (16, 12, 16, 12, 16):
        pace.record(1, tokens, 20.0 + tokens)
    before = pace.prompt_tokens(1, 1)
    pace.record(1, 16, 500.0)
    assert pace.prompt_tokens(1, 1) < before
    for _ in range(24):
        piece = pace.prompt_tokens(1, 1)
        pace.record(1, piece, 20.0 + piece)
    pieces = [pace.prompt_tokens(1, 1) for _ in range(2)]
    assert max(pieces) > 0.8 * before
