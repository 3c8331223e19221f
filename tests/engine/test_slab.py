"""The slab side of compare-slab: reservations, gaps, and what the simulation counts."""

from __future__ import annotations

from engine.messages import SamplingParams
from engine.plan import StepPlan
from engine.sequence import Sequence
from engine.slab import FirstFit, FixedSlabs, Job, simulate, workload


def piece(limit: int) -> Sequence:
    return Sequence(0, [0], 1, limit, SamplingParams())


def test_fixed_slabs_count_whole_slabs() -> None:
    slabs = FixedSlabs(250, 100)
    one, two = piece(3), piece(3)
    assert slabs.try_reserve(one)
    assert slabs.try_reserve(two)
    assert not slabs.try_reserve(piece(3))
    slabs.give_back(one)
    assert slabs.held_slots == 100


def test_first_fit_leaves_gaps_that_a_longer_request_cannot_use() -> None:
    space = FirstFit(100)
    pieces = [piece(30), piece(30), piece(30)]
    assert all(space.try_reserve(p) for p in pieces)
    space.give_back(pieces[0])
    space.give_back(pieces[2])
    assert space.held_slots == 30
    assert space.try_reserve(piece(40)), "the gap at the end is 40 wide"
    assert not space.try_reserve(piece(31)), "70 are free in no piece of 31"
    assert space.try_reserve(piece(30))


def test_the_workload_is_the_same_each_time_and_fits() -> None:
    jobs = workload(400, 512)
    assert jobs == workload(400, 512)
    assert all(job.num_prompt >= 1 and job.num_new >= 1 and job.total <= 512 for job in jobs)


def test_a_known_case_is_counted_exactly() -> None:
    # One job: prompt 3 in one step, then 2 more tokens, in blocks of 4; slabs of 8.
    jobs = [Job(3, 3)]
    paged = simulate(jobs, 2, 4, 16, None)
    assert (paged.steps, paged.written, paged.held) == (3, 3 + 4 + 5, 4 + 4 + 8)
    slab = simulate(jobs, 2, 4, 16, FixedSlabs(8, 8))
    assert (slab.written, slab.held, slab.max_running) == (12, 24, 1)


def test_a_watcher_sees_every_step_with_its_blocks_taken() -> None:
    jobs, seen = workload(40, 512), []

    def watch(plan: StepPlan) -> None:
        seen.append(bool(plan.prompts))
        for item in plan.items:
            sequence = item.sequence
            assert sequence.num_held * 16 >= sequence.num_computed + item.num_tokens

    tally = simulate(jobs, 64, 16, 64, None, watch)
    assert (len(seen), sum(seen)) == (tally.steps, tally.num_mixed)
    assert tally.num_decode + tally.num_mixed == tally.steps
    assert tally.num_new == sum(job.num_new for job in jobs)


def test_blocks_waste_less_and_run_more_than_either_kind_of_slab() -> None:
    jobs = workload(200, 512)
    blocks = 4 * 512 // 16
    paged = simulate(jobs, blocks, 16, 512, None).ratios(contiguous=False)
    slab = simulate(jobs, blocks, 16, 512, FixedSlabs(2048, 512)).ratios(contiguous=True)
    own = simulate(jobs, blocks, 16, 512, FirstFit(2048)).ratios(contiguous=True)
    assert paged["waste_ratio"] < own["waste_ratio"] < slab["waste_ratio"]
    assert paged["mean_running"] > own["mean_running"] > slab["mean_running"]
    assert slab["max_running"] == 4
