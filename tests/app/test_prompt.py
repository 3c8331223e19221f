"""What the model is asked, and titles."""

from __future__ import annotations

import pytest

from app.prompt import TITLE_CHARS, messages_for, title_of
from app.records import ReplyRecord, SessionRecord, TurnRecord


def turn(user, text=None, state="complete"):
    replies = () if text is None else (ReplyRecord("r", text, state),)
    return TurnRecord("t", user, 0, replies)


def asked(*turns, system=""):
    session = SessionRecord("s", "", 0, 0, system, turns=turns)
    return [(one.role[0], one.content) for one in messages_for(session, len(turns) - 1)]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([turn("q")], [("u", "q")]),
        ([turn("a", "A"), turn("q")], [("u", "a"), ("a", "A"), ("u", "q")]),
        ([turn("a", "", "failed"), turn("q")], [("u", "q")]),
        ([turn("a", "half", "failed"), turn("q")], [("u", "a"), ("a", "half"), ("u", "q")]),
        ([turn("a", "", "complete"), turn("q")], [("u", "a\n\nq")]),
        ([turn("a", " \n", "unfinished"), turn("b", "B"), turn("q")],
         [("u", "a\n\nb"), ("a", "B"), ("u", "q")]),
        ([turn("a"), turn("q")], [("u", "a\n\nq")]),
    ],
)  # fmt: skip
def test_roles_alternate_whatever_happened_before(turns, expected):
    assert asked(*turns) == expected
    assert asked(*turns, system="S") == [("s", "S"), *expected]


def test_the_chosen_version_is_the_one_the_model_sees():
    replies = (ReplyRecord("1", "first", "complete"), ReplyRecord("2", "second", "complete"))
    chosen = TurnRecord("t", "a", 0, replies, chosen=0)
    assert asked(chosen, turn("q"))[1] == ("a", "first")


def test_regenerating_an_early_turn_sees_nothing_later():
    session = SessionRecord("s", "", 0, 0, turns=(turn("a", "A"), turn("b", "B")))
    assert [one.content for one in messages_for(session, 0)] == ["a"]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Hello", "Hello"),
        ("\n\n  Two\twords \nsecond line", "Two words"),
        ("   ", "New chat"),
        ("word " * 40, "word " * 8 + "word…"),
        ("x" * 400, "x" * (TITLE_CHARS - 1) + "…"),
    ],
)
def test_title_is_the_first_line_cut_at_a_word(text, title):
    assert title_of(text) == title
    assert len(title_of(text)) <= TITLE_CHARS
