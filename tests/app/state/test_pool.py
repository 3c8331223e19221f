"""PoolModel: one byte per block, figures that add up, a filter that hides without losing."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import numpy as np
import pytest

from app.state.pool import DIMMED_INDEX, FREE_INDEX, OwnerRow, PoolCounts, PoolModel
from engine.messages import NO_OWNER, BlockState, PoolSnapshot


def snapshot_of(blocks: list[tuple[int, int, int]], saved: int = 0) -> PoolSnapshot:
    """A snapshot of (state, owner, unfilled) per block."""
    states, owners, unfilled = (list(column) for column in zip(*blocks, strict=True))
    return PoolSnapshot(
        num_blocks=len(blocks),
        block_tokens=16,
        block_bytes=1000,
        states=bytes(states),
        owners=np.array(owners, np.uint16).tobytes(),
        unfilled=bytes(unfilled),
        num_saved_by_sharing=saved,
        time_s=0.0,
    )


BLOCKS = [
    (0, NO_OWNER, 16), (1, 3, 0), (2, 3, 0), (2, 0, 5), (3, 70, 0), (2, 70, 0), (1, 0, 0),
]  # fmt: skip


@pytest.fixture
def pool() -> PoolModel:
    model = PoolModel()
    model.set_snapshot(snapshot_of(BLOCKS, saved=2))
    return model


def test_a_block_is_its_owner_and_its_state(pool: PoolModel) -> None:
    expected = [FREE_INDEX, 3 * 4 + 1, 3 * 4 + 2, 2, 6 * 4 + 3, 6 * 4 + 2, 1]
    assert pool.indexed_bytes().tolist() == expected
    assert pool.indexed_bytes().dtype == np.uint8


def test_counts_add_up_to_the_pool(pool: PoolModel) -> None:
    assert pool.counts == PoolCounts(free=1, cached=2, active=3, shared=1)
    assert pool.counts.total == pool.num_blocks == 7
    assert pool.num_saved_by_sharing == 2


def test_rows_add_up_to_what_is_held(pool: PoolModel) -> None:
    assert pool.owner_rows() == [
        OwnerRow(0, 1, 1, 2000),
        OwnerRow(3, 1, 1, 2000),
        OwnerRow(70, 2, 0, 2000),
    ]


def test_blocks_that_are_being_written(pool: PoolModel) -> None:
    assert pool.written().tolist() == [3]


def test_facts_of_a_block(pool: PoolModel) -> None:
    free, writing = pool.block(0), pool.block(3)
    assert (free.state, free.owner, free.filled) == (BlockState.FREE, None, 0)
    assert (writing.state, writing.owner, writing.filled) == (BlockState.ACTIVE, 0, 11)
    for outside in (-1, 7):
        with pytest.raises(IndexError, match="the pool has 7"):
            pool.block(outside)


def test_filter_dims_others_and_leaves_free_blocks(qtbot, pool: PoolModel) -> None:
    with qtbot.waitSignal(pool.filter_changed):
        pool.set_filter_owner(3)
    d = DIMMED_INDEX
    assert pool.indexed_bytes().tolist() == [FREE_INDEX, 13, 14, d, d, d, d]
    assert pool.written().tolist() == []
    with qtbot.assertNotEmitted(pool.filter_changed):
        pool.set_filter_owner(3)
    pool.set_filter_owner(None)
    assert pool.indexed_bytes()[5] == 26


def test_owner_numbers_that_share_a_colour_are_filtered_apart() -> None:
    model = PoolModel()
    model.set_snapshot(snapshot_of([(2, 6, 0), (2, 70, 0)]))
    assert len(set(model.indexed_bytes().tolist())) == 1
    model.set_filter_owner(70)
    assert model.indexed_bytes().tolist() == [DIMMED_INDEX, 26]


def test_next_block_of_an_owner_goes_round(pool: PoolModel) -> None:
    assert pool.next_of_owner(1) == 2
    assert pool.next_of_owner(2) == 1
    assert pool.next_of_owner(0) is None


def test_owners_of_a_run_of_blocks(pool: PoolModel) -> None:
    assert pool.owners_in(range(7)) == [(0, 2), (3, 2), (70, 2)]
    assert pool.owners_in(range(4)) == [(3, 2), (0, 1)]


def test_without_a_model_there_is_nothing(qtbot, pool: PoolModel) -> None:
    with qtbot.waitSignal(pool.changed):
        pool.set_snapshot(None)
    assert (pool.num_blocks, pool.counts.total, pool.owner_rows()) == (0, 0, [])
    assert len(pool.indexed_bytes()) == 0


def test_a_snapshot_that_contradicts_itself_is_refused(pool: PoolModel) -> None:
    broken = PoolSnapshot(3, 16, 1000, b"\0\0", b"\0\0" * 3, b"\0\0\0", 0, 0.0)
    with pytest.raises(ValueError, match="3 blocks has 2 states"):
        pool.set_snapshot(broken)


def test_random_pools_agree_with_counting_by_hand() -> None:
    rng = np.random.default_rng(5)
    for num_blocks in (1, 63, 1000):
        states = rng.integers(0, 4, num_blocks)
        owners = np.where(states == 0, NO_OWNER, rng.integers(0, 300, num_blocks))
        blocks = [(int(s), int(o), 0) for s, o in zip(states, owners, strict=True)]
        model = PoolModel()
        model.set_snapshot(snapshot_of(blocks))
        for row in model.owner_rows():
            mine = [state for state, owner, _ in blocks if owner == row.owner]
            assert (row.in_use, row.cached) == (sum(s > 1 for s in mine), mine.count(1))
        by_hand = [0 if s == 0 else o % 64 * 4 + s for s, o, _ in blocks]
        assert model.indexed_bytes().tolist() == by_hand


def test_a_large_snapshot_takes_under_a_millisecond() -> None:
    rng = np.random.default_rng(6)
    states = rng.integers(0, 4, 16384).astype(np.uint8)
    owners = np.where(states == 0, NO_OWNER, rng.integers(0, 40, 16384)).astype(np.uint16)
    snapshot = PoolSnapshot(
        16384, 16, 1000, states.tobytes(), owners.tobytes(), bytes(16384), 0, 0.0
    )
    model, took_ms = PoolModel(), []
    for _ in range(21):
        start = time.perf_counter()
        model.set_snapshot(snapshot)
        took_ms.append((time.perf_counter() - start) * 1000)
    assert statistics.median(took_ms) < 2.0, took_ms  # 0.1 to 0.2 ms on a quiet machine


def test_layer_groups_are_those_of_the_snapshot(pool: PoolModel) -> None:
    snapshot = snapshot_of(BLOCKS)
    assert (pool.block(3).group, pool.block(3).num_groups) == (0, 1)
    pool.set_snapshot(replace(snapshot, groups=bytes([0, 0, 1, 2, 0, 1, 5]), num_groups=6))
    assert [pool.block(number).group for number in range(7)] == [0, 0, 1, 2, 0, 1, 5]
    assert pool.block(3).num_groups == 6
    pool.set_snapshot(replace(snapshot, groups=bytes(7), num_groups=6))  # five hold nothing now
    assert pool.block(3).num_groups == 6
    pool.set_snapshot(snapshot)  # another model
    assert pool.block(3).num_groups == 1
    with pytest.raises(ValueError, match="7 blocks has 3 layer groups"):
        pool.set_snapshot(replace(snapshot, groups=bytes(3)))


def test_pins_and_copies_are_those_of_the_snapshot(pool: PoolModel) -> None:
    assert (pool.num_pinned, pool.num_copies) == (0, 0)
    pool.set_snapshot(replace(snapshot_of(BLOCKS), num_pinned=3, num_copies=9))
    assert (pool.num_pinned, pool.num_copies) == (3, 9)
    pool.set_snapshot(None)
    assert (pool.num_pinned, pool.num_copies) == (0, 0)
