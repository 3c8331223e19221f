"""Pace: how many prompt tokens a step reads while replies are being written. Standard library only.

A step that reads 512 prompt tokens takes many times as long as one that only writes, and every
running chat stands still meanwhile. So while somebody writes, prompts are read in pieces that make
a step at most `SLOWDOWN` times as long as it would be without them. What a piece costs is measured,
for it differs by model, machine and context: something for being there at all (what came before it
is read once), and something for each of its tokens.

This is for models that only run all their layers at once; `engine.pieces` knows the others.
"""

from __future__ import annotations

# The longest gap between two tokens is to stay under 3 normal steps; single steps scatter.
SLOWDOWN = 2.1
TOO_LONG = 2.6  # normal steps: the next piece is half as large, whatever the reason was
FIRST_TOKENS = 16
# A step without prompt tokens is measured again after so many with them: contexts grow.
REMEASURE_STEPS = 48
KEPT = 0.9  # of the weight of what was measured before, with each new piece
# Every other piece is smaller by this, so that what a token costs can be told from the rest.
VARIATION = 0.75


class Pace:
    """Watches the steps of one model."""

    def __init__(self) -> None:
        self._normal_ms: dict[int, float] = {}  # by `_size` of the number of decoding sequences
        self._steps_since: dict[int, int] = {}
        self._cost = _Cost()
        self._most = float(FIRST_TOKENS)  # grows with every step that was short enough
        self._is_asked = False
        self._is_odd = False

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
        if not self._cost.is_known or size not in self._normal_ms:
            return FIRST_TOKENS
        more = max(1.0, num_reading / num_decoding)
        budget_ms = (SLOWDOWN - 1) * self._normal_ms[size] * more
        most = min(self._cost.tokens(budget_ms), self._most * more)
        self._is_odd = not self._is_odd
        return max(1, int(most * (VARIATION if self._is_odd else 1)))

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
        self._cost.add(num_prompt_tokens, max(step_ms - normal_ms, 0.01 * normal_ms))
        if step_ms > TOO_LONG * normal_ms:
            self._most = max(1.0, num_prompt_tokens / 2)
        else:
            self._most = max(self._most, 1.5 * num_prompt_tokens + 1)


class _Cost:
    """Milliseconds of a piece as a + b * tokens, by least squares with a fading memory."""

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._ms = self._nms = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def add(self, num_tokens: int, ms: float) -> None:
        if self._weight:  # what disturbed a step does not count for more than three pieces
            ms = min(ms, 3 * self._ms / self._n * num_tokens)
        new = (1.0, num_tokens, num_tokens**2, ms, num_tokens * ms)
        old = (self._weight, self._n, self._nn, self._ms, self._nms)
        self._weight, self._n, self._nn, self._ms, self._nms = (
            KEPT * before + added for before, added in zip(old, new, strict=True)
        )

    def tokens(self, budget_ms: float) -> float:
        """How many can be read in so many milliseconds."""
        mean_n, mean_ms = self._n / self._weight, self._ms / self._weight
        spread = self._nn / self._weight - mean_n**2
        each = mean_ms / mean_n
        if spread > (mean_n / 20) ** 2:
            slope = (self._nms / self._weight - mean_n * mean_ms) / spread
            # Few pieces of nearly one size say little: the share of `a` is held below 0.7.
            each = min(each, max(slope, 0.3 * each))
        return mean_n + (budget_ms - mean_ms) / each


def _size(number: int) -> int:
    """Numbers of about the same size: 1, 2 to 3, 4 to 7, ..."""
    return number.bit_length()
