"""Stepper: one forward pass over what the scheduler chose, and what to do when it does not fit."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from engine.batch import build_batch
from engine.errors import SamplingError
from engine.messages import Logprobs, StepStats
from engine.pace import Pace
from engine.pieces import Pieces
from engine.plan import STEP_PARTS, Load, StepItem, StepPlan
from engine.sampling import SampleRow, sample, top_logprobs
from engine.sequence import Sequence
from engine.serving import Serving
from engine.turns import CYCLE_S

RECOVERY_STEPS = 32  # after so many steps that fitted, twice as many prompt tokens are tried again


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sequence's next token, or why it has none."""

    sequence: Sequence
    token: int | SamplingError
    logprobs: tuple[Logprobs, ...]


@dataclass(slots=True)
class StepResult:
    sampled: list[Sampled] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    stats: StepStats | None = None
    notice: str = ""  # a sentence
    hopeless: Sequence | None = None  # not even one token of it can be computed


class _Clock:
    """Milliseconds of a step's parts."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys(STEP_PARTS, 0.0)
        self._start_s = self._lap_s = time.perf_counter()

    def lap(self, part: str) -> None:
        """What went by since the last call belongs to this part."""
        now_s = time.perf_counter()
        self.parts[part] += (now_s - self._lap_s) * 1000
        self._lap_s = now_s

    def ms(self) -> float:
        return (time.perf_counter() - self._start_s) * 1000


class Stepper:
    """Runs the steps of one loaded model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._pace = Pace()
        decoder = serving.model.by_layer if serving.device.type == "cpu" else None
        self._pieces: Pieces | None = None
        if decoder is not None:  # elsewhere nobody knows when a layer is done
            self._pieces = Pieces(decoder, serving.cache, serving.pool.block_tokens)
        self._limit: int | None = None  # prompt tokens, after a step found no memory
        self._good_steps = 0
        self._is_short = False  # and it has been said
        self._load = Load(0, 0, 0)  # in the present step
        self._is_beside = False  # prompts are read beside those who write, without holding them up
        self._mean_step_ms: float | None = None

    def run(self) -> StepResult:
        """One step. Where the device has no memory for it, nothing is computed and less is tried
        next time: fewer prompt tokens, then fewer sequences."""
        scheduler, clock = self._serving.scheduler, _Clock()
        self._load = scheduler.load()
        plan = scheduler.plan(self._prompt_tokens())
        result = StepResult(admitted=plan.admitted)
        if not plan.items and not scheduler.held:
            return result
        clock.lap("plan")
        try:
            logits = self._forward(plan, clock)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            self._shrink(plan, result)
            return result
        self._recover()
        ready = [i for i in plan.items if i.sequence.num_pending == i.num_tokens]
        result.sampled = self._sample(logits, ready)
        clock.lap("sample")
        scheduler.commit(plan)
        result.stats = self._measure(plan, clock)
        return result

    def _prompt_tokens(self) -> int | None:
        load = self._load
        self._is_beside = load.writing > 0 and not Pieces.is_burst(load)
        paced = None
        if self._pieces is None:
            paced = self._pace.prompt_tokens(load.writing, load.reading)
        elif self._is_beside and load.reading:
            paced = self._pieces.num_tokens(self._pieces.budget_ms(load))
        both = [tokens for tokens in (paced, self._limit) if tokens is not None]
        return min(both, default=None)

    def _forward(self, plan: StepPlan, clock: _Clock) -> torch.Tensor:
        """Logits of those that `plan` reads to their end. While some write, prompts of a plan are
        taken out of it and held until they are computed; then they are in the plan again."""
        serving, pieces, scheduler = self._serving, self._pieces, self._serving.scheduler
        with torch.inference_mode():
            self._copy(plan)
            if pieces is not None and not scheduler.held:
                pieces.forget()
            if pieces is not None and plan.prompts and plan.decodes and self._is_beside:
                scheduler.hold(plan.prompts)
                pieces.begin(plan.prompts, serving.device)
                plan.prompts = []
            parts = []
            if plan.items:
                batch = build_batch(plan, serving.pool.block_tokens, serving.device)
                clock.lap("batch")
                parts.append(serving.model.forward(batch, serving.cache))
            clock.lap("model")
            if pieces is not None and scheduler.held:
                budget_ms = None
                if plan.decodes and self._is_beside:
                    budget_ms = pieces.budget_ms(self._load, clock.ms())
                logits = pieces.advance(scheduler.held, budget_ms)
                clock.lap("prompts")
                if logits is not None:
                    plan.prompts = scheduler.held
                    parts.append(logits)
            return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _copy(self, plan: StepPlan) -> None:
        if not plan.copies:
            return
        serving = self._serving
        pairs = [(source, target) for target, source in plan.copies.items()]
        wanted = torch.tensor(pairs, dtype=torch.int64, device=serving.device)
        for k, v in zip(serving.cache.k, serving.cache.v, strict=True):
            serving.model.ops.copy_blocks(k, v, wanted)

    def _sample(self, logits: torch.Tensor, ready: list[StepItem]) -> list[Sampled]:
        if not ready:
            return []
        text = self._serving.text
        rows = [_row(item.sequence, text.eos_ids) for item in ready]
        tokens = sample(logits, rows)
        logprobs = top_logprobs(logits, rows, tokens, text.bytes_of)
        return [
            Sampled(item.sequence, token, said)
            for item, token, said in zip(ready, tokens, logprobs, strict=True)
        ]

    # --- memory -----------------------------------------------------------------------------------

    def _shrink(self, plan: StepPlan, result: StepResult) -> None:
        self._good_steps = 0
        prompts = plan.prompts or self._serving.scheduler.held
        self._serving.scheduler.undo(plan)
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        num_prompt_tokens = sum(item.num_tokens for item in prompts)
        if num_prompt_tokens > 1:
            self._limit = num_prompt_tokens // 2
            done = "long prompts are read in smaller pieces"
        elif self._serving.scheduler.pause_last() is not None:
            done = "a chat was paused and goes on by itself"
        else:
            result.hopeless = (plan.decodes + prompts)[-1].sequence
            return
        if not self._is_short:
            self._is_short = True
            result.notice = f"Memory ran short in a step: {done}. Closing other programs helps."

    def _recover(self) -> None:
        if not self._is_short:
            return
        self._good_steps += 1
        if self._good_steps < RECOVERY_STEPS:
            return
        self._good_steps = 0
        if self._limit is None or self._limit >= self._serving.scheduler.chunk_tokens:
            self._limit, self._is_short = None, False
        else:
            self._limit *= 2

    # --- figures ----------------------------------------------------------------------------------

    def _measure(self, plan: StepPlan, clock: _Clock) -> StepStats:
        scheduler = self._serving.scheduler
        written, held = scheduler.slots()
        clock.lap("commit")
        step_ms, prompts_ms = clock.ms(), clock.parts["prompts"]
        num_prompt_tokens = sum(item.num_tokens for item in plan.prompts)
        if self._pieces is None:
            self._pace.record(self._load.writing, num_prompt_tokens, step_ms)
        elif plan.decodes and (prompts_ms or not plan.prompts):
            self._pieces.record(len(plan.decodes), step_ms - prompts_ms, prompts_ms > 0)
        before = self._mean_step_ms or step_ms
        self._mean_step_ms = before + (step_ms - before) / 32
        scheduler.turns.cycle_steps = int(CYCLE_S * 1000 / self._mean_step_ms)
        return StepStats(
            num_prefill_tokens=num_prompt_tokens,
            num_decode_tokens=len(plan.decodes),
            step_ms=step_ms,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            waste_ratio=1 - written / held if held else 0.0,
            time_s=time.monotonic(),
            written_slots=round(written),
            held_slots=held,
            num_used_blocks=self._serving.pool.num_used,
            parts_ms=tuple(clock.parts.values()),
        )


def _is_out_of_memory(error: BaseException) -> bool:
    """torch has an error of its own on a GPU; on the CPU it is a RuntimeError by its words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "allocate memory" in str(error) or "not enough memory" in str(error)


def _row(sequence: Sequence, end_ids: Collection[int]) -> SampleRow:
    return SampleRow(
        params=sequence.params,
        seed=sequence.seed,
        position=sequence.num_tokens,
        token_ids=sequence.token_ids,
        num_prompt=sequence.num_prompt,
        end_ids=end_ids,
    )
