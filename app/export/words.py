"""Words that all transcripts share: dates, who speaks, and the line under a reply."""

from __future__ import annotations

from datetime import UTC, datetime

from app.records import ReplyRecord, SessionRecord

ENDINGS = {
    "length": "ended at the token limit",
    "cancelled": "stopped by you",
}


def date_words(unix_ms: int) -> str:
    """Date and time in UTC, so that the same chat gives the same file everywhere."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # from an import: year 0 or 60,000
        return ""


def about_words(session: SessionRecord) -> str:
    num_turns = len(session.turns)
    parts = [date_words(session.created_ms), f"{num_turns} message{'s' if num_turns != 1 else ''}"]
    models = dict.fromkeys(
        turn.reply.model for turn in session.turns if turn.reply and turn.reply.model
    )
    return " · ".join([*filter(None, parts), *models])


def reply_words(reply: ReplyRecord) -> str:
    """The small line under a reply: tokens, speed, and how it ended when not by itself."""
    parts = []
    if reply.new_tokens:
        parts.append(f"{reply.new_tokens:,} token{'s' if reply.new_tokens != 1 else ''}")
    if reply.tokens_per_s:
        parts.append(f"{reply.tokens_per_s:.1f} tok/s")
    if reply.state in ("unfinished", "streaming"):
        parts.append("unfinished")
    elif reply.state == "failed":
        parts.append(reply.error or "failed")
    elif reply.finish_reason in ENDINGS:
        parts.append(ENDINGS[reply.finish_reason])
    return " · ".join(parts)
