"""The slab side of `compare-slab`: reservations as contiguous engines make them, and a simulation
that counts what each way of giving out memory wastes.

Lengths are log-normal with the ShareGPT means that Kwon et al. 2023 print (161 prompt, 338 new
tokens): a fit, not their trace.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.messages import BACKGROUND, SamplingParams
from engine.plan import StepPlan
from engine.prefix import root_digest
from engine.scheduler import Reservation, Scheduler
from engine.sequence import Phase, Sequence

MEAN_PROMPT, MEAN_NEW, SIGMA, SEED = 161, 338, 1.0, 20231023


@dataclass(frozen=True, slots=True)
class Job:
    """A request of the workload, in tokens."""

    num_prompt: int
    num_new: int

    @property
    def total(self) -> int:
        return self.num_prompt + self.num_new


def workload(num_requests: int, slab_tokens: int) -> list[Job]:
    """`num_requests` jobs, always the same ones; each fits into a slab."""
    rng = random.Random(SEED)
    jobs: list[Job] = []
    while len(jobs) < num_requests:
        prompt, new = (
            max(1, round(rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)))
            for mean in (MEAN_PROMPT, MEAN_NEW)
        )
        if prompt + new <= slab_tokens:
            jobs.append(Job(prompt, new))
    return jobs


class FixedSlabs:
    """Every request holds the maximum: `num_slots // slab_tokens` slabs."""

    def __init__(self, num_slots: int, slab_tokens: int) -> None:
        self.num_slots = num_slots
        self._slab_tokens = slab_tokens
        self._taken = 0

    @property
    def held_slots(self) -> int:
        return self._taken * self._slab_tokens

    def try_reserve(self, sequence: Sequence) -> bool:
        if self.held_slots + self._slab_tokens > self.num_slots:
            return False
        self._taken += 1
        return True

    def give_back(self, sequence: Sequence) -> None:
        self._taken -= 1


class FirstFit:
    """Every request holds what it will need at its end, in one piece, at the first gap that is wide
    enough. It knows that length beforehand, which no real engine does: the best case for slabs."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._pieces: list[tuple[int, int, Sequence]] = []  # (start, end, who), by start

    @property
    def held_slots(self) -> int:
        return sum(end - start for start, end, _ in self._pieces)

    def try_reserve(self, sequence: Sequence) -> bool:
        edge = 0
        for index, (start, end, _) in enumerate([*self._pieces, (self.num_slots, 0, sequence)]):
            if start - edge >= sequence.limit_tokens:
                self._pieces.insert(index, (edge, edge + sequence.limit_tokens, sequence))
                return True
            edge = end
        return False

    def give_back(self, sequence: Sequence) -> None:
        self._pieces = [piece for piece in self._pieces if piece[2] is not sequence]


@dataclass(slots=True)
class Tally:
    """Sums over the steps of a simulation."""

    num_slots: int
    steps: int = 0
    written: float = 0.0
    held: int = 0
    stranded: int = 0  # free slots that the next in line cannot use
    running: int = 0
    max_running: int = 0
    num_mixed: int = 0  # steps with prompt tokens in them
    num_new: int = 0  # tokens the requests were given

    @property
    def num_decode(self) -> int:
        return self.steps - self.num_mixed

    def ratios(self, contiguous: bool) -> dict[str, float | int]:
        """`waste_ratio` = 1 - written / held. For contiguous ways also, as shares of the pool:
        reserved slots without a token, and free slots that the next in line cannot use."""
        row: dict[str, float | int] = {"waste_ratio": round(1 - self.written / self.held, 4)}
        if contiguous:
            space = self.steps * self.num_slots
            row["reserved_unused_ratio"] = round((self.held - self.written) / space, 4)
            row["fragmentation_ratio"] = round(self.stranded / space, 4)
        row["max_running"] = self.max_running
        row["mean_running"] = round(self.running / self.steps, 2)
        return row


def scheduler_for(
    num_blocks: int,
    block_tokens: int,
    chunk_tokens: int,
    reservation: Reservation | None,
) -> Scheduler:
    """The real scheduler over the real pool. A reservation does its own accounting, so its pool is
    made large enough never to be what limits it (partly filled blocks, one per request)."""
    blocks = num_blocks if reservation is None else blocks_for_slabs(num_blocks)
    pool = BlockPool(blocks, block_tokens)
    return Scheduler(pool, chunk_tokens, 4096, root_digest("compare-slab"), reservation)


def blocks_for_slabs(num_blocks: int) -> int:
    return 2 * num_blocks + 4096


def sequence_for(number: int, job: Job) -> Sequence:
    return Sequence(
        request_id=number,
        token_ids=[0] * job.num_prompt,
        num_prompt=job.num_prompt,
        limit_tokens=job.total,
        params=SamplingParams(),
        use_prefix_cache=False,
        priority=BACKGROUND,  # a batch that nobody watches: first come, first served
    )


def simulate(
    jobs: list[Job],
    num_blocks: int,
    block_tokens: int,
    chunk_tokens: int,
    reservation: FixedSlabs | FirstFit | None,
    watch: Callable[[StepPlan], None] | None = None,
) -> Tally:
    """Run all jobs, submitted at once, through the real Scheduler and BlockPool with a model that
    only counts. `watch` sees every plan before it is committed, when its blocks have been taken."""
    scheduler = scheduler_for(num_blocks, block_tokens, chunk_tokens, reservation)
    tally = Tally(num_blocks * block_tokens)
    for number, job in enumerate(jobs):
        scheduler.add(sequence_for(number, job))
    while not scheduler.is_idle:
        plan = scheduler.plan()
        if watch is not None:
            watch(plan)
        scheduler.commit(plan)
        _count(tally, scheduler, reservation)
        tally.num_mixed += bool(plan.prompts)
        for item in plan.items:
            sequence = item.sequence
            if sequence.num_pending or sequence.phase is not Phase.RUNNING:
                continue
            sequence.token_ids.append(0)
            tally.num_new += 1
            if sequence.num_tokens >= sequence.limit_tokens:
                scheduler.end(sequence)
    return tally


def _count(tally: Tally, scheduler: Scheduler, reservation: FixedSlabs | FirstFit | None) -> None:
    written, held = scheduler.slots()
    if reservation is not None:
        held = reservation.held_slots
        tally.stranded += tally.num_slots - held if scheduler.waiting else 0
    tally.steps += 1
    tally.written += written
    tally.held += held
    tally.running += len(scheduler.running)
    tally.max_running = max(tally.max_running, len(scheduler.running))
