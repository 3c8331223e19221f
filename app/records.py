"""A chat as it is stored: frozen records shared by history, state and export. No Qt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ReplyState = Literal["streaming", "complete", "unfinished", "failed"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A session's sampling settings, as the user set them."""

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ReplyRecord:
    """One version of a reply. `unfinished` = the app ended while it streamed."""

    reply_id: str
    text: str
    state: ReplyState
    finish_reason: str = ""  # stop, length, cancelled, error
    error: str = ""  # one sentence when failed
    model: str = ""
    created_ms: int = 0  # Unix time
    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0
    ttft_ms: float = 0.0
    tokens_per_s: float = 0.0
    num_blocks: int = 0
    kv_bytes: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A user message and its reply; Regenerate adds a version and keeps the others."""

    turn_id: str
    user_text: str
    created_ms: int
    replies: tuple[ReplyRecord, ...] = ()
    chosen: int = 0  # index into replies

    @property
    def reply(self) -> ReplyRecord | None:
        return self.replies[self.chosen] if self.replies else None


@dataclass(frozen=True, slots=True)
class SessionRecord:
    session_id: str
    title: str
    created_ms: int
    updated_ms: int
    system_prompt: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    turns: tuple[TurnRecord, ...] = ()
