"""compare-slab: the same memory given out as blocks and as slabs, counted and timed.

Counted over 1,000 requests with a model that only counts; timed with the real model, which takes
over a simulation in its middle, so that the clock sees a full house and not a start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engine.batch import build_batch
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv_cache import KVCache
from engine.messages import ModelInfo
from engine.scheduler import Scheduler, StepPlan
from engine.sequence import Phase, Sequence
from engine.serving import Serving, open_model
from engine.slab import (
    MEAN_NEW,
    MEAN_PROMPT,
    SEED,
    SIGMA,
    FirstFit,
    FixedSlabs,
    Job,
    scheduler_for,
    sequence_for,
    simulate,
    workload,
)

Row = dict[str, float | int]
Report = dict[str, object]
SWEEP = (2, 4, 8, 16)  # maximum slabs that the pool holds
WINDOW_S = 8.0  # of steady work, per way of giving out memory


def compare_slab(
    path: Path,
    config: EngineConfig,
    pool_mib: int | None,
    slab_tokens: int,
    num_requests: int,
    sweep: bool,
    say: Callable[[str], None],
) -> tuple[Report, ModelInfo]:
    """The report of `compare-slab`. Without `pool_mib` the pool holds four maximum slabs.

    Raises:
        ModelError, ConfigError: as `open_model`.
    """
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    default_blocks = -(-4 * slab_tokens // config.block_tokens)
    # The tensors are larger than the pool that is compared: slabs of odd lengths need a partly
    # filled block per request on top, which is bookkeeping of ours and not their waste.
    whole = replace(config, num_blocks=None, memory_fraction=0.9)
    serving = open_model(path, whole, lambda _, note: say(note))
    block_bytes = serving.pool.block_bytes
    num_blocks = pool_mib * 2**20 // block_bytes if pool_mib else default_blocks
    if slab_tokens > num_blocks * config.block_tokens or (2 * num_blocks > serving.pool.num_blocks):
        raise ConfigError(
            f"a pool of {num_blocks:,} blocks cannot be compared: it must hold one slab of "
            f"{slab_tokens:,} tokens and fit into half of the free memory"
        )
    jobs = workload(num_requests, slab_tokens)
    report: Report = {
        "pool_bytes": num_blocks * block_bytes,
        "slab_tokens": slab_tokens,
        "distribution": _distribution(jobs),
        **_ways(jobs, num_blocks, config, slab_tokens, serving, say),
    }
    if sweep:
        report["sweep"] = [
            {
                "num_slabs": n,
                **_ways(
                    jobs,
                    n * slab_tokens // config.block_tokens,
                    config,
                    slab_tokens,
                    None,
                    say,
                ),
            }
            for n in SWEEP
        ]
    return report, serving.info


def _distribution(jobs: list[Job]) -> Report:
    return {
        "kind": "log-normal fit to the ShareGPT means of Kwon et al. 2023",
        "sigma": SIGMA,
        "seed": SEED,
        "mean_prompt_tokens_wanted": MEAN_PROMPT,
        "mean_new_tokens_wanted": MEAN_NEW,
        "num_requests": len(jobs),
        "mean_prompt_tokens": round(sum(job.num_prompt for job in jobs) / len(jobs), 1),
        "mean_new_tokens": round(sum(job.num_new for job in jobs) / len(jobs), 1),
    }


def _ways(
    jobs: list[Job],
    num_blocks: int,
    config: EngineConfig,
    slab_tokens: int,
    serving: Serving | None,
    say: Callable[[str], None],
) -> Report:
    """Blocks, maximum slabs and own-limit slabs over one pool. Timed when there is a `serving`."""
    slots = num_blocks * config.block_tokens
    rows: dict[str, Row] = {}
    for name, reserve in (
        ("paged", lambda: None),
        ("slab", lambda: FixedSlabs(slots, slab_tokens)),
        ("slab_own_limit", lambda: FirstFit(slots)),
    ):
        say(f"Counting {name}, {slots:,} slots")
        tally = simulate(jobs, num_blocks, config.block_tokens, config.chunk_tokens, reserve())
        rows[name] = tally.ratios(contiguous=name != "paged")
        if serving is not None:
            say(f"Timing {name} with the model")
            scheduler = scheduler_for(
                num_blocks, config.block_tokens, config.chunk_tokens, reserve()
            )
            rows[name]["tokens_per_s"] = _time(serving, scheduler, tally.middle, jobs)
    keys = ["max_running", "mean_running"] + ["tokens_per_s"] * (serving is not None)
    ratio = {key: round(rows["paged"][key] / rows["slab"][key], 2) for key in keys}
    return {**rows, "ratio": ratio}


def _time(serving: Serving, scheduler: Scheduler, middle: list[Job], jobs: list[Job]) -> float:
    """New tokens per second with the real model. The jobs of `middle` get their blocks first, with
    noise in them: what K and V hold does not change how long a step takes. Then the clock runs
    while they and the rest of the line go on as the scheduler decides."""
    rng = random.Random(SEED)
    vocabulary = serving.model.vocab_size
    for number, job in enumerate([*middle, *jobs[len(jobs) // 2 :]]):
        sequence = sequence_for(number, job)
        sequence.token_ids = [rng.randrange(vocabulary) for _ in range(job.num_prompt)]
        scheduler.add(sequence)
    started = 0
    while started < len(middle):
        plan = scheduler.plan()
        scheduler.commit(plan)
        for item in plan.items:
            _write_noise(serving.cache, item.sequence.block_table)
        started += len(_give(plan, lambda: rng.randrange(vocabulary), scheduler))
    num_tokens, start_s = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start_s) < WINDOW_S and not scheduler.is_idle:
        num_tokens += len(_step(serving, scheduler))
    return round(num_tokens / seconds, 1)


def _step(serving: Serving, scheduler: Scheduler) -> list[Sequence]:
    """One greedy forward pass; returns the sequences that got a token."""
    plan = scheduler.plan()
    batch = build_batch(plan, serving.pool.block_tokens, serving.device)
    with torch.inference_mode():
        logits = serving.model.forward(batch, serving.cache)
        token_ids = iter(logits.argmax(dim=-1).tolist())
    scheduler.commit(plan)
    return _give(plan, lambda: next(token_ids), scheduler)


def _write_noise(cache: KVCache, blocks: list[int]) -> None:
    # Pages that were never written are all one page of zeros, which a processor reads too fast.
    for tensor in (*cache.k, *cache.v):
        tensor[blocks] = torch.randn_like(tensor[blocks])


def _give(plan: StepPlan, token: Callable[[], int], scheduler: Scheduler) -> list[Sequence]:
    """A token for every sequence whose last one was computed; who has all of its own ends."""
    ready = [item.sequence for item in plan.items if item.sequence.num_pending == 0]
    for sequence in ready:
        sequence.token_ids.append(token())
        if sequence.num_tokens >= sequence.limit_tokens and sequence.phase is Phase.RUNNING:
            scheduler.end(sequence)
    return ready
