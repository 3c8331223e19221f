"""BlockPool: states, counts, eviction order, prefixes; thousands of random steps with check()."""

from __future__ import annotations

import random

import pytest

from engine.blocks import BlockPool
from engine.layer_groups import LayerGroup, group_layers
from engine.messages import NO_OWNER, BlockState
from engine.prefix import chain_digest, root_digest

ROOT = root_digest("test")


def seal(pool: BlockPool, block: int, tokens: list[int], parent: bytes = ROOT) -> bytes:
    """A full block becomes findable; its digest."""
    digest = chain_digest(parent, tokens)
    pool.set_filled(block, pool.block_tokens)
    pool.seal(block, digest, parent, tokens)
    return digest


def counts(pool: BlockPool) -> tuple[int, int, int, int]:
    c = pool.counts()
    return tuple(c[state] for state in BlockState)  # type: ignore[return-value]


def test_a_block_without_a_digest_is_free_after_release() -> None:
    pool = BlockPool(4, 16)
    block = pool.allocate(7)
    assert counts(pool) == (3, 0, 1, 0)
    pool.release([block], 7)
    assert counts(pool) == (4, 0, 0, 0)
    pool.check([])


def test_a_sealed_block_is_cached_after_release_and_can_be_revived() -> None:
    pool = BlockPool(4, 4)
    block = pool.allocate(7)
    digest = seal(pool, block, [1, 2, 3, 4])
    pool.release([block], 7)
    assert counts(pool) == (3, 1, 0, 0)
    assert pool.index.block(0, digest) == block
    pool.share(block, 9)
    assert counts(pool) == (3, 0, 1, 0)
    pool.share(block, 7)
    assert counts(pool) == (3, 0, 0, 1)
    assert pool.snapshot().num_saved_by_sharing == 1
    pool.check([(9, [block]), (7, [block])])


def test_the_deepest_block_of_the_least_recently_used_is_evicted_first() -> None:
    pool = BlockPool(4, 1)
    table = [pool.allocate(0) for _ in range(4)]
    for number, block in enumerate(table):
        seal(pool, block, [number])
    pool.release(table[:2], 0)
    pool.release(table[2:], 0)
    assert [pool.allocate(1) for _ in range(4)] == [
        table[1],
        table[0],
        table[3],
        table[2],
    ]
    assert len(pool.index) == 0
    pool.check()


def test_two_blocks_with_the_same_content_keep_one_name() -> None:
    pool = BlockPool(3, 2)
    first, second = pool.allocate(0), pool.allocate(1)
    digest = seal(pool, first, [5, 6])
    seal(pool, second, [5, 6])
    pool.release([second], 1)
    assert counts(pool) == (2, 0, 1, 0)
    assert pool.index.block(0, digest) == first
    pool.check([(0, [first])])


def test_a_digest_depends_on_everything_before_it() -> None:
    one = chain_digest(chain_digest(ROOT, [1]), [3])
    other = chain_digest(chain_digest(ROOT, [2]), [3])
    assert one != other
    assert chain_digest(root_digest("another model"), [1]) != chain_digest(ROOT, [1])


def test_dropping_an_owner_frees_its_cached_blocks_only() -> None:
    pool = BlockPool(6, 1)
    tables = {}
    for owner in (1, 2):
        tables[owner] = [pool.allocate(owner) for _ in range(2)]
        for i, block in enumerate(tables[owner]):
            seal(pool, block, [owner, i])
        pool.release(tables[owner], owner)
    assert pool.drop_cached(1) == 2
    assert counts(pool) == (4, 2, 0, 0)
    pool.check([])


def test_the_snapshot_says_what_the_pool_holds() -> None:
    pool = BlockPool(3, 16, block_bytes=100)
    block = pool.allocate(300)
    pool.set_filled(block, 5)
    picture = pool.snapshot()
    owners = memoryview(picture.owners).cast("H")
    assert picture.states[block] == BlockState.ACTIVE
    assert owners[block] == 300
    assert picture.unfilled[block] == 11
    assert owners[2] == NO_OWNER
    pool.release([block], 300)
    assert picture.states[block] == BlockState.ACTIVE, "a snapshot never changes"


def test_releasing_twice_is_our_mistake_and_is_caught() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate(0)
    pool.release([block], 0)
    with pytest.raises(AssertionError):
        pool.release([block], 0)


def test_a_shared_block_shows_one_who_still_holds_it() -> None:
    pool = BlockPool(2, 1)
    block = pool.allocate(1)
    seal(pool, block, [1])
    for owner in (2, 2, 3):
        pool.share(block, owner)
    holders = [1, 2, 2, 3]
    for gone in (1, 2, 2):
        pool.release([block], gone)
        holders.remove(gone)
        pool.check([(owner, [block]) for owner in holders])
    assert memoryview(pool.snapshot().owners).cast("H")[block] == 3
    assert counts(pool) == (1, 0, 1, 0)


def test_pinned_blocks_are_evicted_only_when_no_other_is_left() -> None:
    pool = BlockPool(3, 1)
    table = [pool.allocate(5) for _ in range(3)]
    for number, block in enumerate(table):
        seal(pool, block, [number])
    pool.pin(table[:1], 5)
    pool.release(table, 5)
    assert (pool.num_available, pool.num_kept, pool.num_cached) == (2, 1, 3)
    assert pool.snapshot().num_pinned == 1
    assert [pool.allocate(1) for _ in range(3)] == [table[2], table[1], table[0]]
    assert pool.snapshot().num_pinned == 0, "who is evicted is pinned no more"
    pool.check()


def test_a_new_pin_takes_the_place_of_the_owners_old_one() -> None:
    pool = BlockPool(4, 1)
    table = [pool.allocate(5) for _ in range(3)]
    for number, block in enumerate(table):
        seal(pool, block, [number])
    pool.pin(table[:2], 5)
    pool.pin(table[:1], 6)
    pool.release(table, 5)
    pool.pin(table[2:], 5)
    assert (pool.num_available, pool.num_kept) == (2, 2)
    pool.check([])
    pool.pin((), 5)
    pool.pin((), 6)
    assert (pool.num_available, pool.num_kept) == (4, 0)
    pool.check([])


def test_a_named_or_shared_block_is_not_written() -> None:
    pool = BlockPool(2, 1)
    named, shared = pool.allocate(0), pool.allocate(0)
    assert pool.is_writable(named)
    seal(pool, named, [1])
    assert not pool.is_writable(named)
    pool.unseal(named)
    assert pool.is_writable(named)
    pool.share(shared, 1)
    assert not pool.is_writable(shared)
    pool.release([shared], 0)
    assert pool.is_writable(shared)
    pool.check([(0, [named]), (1, [shared])])


def test_a_slot_of_a_group_with_fewer_layers_is_written_in_part() -> None:
    groups = (LayerGroup((0, 1)), LayerGroup((2,), window=4))
    pool = BlockPool(4, 2, groups=groups)
    for group in (0, 1):
        pool.set_filled(pool.allocate(0, group), 2)
    assert pool.slots() == (2 + 1, 4)
    assert pool.snapshot().groups == bytes([0, 1, 0, 0])


def test_idle_means_that_nobody_holds_a_block() -> None:
    pool = BlockPool(2, 1)
    pool.check_idle()
    block = pool.allocate(0)
    with pytest.raises(AssertionError):
        pool.check_idle()
    pool.release([block], 0)
    pool.check_idle()


def test_the_longest_sequence_that_fits_into_the_pool() -> None:
    assert BlockPool(5, 4).most_tokens() == 20
    two = (LayerGroup((0,)), LayerGroup((1,), window=5))  # a window of 5 touches 2 blocks of 4
    assert BlockPool(5, 4, groups=two).most_tokens() == 12
    assert BlockPool(1, 4, groups=two).most_tokens() == 0
    assert BlockPool(3, 4, groups=(LayerGroup((0,), window=9),)).most_tokens() > 1 << 30
    assert BlockPool(2, 4, groups=(LayerGroup((0,), window=9),)).most_tokens() == 8


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        ([0] * 30, [30]),
        ([512] * 30, [30]),
        ([4096, 0] * 13, [13, 13]),
        ([512] * 15 + [0] * 3, [3] * 6),
        ([8, 8, 0], [1, 1, 1]),
        (([512] * 5 + [0]) * 4 + [512] * 2, [4] * 6 + [2]),
    ],
)
def test_layers_are_grouped_by_how_far_they_see(windows: list[int], sizes: list[int]) -> None:
    groups = group_layers(windows)
    assert sorted((len(group.layers) for group in groups), reverse=True) == sizes
    assert sorted(i for group in groups for i in group.layers) == list(range(len(windows)))
    assert all(windows[i] == group.window for group in groups for i in group.layers)


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9])
@pytest.mark.parametrize("step", [1, 3, 8])
def test_a_window_never_holds_more_blocks_than_it_says(window: int, step: int) -> None:
    group, size, most = LayerGroup((0,), window), 4, 0
    for start in range(60):
        end = start + step  # the step writes tokens start to end - 1
        held = -(-end // size) - group.first_block(start, size)
        assert held <= group.most_blocks(end, step, size)
        most = max(most, held)
        for query in range(start, end):  # every key that a query sees is in a block still held
            assert max(0, query - window + 1) // size >= group.first_block(start, size)
        assert 0 <= group.tokens_gone(start) - group.first_block(start, size) * size < size
    assert most == group.most_blocks(1000, step, size), "the bound is reached"


@pytest.mark.parametrize("num_blocks", [1, 4, 33])
def test_random_operations_keep_every_invariant(num_blocks: int) -> None:
    rng = random.Random(num_blocks)
    pool = BlockPool(num_blocks, 4)
    tables: list[tuple[int, list[int]]] = []  # (owner, blocks)
    for step in range(4000):
        action, owner = rng.randrange(7), step % 50
        if action == 0 and pool.num_available:
            block = pool.allocate(owner)
            if rng.random() < 0.7:
                seal(pool, block, [rng.randrange(3 * num_blocks)])
            tables.append((owner, [block]))
        elif action == 1 and tables:
            holder, blocks = tables.pop(rng.randrange(len(tables)))
            pool.release(blocks, holder)
        elif action == 2:
            wanted = chain_digest(ROOT, [rng.randrange(3 * num_blocks)])
            if (found := pool.index.block(0, wanted)) is not None:
                pool.share(found, owner)
                tables.append((owner, [found]))
        elif action == 3 and tables and pool.num_available:
            holder, blocks = tables[rng.randrange(len(tables))]
            blocks.append(pool.allocate(holder))
        elif action == 4 and rng.random() < 0.02:
            pool.drop_cached(rng.choice([None, owner]))
        elif action == 5 and rng.random() < 0.3:
            pool.pin(rng.sample(range(num_blocks), rng.randrange(num_blocks + 1)), owner)
        elif action == 6 and pool.num_available == 0 and pool.num_kept:
            tables.append((owner, [pool.allocate(owner)]))
        pool.check(tables)
        assert sum(counts(pool)) == num_blocks
