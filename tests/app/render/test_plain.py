"""Text on its way into Qt, and pieces of long text."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QTextLayout

from app.render.plain import for_qt, letters_words, pieces


@pytest.mark.parametrize("text", ["\ufffehello", "\uffffx", "a\ufffeb", "\ud800tail"])
def test_unsafe_characters_are_replaced_and_the_rest_arrives(qapp, text):
    safe = for_qt(text)
    assert len(safe) == len(text)
    assert QTextLayout(safe).text() == safe
    rest = [c for c in text if c.isascii()]
    assert [c for c in safe if c.isascii()] == rest


def test_a_byte_order_mark_at_the_start_is_dropped():
    assert for_qt("\ufeffHello 😀") == "Hello 😀"


@pytest.mark.parametrize("text", ["", "short", "a" * 10_001, "word " * 3000, "line\n" * 5000])
def test_pieces_cover_the_text_and_are_short(text):
    spans = pieces(text, 1000)
    assert "".join(text[start:end] for start, end in spans) == text
    assert max(end - start for start, end in spans) <= 1000


def test_pieces_end_after_a_space_where_there_is_one():
    spans = pieces("word " * 3000, 1000)
    assert all(end % 5 == 0 for _, end in spans)


def test_sizes_in_words():
    assert [letters_words(n) for n in (12_000, 1_000_000, 1_550_000)] == [
        "12 kB",
        "1.0 MB",
        "1.6 MB",
    ]
