"""A chat as Markdown: messages word for word, their code fences as they were written."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt

from app.export.words import about_words, reply_words
from app.prompt import clean
from app.records import SessionRecord

_CAN_SWALLOW = re.compile("```|~~~|<")
_HTML_ENDS = ("-->", "?>", ">", "]]>", "</script>", "</style>", "</pre>", "</textarea>")
_BLOCKS = MarkdownIt("commonmark", {"html": True})  # what other programs make of our file
_BLOCKS.core.ruler.enableOnly(["normalize", "block"])


def to_markdown(session: SessionRecord) -> bytes:
    parts = [f"# {one_line(session.title)}", f"*{one_line(about_words(session))}*"]
    if session.system_prompt:
        parts += ["## System prompt", close_block(session.system_prompt)]
    for turn in session.turns:
        parts += ["## You", close_block(turn.user_text)]
        reply = turn.reply
        if reply is None:
            continue
        parts += [f"## {one_line(reply.model) or 'Reply'}", close_block(reply.text)]
        if words := reply_words(reply):
            parts.append(f"*{one_line(words)}*")
    return clean("\n\n".join(parts) + "\n").encode()


def one_line(text: str) -> str:
    """Text for a heading: no line ends."""
    return " ".join(text.split())


def close_block(text: str) -> str:
    """The same text; a code fence left open (a reply that was stopped), or a block of HTML that
    goes on, gets its end, so that it does not swallow what follows.

    A fence left open within a list or a quotation ends with it, and is left alone.
    """
    if not _CAN_SWALLOW.search(text) or not _swallows(text):
        return text
    last = next(token for token in reversed(_BLOCKS.parse(text)) if token.level == 0)
    ends = [last.markup] if last.type == "fence" else _html_ends(last.content.lower())
    line_end = "" if text.endswith(("\n", "\r")) else "\n"
    closed = (f"{text}{line_end}{end}" for end in ends)
    return next((one for one in closed if not _swallows(one)), text)


def _html_ends(html: str) -> list[str]:
    """What may end a block of HTML, the end tags of its own tags before others."""
    return sorted(_HTML_ENDS, key=lambda end: f"<{end.strip('</>')}" not in html)


def _swallows(text: str) -> bool:
    """Whether a heading written after `text` would not be one."""
    tokens = _BLOCKS.parse(f"{text}\n\n# end")
    return tokens[-1].type != "heading_close" or tokens[-1].level != 0
