"""Turns: how long equals write before they make room for one another. Standard library only.

Where the pool holds fewer chats than want to write, who gives way is computed again later. Long
turns waste little on that; short ones keep everybody's text moving. So a turn is as long as it may
be with everyone served once in `CYCLE_S`, which keeps each chat above half of its equal share over
ten seconds, but not so short that computing again takes most of the time.
"""

from __future__ import annotations

from engine.messages import BACKGROUND
from engine.sequence import Sequence

CYCLE_S = 2.0  # of writing; what is computed again between the turns comes on top
# A turn that nobody's ten seconds hurry: a prompt token costs a tenth of a written one or less, so
# half of what has to be computed again keeps pauses below a fifth of the time.
TURN_TOKENS = 64
# The shortest: a turn then takes about as long as computing again what it cost.
LEAST_TOKENS = 16
LEAST_SHARE = 16  # of the context


class Turns:
    """Who has had a turn.

    Attributes:
        cycle_steps: steps in `CYCLE_S`, once somebody has measured how long they take.
    """

    def __init__(self, turn_tokens: int = TURN_TOKENS) -> None:
        self._turn_tokens = turn_tokens
        self.cycle_steps: int | None = None

    def gives_way(self, one: Sequence, sequence: Sequence, num_running: int, num_all: int) -> bool:
        """Whether a running sequence makes room for one that waits.

        Args:
            num_running, num_all: sequences that run, and those with the waiting ones.
        """
        if one.priority != sequence.priority or one.priority >= BACKGROUND:
            return one.priority > sequence.priority
        written = one.num_tokens - one.start_tokens
        return written >= self._length(one, num_running / num_all)

    def _length(self, one: Sequence, share: float) -> int:
        """Tokens of a turn, where so large a share of all runs at once."""
        longest = max(self._turn_tokens, one.num_computed // 2)
        if self.cycle_steps is None:
            return longest
        least = max(LEAST_TOKENS, one.num_computed // LEAST_SHARE)
        return min(longest, max(least, int(self.cycle_steps * share)))
