"""StepPlan: what one forward pass computes. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.tables import Copies

# What a step spends its time on: choosing sequences and blocks; tensors of the batch; the model for
# those who write, or for all; the model for a piece of prompts beside them; sampling; naming blocks
# and counting; text, events and the picture of the pool.
STEP_PARTS = ("plan", "batch", "model", "prompts", "sample", "commit", "text")


@dataclass(frozen=True, slots=True)
class Load:
    """How many sequences write and how many prompts are read or will be; of these the short ones,
    and those that are read again after a pause."""

    writing: int
    reading: int
    short: int
    resumed: int = 0


@dataclass(frozen=True, slots=True)
class StepItem:
    sequence: Sequence
    num_tokens: int  # computed in this step, starting at sequence.num_computed


@dataclass(slots=True)
class StepPlan:
    """What the next forward pass computes, and who was admitted or paused to make it so."""

    decodes: list[StepItem] = field(default_factory=list)  # one token each
    prompts: list[StepItem] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    paused: list[Sequence] = field(default_factory=list)
    copies: Copies = field(default_factory=dict)  # to be made before anything is written

    @property
    def items(self) -> list[StepItem]:
        return self.decodes + self.prompts

    @property
    def num_tokens(self) -> int:
        return sum(item.num_tokens for item in self.items)
