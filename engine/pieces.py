"""Pieces: prompts are read some layers at a time, between the tokens of those who write.

A forward pass over a hundred prompt tokens takes many times as long as one over the rows that
write, and every running chat would stand still meanwhile. A few tokens at a time are no way out:
behind a long context even one costs as much as reading all K and V before it. So a piece of many
tokens goes through a few layers in each step (layered prefill, Lee et al. 2025, arXiv 2510.08055):
as many as fit between two tokens by the clock, at least one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engine.batch import Batch, build_batch
from engine.model.decoder import Cache, Decoder, Pass
from engine.plan import Load, StepItem, StepPlan

# A step takes this many times what it takes without prompts: the longest gap between two tokens is
# to stay under 3, and single steps scatter. After a piece the caches are cold, and the part of
# those who write takes 1.1 to 1.5 times as long: that counts.
SLOWDOWN = 1.9
COLD = 1.25  # times as long as without prompts: what is more comes from a longer context
LEAST_SHARE = 0.3  # but prompts have so much of that part, whatever it takes
DISTURBED = 1.3  # times that part, when it took so long: one layer
SHORT_WEIGHT = 3
RESUMED_WEIGHT = 4
BURST = 4  # short prompts at least that come at once
# Steps that a piece is meant to take: with more, the next prompt waits long; with fewer, much time
# is lost where one ends.
PIECE_STEPS = 8
FIRST_TOKENS, LEAST_TOKENS, MOST_TOKENS = 16, 16, 128
KEPT = 0.7  # of what was known before, with each new measurement


@dataclass(slots=True)
class _Piece:
    items: list[StepItem]
    ends: list[StepItem]  # those that are read to their end, as their logits come
    batch: Batch
    run: Pass


class Pieces:
    """Reads prompts of one model beside those who write, and knows what that costs."""

    def __init__(self, decoder: Decoder, cache: Cache, block_tokens: int) -> None:
        self._decoder = decoder
        self._cache = cache
        self._block_tokens = block_tokens
        self._piece: _Piece | None = None
        # What a step takes for those who write, by `_size` of their number: with prompts beside
        # them, without what those take themselves, or without prompts.
        self._beside_ms: dict[int, float] = {}
        self._alone_ms: dict[int, float] = {}
        self._layer_ms = 0.0  # of one token of the last piece; 0 = not known

    @property
    def is_reading(self) -> bool:
        return self._piece is not None

    @staticmethod
    def is_burst(load: Load) -> bool:
        """Whether most of those who are there wait for their first token, and soon have it: then
        all prompts are read at once. Of 32 chats that come together each begins to write sooner
        so, and a step with few that write costs nearly what one with all does."""
        return load.short >= max(BURST, load.writing)

    def budget_ms(self, load: Load, gone_ms: float | None = None) -> float:
        """Milliseconds of a step for prompts. Where many short ones wait for their first token and
        few write, a step may be longer: it is over soon, and a fuller batch makes up for it. It
        may be where one comes back after a pause: in a full pool those who write on would take
        the blocks it needs before it has written anything.

        Args:
            gone_ms: what the present step took up to now; None = as long as usual.
        """
        size = _size(load.writing)
        beside_ms = self._beside_ms.get(size, 0.0)
        # Who writes beside a long prompt has a longer context with every token.
        alone_ms = max(self._alone_ms.get(size, beside_ms), beside_ms / COLD)
        gone_ms = beside_ms if gone_ms is None else gone_ms
        if gone_ms > DISTURBED * beside_ms:
            return 0.0
        more = max(1.0, SHORT_WEIGHT * load.short / load.writing)
        more = max(more, RESUMED_WEIGHT if load.resumed else 1.0)
        allowed_ms = (1 + (SLOWDOWN - 1) * more) * alone_ms
        return max(allowed_ms - gone_ms, LEAST_SHARE * beside_ms)

    def num_tokens(self, budget_ms: float) -> int:
        """Of the next piece: one layer of it fits, and all are done in some steps."""
        if not self._layer_ms or not budget_ms:
            return FIRST_TOKENS
        steps = min(PIECE_STEPS / self._decoder.num_layers, 1.0)
        wanted = int(steps * budget_ms / self._layer_ms)
        return min(max(wanted, LEAST_TOKENS), MOST_TOKENS)

    def record(self, num_writing: int, ms: float, was_reading: bool) -> None:
        """What a step took for those who write."""
        size = _size(num_writing)
        for known, counts in ((self._beside_ms, True), (self._alone_ms, not was_reading)):
            if counts:
                before = known.get(size, ms)
                # A step that was disturbed does not count for more than two.
                known[size] = KEPT * before + (1 - KEPT) * min(ms, 2 * before)

    def begin(self, items: list[StepItem], device: torch.device) -> None:
        batch = build_batch(StepPlan(prompts=items), self._block_tokens, device)
        ends = [item for item in items if item.num_tokens == item.sequence.num_pending]
        self._piece = _Piece(items, ends, batch, self._decoder.begin(batch))

    def advance(self, held: list[StepItem], budget_ms: float | None) -> torch.Tensor | None:
        """Compute some layers.

        Args:
            held: those of the piece's sequences that still hold their blocks.
            budget_ms: None = all layers.

        Returns:
            After the last layer, the logits [L, vocab] of those of `held` that are read to their
            end.
        """
        piece = self._piece
        assert piece is not None
        self._drop_all_but(held, piece)
        start_s = time.perf_counter()
        while piece.run.logits is None:
            layer_s = time.perf_counter()
            self._decoder.advance(piece.run, self._cache)
            now_s = time.perf_counter()
            self._learn((now_s - layer_s) * 1000 / piece.batch.num_tokens)
            if budget_ms is not None and (2 * now_s - layer_s - start_s) * 1000 > budget_ms:
                break  # the next one would not fit
        if piece.run.logits is None:
            return None
        rows = [row for row, item in enumerate(piece.ends) if item in held]
        self._piece = None
        return piece.run.logits[rows]

    def forget(self) -> None:
        """The piece is given up: its sequences hold its blocks no longer."""
        self._piece = None

    def _drop_all_but(self, held: list[StepItem], piece: _Piece) -> None:
        """Rows of sequences that were paused or have ended write nothing any more: their blocks
        may be others' by now. What they read does not matter: no row hangs on another."""
        starts = piece.batch.cu_seqlens_q.tolist()
        for item, start, stop in zip(piece.items, starts[:-1], starts[1:], strict=True):
            if item not in held:
                for slots in piece.batch.slots:
                    slots[start:stop] = -1

    def _learn(self, ms: float) -> None:
        self._layer_ms = KEPT * self._layer_ms + (1 - KEPT) * ms if self._layer_ms else ms


def _size(number: int) -> int:
    """Numbers of about the same size: 1, 2 to 3, 4 to 7, ..."""
    return number.bit_length()
