"""Message starts: where in a rendered prompt each message's content begins. Standard library only.

A template is a program, so its output does not say what came from where. Two ways to find out:
render once more with a mark before each content, and believe the marks if the text is otherwise
the same; or look for the contents in order, which a content like "user" can lead astray.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.messages import ChatMessage

_FIRST_MARK = 0x100000  # private characters of the last plane, 65,534 of them
_LAST_MARK = 0x10FFFD
_SPACES = re.compile(r"\s*")

UNKNOWN = -1


def free_marks(texts: Iterable[str], count: int) -> str:
    """Characters that are in none of the texts, up to `count`, fewer if there are not so many."""
    used = set().union(*texts)
    free = (chr(code) for code in range(_FIRST_MARK, _LAST_MARK + 1) if chr(code) not in used)
    return "".join(mark for mark, _ in zip(free, range(count), strict=False))


def with_marks(messages: Sequence[ChatMessage], marks: str) -> tuple[ChatMessage, ...]:
    """Each message with its mark before the first letter that no template strips."""
    return tuple(
        replace(message, content=_marked(message.content, mark))
        for message, mark in zip(messages, marks, strict=True)
    )


def _marked(content: str, mark: str) -> str:
    begin = _begin(content)
    return content[:begin] + mark + content[begin:] if begin < len(content) else content


def _begin(content: str) -> int:
    found = _SPACES.match(content)
    return found.end() if found else 0


def by_marks(marked: str, plain: str, marks: str) -> tuple[int, ...] | None:
    """Place in `plain` of each mark of `marked`; None where the marks changed more than themselves.

    A content that was rendered twice begins where it came first.
    """
    starts = dict.fromkeys(marks, UNKNOWN)
    parts, at, size = [], 0, 0
    for found in re.finditer(f"[{chr(_FIRST_MARK)}-{chr(_LAST_MARK)}]", marked):
        if found[0] not in starts:
            continue  # a private character of the text itself
        parts.append(marked[at : found.start()])
        size += len(parts[-1])
        at = found.end()
        if starts[found[0]] == UNKNOWN:
            starts[found[0]] = size
    parts.append(marked[at:])
    return tuple(starts.values()) if "".join(parts) == plain else None


def by_search(text: str, contents: Iterable[str]) -> tuple[int, ...]:
    """Place of each content, without the spaces around it, behind the one before."""
    starts, at = [], 0
    for content in contents:
        content = content.strip()
        found = text.find(content, at) if content else UNKNOWN
        starts.append(found)
        if found != UNKNOWN:
            at = found + len(content)
    return tuple(starts)
