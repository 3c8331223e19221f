"""Pace: how many prompt tokens a step reads while replies are being written. Standard library only.

A step that reads 512 prompt tokens takes many times as long as one that only writes, and every
running chat stands still meanwhile. So while somebody writes, prompts are read in pieces that make
a step at most `SLOWDOWN` times as long as it would be without them. What a token costs is measured:
it differs by model, machine and context.
"""

from __future__ import annotations

# The longest gap between two tokens is to stay under 3 normal steps; single steps scatter.
SLOWDOWN = 2.2
FIRST_TOKENS = 16
# A step without prompt tokens is measured again after so many with them: contexts grow.
REMEASURE_STEPS = 48


class Pace:
    """Watches the steps of one model."""

    def __init__(self) -> None:
        self._normal_ms: dict[int, float] = {}  # by `_size` of the number of decoding sequences
        self._steps_since: dict[int, int] = {}
        self._tokens = float(FIRST_TOKENS)

    def prompt_tokens(self, num_decoding: int) -> int | None:
        """Most prompt tokens of the next step; None = as many as there is room for."""
        if not num_decoding:
            return None
        size = _size(num_decoding)
        if self._steps_since.get(size, REMEASURE_STEPS) >= REMEASURE_STEPS:
            return 1  # as good as none: what a step takes by itself has to be known first
        return max(1, int(self._tokens))

    def record(self, num_decoding: int, num_prompt_tokens: int, step_ms: float) -> None:
        """What a step took."""
        if not num_decoding:
            return
        size = _size(num_decoding)
        if num_prompt_tokens <= 1:
            before = self._normal_ms.get(size, step_ms)
            # Half of the newest: a step that was disturbed is soon forgotten.
            self._normal_ms[size] = (before + min(step_ms, 2 * before)) / 2
            self._steps_since[size] = 0
            return
        self._steps_since[size] = self._steps_since.get(size, 0) + 1
        normal_ms = self._normal_ms.get(size)
        if normal_ms is None or num_prompt_tokens < self._tokens // 2:
            return  # a step with a short prompt says little about how long one could be
        added_ms = max(step_ms - normal_ms, 0.01 * normal_ms)
        wanted = (SLOWDOWN - 1) * normal_ms / added_ms
        # Slowly up, at once down: one step that is too long is seen by everybody who watches.
        self._tokens = max(1.0, num_prompt_tokens * min(max(wanted, 0.25), 1.25))


def _size(number: int) -> int:
    """Numbers of about the same size: 1, 2 to 3, 4 to 7, ..."""
    return number.bit_length()
