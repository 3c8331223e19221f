"""A chat as Markdown: messages word for word, their code fences as they were written."""

from __future__ import annotations

import re

from app.export.words import about_words, reply_words
from app.records import SessionRecord

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")


def to_markdown(session: SessionRecord) -> bytes:
    parts = [f"# {one_line(session.title)}", f"*{about_words(session)}*"]
    if session.system_prompt:
        parts += ["## System prompt", close_fence(session.system_prompt)]
    for turn in session.turns:
        parts += ["## You", close_fence(turn.user_text)]
        reply = turn.reply
        if reply is None:
            continue
        parts += [f"## {one_line(reply.model) or 'Reply'}", close_fence(reply.text)]
        if words := reply_words(reply):
            parts.append(f"*{one_line(words)}*")
    return ("\n\n".join(parts) + "\n").encode("utf-8", "replace")


def one_line(text: str) -> str:
    """Text for a heading: no line ends."""
    return " ".join(text.split())


def close_fence(text: str) -> str:
    """The same text; a code fence left open (a reply that was stopped) gets its end, so that it
    does not swallow what follows."""
    fence = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        if match is None:
            continue
        marks, rest = match[1], match[2]
        if not fence:
            if marks[0] == "~" or "`" not in rest:
                fence = marks
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not rest.strip():
            fence = ""
    if not fence:
        return text
    return text + ("" if text.endswith("\n") else "\n") + fence
