"""Running: one reply on its way, and what is kept of it when it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from app.records import ReplyRecord
from app.state.session import ReplyDetails, Session
from app.state.words import difference_words
from engine.messages import NORMAL, PrefixFound, Usage


@dataclass(slots=True, eq=False)
class Running:
    """One reply on its way. `request_id` is 0 until the engine has been asked."""

    session: Session
    turn_index: int
    reply_id: str
    request_id: int = 0
    is_held: bool = False  # waits for a model that is being loaded or fetched
    priority: int = NORMAL  # what the engine was told last
    roles: tuple[str, ...] = ()  # of the prompt's messages
    prefix: PrefixFound | None = None
    model: str = ""
    unsaved: list[str] = field(default_factory=list)
    num_saved_chars: int = 0
    num_tokens: int = 0
    first_s: float = 0.0

    @property
    def reply(self) -> ReplyRecord:
        turn = self.session.record.turns[self.turn_index]
        return next(reply for reply in turn.replies if reply.reply_id == self.reply_id)

    def tokens_per_s(self) -> float:
        seconds = time.monotonic() - self.first_s
        return (self.num_tokens - 1) / seconds if self.num_tokens > 1 and seconds > 0 else 0.0


def with_usage(reply: ReplyRecord, usage: Usage | None) -> ReplyRecord:
    if usage is None:
        return reply
    return replace(
        reply,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        new_tokens=usage.new_tokens,
        ttft_ms=usage.ttft_ms,
        tokens_per_s=usage.decode_tokens_per_s,
        num_blocks=usage.num_blocks,
        kv_bytes=usage.kv_bytes,
    )


def details_of(running: Running, usage: Usage | None) -> ReplyDetails:
    prefix = running.prefix
    divergence = prefix.divergence if prefix else None
    return ReplyDetails(
        reused_tokens=prefix.matched_tokens if prefix else None,
        first_difference=difference_words(divergence, running.roles) if divergence else "",
        waste_ratio=usage.waste_ratio if usage else 0.0,
    )
