"""BlockPool: states, counts, eviction order, prefixes; thousands of random steps with check()."""

from __future__ import annotations

import random

import pytest

from engine.blocks import BlockPool, chain_digest, root_digest
from engine.messages import NO_OWNER, BlockState

ROOT = root_digest("test")


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
    digest = chain_digest(ROOT, [1, 2, 3, 4])
    block = pool.allocate(7)
    pool.seal(block, digest)
    pool.release([block], 7)
    assert counts(pool) == (3, 1, 0, 0)
    assert pool.find_prefix([digest]) == [block]
    pool.share(block, 9)
    assert counts(pool) == (3, 0, 1, 0)
    pool.share(block, 7)
    assert counts(pool) == (3, 0, 0, 1)
    assert pool.snapshot().num_saved_by_sharing == 1
    pool.check([(9, [block]), (7, [block])])


def test_the_deepest_block_of_the_least_recently_used_is_evicted_first() -> None:
    pool = BlockPool(4, 1)
    digests = [chain_digest(ROOT, [i]) for i in range(4)]
    table = [pool.allocate(0) for _ in range(4)]
    for block, digest in zip(table, digests, strict=True):
        pool.seal(block, digest)
    pool.release(table[:2], 0)
    pool.release(table[2:], 0)
    assert [pool.allocate(1) for _ in range(4)] == [
        table[1],
        table[0],
        table[3],
        table[2],
    ]
    assert pool.find_prefix(digests) == []
    pool.check()


def test_two_blocks_with_the_same_content_keep_one_name() -> None:
    pool = BlockPool(3, 2)
    digest = chain_digest(ROOT, [5, 6])
    first, second = pool.allocate(0), pool.allocate(1)
    pool.seal(first, digest)
    pool.seal(second, digest)
    pool.release([second], 1)
    assert counts(pool) == (2, 0, 1, 0)
    assert pool.find_prefix([digest]) == [first]
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
            pool.seal(block, chain_digest(ROOT, [owner, i]))
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
    pool.seal(block, chain_digest(ROOT, [1]))
    for owner in (2, 2, 3):
        pool.share(block, owner)
    holders = [1, 2, 2, 3]
    for gone in (1, 2, 2):
        pool.release([block], gone)
        holders.remove(gone)
        pool.check([(owner, [block]) for owner in holders])
    assert memoryview(pool.snapshot().owners).cast("H")[block] == 3
    assert counts(pool) == (1, 0, 1, 0)


@pytest.mark.parametrize("num_blocks", [1, 4, 33])
def test_random_operations_keep_every_invariant(num_blocks: int) -> None:
    rng = random.Random(num_blocks)
    pool = BlockPool(num_blocks, 4)
    tables: list[tuple[int, list[int]]] = []  # (owner, blocks)
    for step in range(4000):
        action, owner = rng.randrange(5), step % 50
        if action == 0 and pool.num_available:
            block = pool.allocate(owner)
            if rng.random() < 0.7:
                pool.seal(block, chain_digest(ROOT, [rng.randrange(3 * num_blocks)]))
            tables.append((owner, [block]))
        elif action == 1 and tables:
            holder, blocks = tables.pop(rng.randrange(len(tables)))
            pool.release(blocks, holder)
        elif action == 2:
            for block in pool.find_prefix([chain_digest(ROOT, [rng.randrange(3 * num_blocks)])]):
                pool.share(block, owner)
                tables.append((owner, [block]))
        elif action == 3 and tables and pool.num_available:
            holder, blocks = tables[rng.randrange(len(tables))]
            blocks.append(pool.allocate(holder))
        elif action == 4 and rng.random() < 0.02:
            pool.drop_cached(rng.choice([None, owner]))
        pool.check(tables)
        assert sum(counts(pool)) == num_blocks
