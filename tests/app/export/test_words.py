"""Words around a transcript: the same everywhere, and never an error over an odd number."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.export.words import about_words, date_words, reply_words
from app.records import ReplyRecord


@pytest.mark.parametrize(
    ("unix_ms", "words"),
    [
        (0, "1970-01-01 00:00 UTC"),
        (1_760_000_000_000, "2025-10-09 08:53 UTC"),
        (2**63 - 1, ""),
        (-(2**63), ""),
        (253_402_300_800_000, ""),
    ],
)
def test_dates_are_in_utc_or_left_out(unix_ms: int, words: str) -> None:
    assert date_words(unix_ms) == words


def test_the_line_about_a_chat_names_each_model_once(chat) -> None:
    session = chat(("a", "b"), ("c", "d"), ("e", None))
    assert about_words(session) == "2025-10-09 08:53 UTC · 3 messages · Small-1B"
    other = replace(session.turns[1].replies[0], model="Large-9B")
    turns = (session.turns[0], replace(session.turns[1], replies=(other,)))
    words = about_words(replace(session, turns=turns))
    assert words == "2025-10-09 08:53 UTC · 2 messages · Small-1B · Large-9B"
    assert about_words(chat(("a", None))) == "2025-10-09 08:53 UTC · 1 message"


REPLY = ReplyRecord("r", "text", "complete")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"new_tokens": 1}, "1 token"),
        ({"new_tokens": 1234, "tokens_per_s": 9.96}, "1,234 tokens · 10.0 tok/s"),
        ({"finish_reason": "stop"}, ""),
        ({"finish_reason": "length"}, "ended at the token limit"),
        ({"finish_reason": "cancelled"}, "stopped by you"),
        ({"finish_reason": "of a later version"}, ""),
        ({"state": "unfinished", "finish_reason": "length"}, "unfinished"),
        ({"state": "streaming"}, "unfinished"),
        ({"state": "failed", "error": "No room."}, "No room."),
        ({"state": "failed"}, "failed"),
    ],
)
def test_the_line_under_a_reply(changes: dict[str, object], words: str) -> None:
    assert reply_words(replace(REPLY, **changes)) == words
