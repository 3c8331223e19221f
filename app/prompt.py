"""What a model is asked: messages of a chat for one reply, and the title of a chat. No Qt."""

from __future__ import annotations

import re

from app.records import ReplyRecord, Sampling, SessionRecord
from engine.messages import ChatMessage, SamplingParams

TITLE_CHARS = 48
NEW_TITLE = "New chat"
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Text that can be written as UTF-8: lone halves of surrogate pairs become U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def messages_for(session: SessionRecord, turn_index: int) -> tuple[ChatMessage, ...]:
    """System prompt, the turns before with their chosen replies, and the user's new text.

    A turn whose reply failed without a word is left out: it may have failed because of its own
    text. A reply stopped before its first word leaves its user text standing, joined with the
    next one, because many chat templates refuse two user messages in a row.
    """
    messages: list[ChatMessage] = []
    if session.system_prompt.strip():
        messages.append(ChatMessage("system", session.system_prompt))
    pending: list[str] = []
    for turn in session.turns[:turn_index]:
        reply = turn.reply
        if reply is None or not reply.text.strip():
            if reply is None or reply.state != "failed":
                pending.append(turn.user_text)
            continue
        messages.append(ChatMessage("user", "\n\n".join([*pending, turn.user_text])))
        messages.append(ChatMessage("assistant", reply.text))
        pending.clear()
    last = session.turns[turn_index].user_text
    messages.append(ChatMessage("user", "\n\n".join([*pending, last])))
    return tuple(messages)


def params_for(sampling: Sampling, reply: ReplyRecord) -> SamplingParams:
    """Sampling of one reply, with the seed that the reply records.

    Raises:
        SamplingError: a setting is out of range.
    """
    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=reply.seed,
        max_tokens=sampling.max_tokens,
    )


def title_of(text: str) -> str:
    """A title from a first message: its first line, cut at a word."""
    line = next((" ".join(part.split()) for part in text.splitlines() if part.strip()), "")
    if len(line) <= TITLE_CHARS:
        return line or NEW_TITLE
    cut = line.rfind(" ", TITLE_CHARS // 2, TITLE_CHARS)
    return line[: cut if cut > 0 else TITLE_CHARS - 1].rstrip(" ,;:.-") + "…"
