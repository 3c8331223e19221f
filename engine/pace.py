"""Pace: how many prompt tokens a step reads while replies are being written. Standard library only.

A step that reads 512 prompt tokens takes many times as long as one that only writes, and every
running chat stands still meanwhile. So while somebody writes, prompts are read in pieces that make
a step at most `SLOWDOWN` times as long as it would be without them. What a token costs is measured:
it differs by model, machine and context.
"""

from __future__ import annotations

# The longest gap between two tokens is to stay under 3 normal steps. On the starter model and two
# cores the median gap is then 1.8 of them, and single steps scatter up to 2.8.
SLOWDOWN = 1.7
FIRST_TOKENS = 16
# A step without prompt tokens is measured again after so many with them: contexts grow.
REMEASURE_STEPS = 48


class Pace:
    """Watches the steps of one model."""

    def __init__(self) -> None:
        self._normal_ms: dict[int, float] = {}  # by `_size` of the number of decoding sequences
        self._steps_since: dict[int, int] = {}
        self._ms_per_token: float | None = None  # of a prompt
        self._is_asked = False

    def prompt_tokens(self, num_decoding: int, num_reading: int) -> int | None:
        """Most prompt tokens of the next step; None = as many as there is room for.

        Where more wait for their first token than write, a step may be longer by as much.
        """
        if not num_decoding or not num_reading:
            return None
        size = _size(num_decoding)
        if self._steps_since.get(size, REMEASURE_STEPS) >= REMEASURE_STEPS:
            # What a step takes by itself has to be known first. Asked for once: were it not to
            # come, prompts would stand still.
            self._is_asked = not self._is_asked
            if self._is_asked:
                return 0
        if self._ms_per_token is None or size not in self._normal_ms:
            return FIRST_TOKENS
        more = max(1.0, num_reading / num_decoding)
        budget_ms = (SLOWDOWN - 1) * self._normal_ms[size] * more
        return max(1, int(budget_ms / self._ms_per_token))

    def record(self, num_decoding: int, num_prompt_tokens: int, step_ms: float) -> None:
        """What a step took."""
        if not num_decoding:
            return
        size = _size(num_decoding)
        if not num_prompt_tokens:
            before = self._normal_ms.get(size, step_ms)
            # Half of the newest: a step that was disturbed is soon forgotten.
            self._normal_ms[size] = (before + min(step_ms, 2 * before)) / 2
            self._steps_since[size] = 0
            self._is_asked = False
            return
        self._steps_since[size] = self._steps_since.get(size, REMEASURE_STEPS) + 1
        normal_ms = self._normal_ms.get(size)
        if normal_ms is None:
            return
        new = max(step_ms - normal_ms, 0.01 * normal_ms) / num_prompt_tokens
        before = new if self._ms_per_token is None else self._ms_per_token
        # At once where a step was too long, which everybody sees who watches; else by and by.
        is_too_long = step_ms > (SLOWDOWN + 0.5) * normal_ms
        self._ms_per_token = max(new, before) if is_too_long else (before + new) / 2


def _size(number: int) -> int:
    """Numbers of about the same size: 1, 2 to 3, 4 to 7, ..."""
    return number.bit_length()
