"""compare-slab: the same memory given out as blocks and as slabs, counted and timed.

Counted over 1,000 requests with a model that only counts. Timed with the real model, which runs
some of the very same steps, spread evenly over the whole run: steps with prompt tokens and steps
without are two kinds, each measured and weighed by how often it comes. (A stretch of a few seconds
instead says little: a prompt or two more in it move the figure by a third.)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from engine.batch import build_batch
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.messages import ModelInfo
from engine.plan import StepPlan
from engine.serving import Serving, open_model
from engine.slab import (
    MEAN_NEW,
    MEAN_PROMPT,
    SEED,
    SIGMA,
    FirstFit,
    FixedSlabs,
    Job,
    Tally,
    blocks_for_slabs,
    simulate,
    workload,
)

Row = dict[str, float | int]
Report = dict[str, object]
SWEEP = (2, 4, 8, 16)  # maximum slabs that the pool holds
NUM_DECODE, NUM_MIXED = 48, 24  # steps of each kind that are timed, per way


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
    default_blocks = -(-4 * slab_tokens // config.block_tokens)
    # The tensors are larger than the pool that is compared: slabs of odd lengths need a partly
    # filled block per request on top, which is bookkeeping of ours and not their waste.
    whole = replace(config, num_blocks=None, memory_fraction=0.9)
    serving = open_model(path, whole, lambda _, note: say(note))
    block_bytes = serving.pool.block_bytes
    num_blocks = pool_mib * 2**20 // block_bytes if pool_mib else default_blocks
    room = serving.pool.num_blocks
    if slab_tokens > num_blocks * config.block_tokens or blocks_for_slabs(num_blocks) > room:
        raise ConfigError(
            f"a pool of {num_blocks:,} blocks cannot be compared: it must hold one slab of "
            f"{slab_tokens:,} tokens, and {blocks_for_slabs(num_blocks):,} blocks, for the slabs' "
            f"own bookkeeping, must fit into the free memory, which holds {room:,}"
        )
    jobs = workload(num_requests, slab_tokens)
    ways = _ways(jobs, num_blocks, config, serving, slab_tokens, say)
    report: Report = {
        "pool_bytes": num_blocks * block_bytes,
        "slab_tokens": slab_tokens,
        "distribution": _distribution(jobs),
        **ways,
    }
    if sweep:
        pools = {n: n * slab_tokens // config.block_tokens for n in SWEEP}
        report["sweep"] = [
            {"num_slabs": n}
            | (ways if pool == num_blocks else _ways(jobs, pool, config, None, slab_tokens, say))
            for n, pool in pools.items()
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
    serving: Serving | None,
    slab_tokens: int,
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
            clock = _Clock(serving, tally)
            simulate(
                jobs, num_blocks, config.block_tokens, config.chunk_tokens, reserve(), clock.watch
            )
            rows[name]["tokens_per_s"] = round(tally.num_new / clock.seconds(), 1)
    keys = ["max_running", "mean_running"] + ["tokens_per_s"] * (serving is not None)
    ratio = {key: round(rows["paged"][key] / rows["slab"][key], 2) for key in keys}
    return {**rows, "ratio": ratio}


class _Clock:
    """Runs the real model on some steps of a simulation that has been counted before."""

    def __init__(self, serving: Serving, tally: Tally) -> None:
        self._serving = serving
        self._counts = (tally.num_decode, tally.num_mixed)
        wanted = zip(self._counts, (NUM_DECODE, NUM_MIXED), strict=True)
        self._every = [max(1, count // number) for count, number in wanted]
        self._num_seen = [0, 0]
        self._times_s: tuple[list[float], list[float]] = ([], [])
        self._written: set[int] = set()  # blocks

    def watch(self, plan: StepPlan) -> None:
        kind = int(bool(plan.prompts))
        self._num_seen[kind] += 1
        if self._num_seen[kind] % self._every[kind]:
            return
        self._write_noise(plan)
        if not self._times_s[kind]:
            self._forward(plan)  # the first of a kind may compile and allocate
        start_s = time.perf_counter()
        self._forward(plan)
        self._times_s[kind].append(time.perf_counter() - start_s)

    def seconds(self) -> float:
        """What the whole run would take."""
        kinds = zip(self._counts, self._times_s, strict=True)
        return sum(count * statistics.fmean(times) for count, times in kinds if times)

    def _forward(self, plan: StepPlan) -> None:
        serving = self._serving
        batch = build_batch(plan, serving.pool.block_tokens, serving.device)
        with torch.inference_mode():
            serving.model.forward(batch, serving.cache).argmax(dim=-1).tolist()

    def _write_noise(self, plan: StepPlan) -> None:
        """Pages that were never written are all one page of zeros, which a processor reads too
        fast. What K and V hold does not change how long a step takes."""
        blocks = {block for item in plan.items for block in item.sequence.held_blocks()}
        new = sorted(blocks - self._written)
        self._written |= blocks
        for tensor in (*self._serving.cache.k, *self._serving.cache.v):
            tensor[new] = torch.randn_like(tensor[new])
