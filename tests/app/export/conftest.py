"""What tests of exports share: a way to write a chat down, and a strict reader of sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.records import ReplyRecord, SessionRecord, TurnRecord


@pytest.fixture
def chat() -> Callable[..., SessionRecord]:
    """chat(("question", "answer"), ("question", None), title=…, system_prompt=…) -> a record."""

    def make(*pairs: tuple[str, str | None], **fields: Any) -> SessionRecord:
        turns = []
        for number, (question, answer) in enumerate(pairs):
            replies = ()
            if answer is not None:
                replies = (ReplyRecord(f"r{number}", answer, "complete", "stop", model="Small-1B"),)
            turns.append(TurnRecord(f"t{number}", question, 1_760_000_000_000, replies))
        values = {"title": "A chat", "created_ms": 1_760_000_000_000, "updated_ms": 1} | fields
        return SessionRecord("s1", turns=tuple(turns), **values)

    return make


@pytest.fixture
def is_one_sentence() -> Callable[[str], bool]:
    """Whether a text is what a person may be shown: one line, with an end, without a traceback."""

    def check(text: str) -> bool:
        words = ("Traceback", "Error:", "Error(", "Exception", "recursion")
        return (
            text.replace("\u200d", "").isprintable()
            and text.endswith(".")
            and not text.endswith("..")
            and len(text) < 600
            and not any(word in text for word in words)
        )

    return check
