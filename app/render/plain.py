"""Text on its way into Qt: cleaning, and pieces short enough to lay out. No Qt here."""

from __future__ import annotations

import re
from html import escape

# A chunk that starts with U+FFFE is taken for text in the other byte order on its way into Qt,
# and lone surrogates cannot be converted at all. Both become the replacement character.
_UNSAFE = re.compile("[\ufffe\uffff\ud800-\udfff\x00]")

PIECE_CHARS = 4000  # laying out one piece of this length takes a few milliseconds


def for_qt(text: str) -> str:
    """The same text with the few characters replaced that Qt would garble."""
    if text.startswith("\ufeff"):
        text = text[1:]
    return _UNSAFE.sub("\ufffd", text)


def pieces(text: str, limit: int = PIECE_CHARS) -> list[tuple[int, int]]:
    """Spans (start, end) that cover `text`, each at most `limit` long.

    A cut falls after a line end or a space when one stands in the last quarter of the piece.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > limit:
        end = start + limit
        window = start + limit - limit // 4
        cut = max(text.rfind("\n", window, end), text.rfind(" ", window, end))
        if cut > 0:
            end = cut + 1
        spans.append((start, end))
        start = end
    spans.append((start, len(text)))
    return spans


def tool_tip(text: str) -> str:
    """The same words for a tool tip: there Qt takes tags for HTML, and loads images they name."""
    lines = escape(text).replace("\n", "<br>")
    return f"<span>{lines}</span>" if "<" in text else text


def letters_words(num_bytes: int) -> str:
    """Size of a text: "12 kB", "1.0 MB"."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 995_000 else f"{num_bytes / 1e3:.0f} kB"
