"""Reply: one request on its way through the engine: its sequence, its text so far, its times."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from engine.messages import (
    Divergence,
    FinishReason,
    PrefixFound,
    RequestState,
    StateChanged,
    Usage,
)
from engine.sequence import Phase, Sequence
from engine.token_stream import TokenStream


@dataclass(slots=True, eq=False)
class Reply:
    """What the engine keeps per request besides its sequence. Times are monotonic seconds."""

    sequence: Sequence
    stream: TokenStream
    submitted_s: float
    message_starts: tuple[int, ...] = ()  # in the prompt's tokens, -1 = the template dropped it
    notes: tuple[str, ...] = ()  # what was changed for a strict chat template
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    last_state: StateChanged | None = field(default=None)
    has_said_prefix: bool = False
    paused_s: float = 0.0

    @property
    def request_id(self) -> int:
        return self.sequence.request_id

    def take(
        self, token_id: int, now_s: float, eos_ids: Collection[int]
    ) -> tuple[str, FinishReason | None]:
        """Add a sampled token. Returns the text that became certain, and why the reply ends, if it
        does: an end token or a stop string ("stop"), or no room for another token ("length").

        That no end token comes among the first `min_tokens` is the sampler's affair; here no stop
        string counts that ends among them.
        """
        sequence, params = self.sequence, self.sequence.params
        sequence.token_ids.append(token_id)
        self.first_token_s = self.first_token_s or now_s
        self.last_token_s = now_s
        if token_id in eos_ids and not params.ignore_eos:
            return self.stream.finish(), "stop"
        text = self.stream.push(token_id, may_stop=sequence.num_new > params.min_tokens)
        if self.stream.stopped:
            return text, "stop"
        most = params.max_tokens
        if sequence.num_tokens >= sequence.limit_tokens or (most and sequence.num_new >= most):
            return text + self.stream.finish(), "length"
        return text, None

    def state(self, place: int) -> StateChanged:
        """What the request is doing, for people. `place` in line counts from 1, 0 = not in line."""
        sequence = self.sequence
        if sequence.phase is Phase.PAUSED:
            self.paused_s = self.paused_s or time.monotonic()
            return StateChanged(
                self.request_id,
                RequestState.PAUSED,
                place=place,
                reason=sequence.pause.value,
                since_s=self.paused_s,
            )
        self.paused_s = 0.0
        if sequence.phase is Phase.WAITING:
            return StateChanged(self.request_id, RequestState.WAITING, place=place)
        if sequence.num_pending > 1 or sequence.num_new == 0:
            return StateChanged(
                self.request_id,
                RequestState.READING,
                done_tokens=sequence.num_computed,
                total_tokens=sequence.num_tokens,
            )
        return StateChanged(self.request_id, RequestState.RUNNING)

    def prefix(self, bytes_of: Callable[[int], bytes]) -> PrefixFound:
        """What the prefix cache had of the prompt, and where it stopped."""
        sequence = self.sequence
        index = sequence.diverged_at
        divergence = None
        if index is not None and index < sequence.num_prompt:
            token_id = sequence.token_ids[index]
            text = bytes_of(token_id).decode(errors="replace")
            divergence = Divergence(index, token_id, text, self._message_at(index))
        return PrefixFound(self.request_id, sequence.num_cached, sequence.num_prompt, divergence)

    def _message_at(self, index: int) -> int | None:
        """The message that a token of the prompt lies in, or behind whose text it stands."""
        before = [n for n, start in enumerate(self.message_starts) if 0 <= start <= index]
        return before[-1] if before else None

    def usage(self, block_bytes: int) -> Usage:
        sequence = self.sequence
        seconds = self.last_token_s - self.first_token_s
        num_blocks = sequence.num_held or sequence.peak_blocks
        return Usage(
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached,
            new_tokens=sequence.num_new,
            ttft_ms=max(0.0, self.first_token_s - self.submitted_s) * 1000,
            decode_tokens_per_s=(sequence.num_new - 1) / seconds if seconds > 0 else 0.0,
            preemptions=sequence.num_preemptions,
            num_blocks=num_blocks,
            kv_bytes=num_blocks * block_bytes,
            waste_ratio=1 - sequence.sum_written / sequence.sum_held if sequence.sum_held else 0.0,
        )
