"""What a request does, in words: short ones, sentences, and where a prompt differs."""

from __future__ import annotations

import pytest

from app.state.words import (
    difference_words,
    duration,
    ordinal,
    paused_sentence,
    reused_words,
    short_words,
    state_sentence,
)
from engine.messages import Divergence, RequestState, StateChanged

WAITING, READING, RUNNING, PAUSED = (
    RequestState.WAITING, RequestState.READING, RequestState.RUNNING, RequestState.PAUSED,
)  # fmt: skip


@pytest.mark.parametrize(
    ("event", "short", "sentence"),
    [
        (StateChanged(1, WAITING), "", "Waiting"),
        (StateChanged(1, WAITING, 1), "Next in line", "Waiting, next in line"),
        (StateChanged(1, WAITING, 3), "3rd in line", "Waiting, 3rd in line"),
        (StateChanged(1, READING, done_tokens=1024, total_tokens=4000),
         "Reading 25 %", "Reading the prompt: 1,024 of 4,000 tokens"),
        (StateChanged(1, READING), "", ""),
        (StateChanged(1, RUNNING), "", ""),
        (StateChanged(1, PAUSED, reason="The pool is full."), "Paused", "The pool is full."),
    ],
)  # fmt: skip
def test_a_state_in_words(event, short, sentence) -> None:
    assert (short_words(event), state_sentence(event)) == (short, sentence)


def test_what_is_read_after_a_pause_is_not_called_a_prompt() -> None:
    event = StateChanged(1, READING, done_tokens=16, total_tokens=90)
    assert state_sentence(event, has_text=True) == "Reading the chat again: 16 of 90 tokens"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("The pool is full; it goes on when there is room.",
         "Paused 12 s: the pool is full; it goes on when there is room."),
        ("GPU memory ran out.", "Paused 12 s: GPU memory ran out."),
        ("", "Paused 12 s"),
    ],
)  # fmt: skip
def test_a_pause_says_how_long_and_why(reason, words) -> None:
    assert paused_sentence(reason, 12.9) == words


def test_durations_and_places() -> None:
    assert [duration(s) for s in (-3, 0.9, 59.9, 60, 125, 3600, 4199)] == [
        "0 s", "0 s", "59 s", "1 min 0 s", "2 min 5 s", "1 h 0 min", "1 h 9 min",
    ]  # fmt: skip
    places = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111]
    assert [ordinal(n) for n in places] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th",
    ]  # fmt: skip


def test_reused_tokens() -> None:
    assert reused_words(68, 69) == "68 of 69 prompt tokens reused"
    assert reused_words(0, 1) == "0 of 1 prompt token reused"
    assert reused_words(1024, 4000) == "1,024 of 4,000 prompt tokens reused"


ROLES = ("system", "user", "assistant", "user")


@pytest.mark.parametrize(
    ("text", "message", "words"),
    [
        (" Tuesday", 0, "“Tuesday” in message 1 (system)"),
        ("Hi", 1, "“Hi” in message 2 (yours)"),
        ("Hi", 2, "“Hi” in message 3 (reply)"),
        ("Hi", 9, "“Hi” in message 10"),
        ("Hi", None, "“Hi” in the chat template"),
        ("\n\n", None, "a line break in the chat template"),
        ("  ", 1, "a space in message 2 (yours)"),
        ("", 1, "a control token in message 2 (yours)"),
        ("\ufffd", 1, "a part of a character in message 2 (yours)"),
        ("\x07", 1, "an invisible character in message 2 (yours)"),
        ("<b>", 1, "“<b>” in message 2 (yours)"),
        ("x" * 90, 1, f"“{'x' * 40}…” in message 2 (yours)"),
        ("a\tb", 1, "“a b” in message 2 (yours)"),
    ],
)
def test_where_a_prompt_differs(text, message, words) -> None:
    found = difference_words(Divergence(5, 17, text, message), ROLES)
    assert found == f"first difference: {words}"
