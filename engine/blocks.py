"""BlockPool: who holds which physical block. Owns free list, reference counts and prefix digests.

Allocate, share, release, revive and evict are O(1) whatever the size of the pool: FREE blocks are
a stack, CACHED ones an ordered dictionary whose front is the least recently used.
Paging after Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023).
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items

from engine.messages import NO_OWNER, BlockState, PoolSnapshot

Digest = bytes  # 16 bytes: names a full block's tokens and everything before them


def root_digest(key: str) -> Digest:
    """Start of every chain of digests. `key` names all that changes K and V besides the tokens."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def chain_digest(parent: Digest, token_ids: Items[int]) -> Digest:
    """Digest of a full block with these tokens whose predecessors have the digest `parent`.

    A cryptographic hash: a collision would show one chat's text to another.
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockPool:
    """The physical blocks of one pool.

    States follow from two facts per block, its number of owners and whether a digest names its
    content: FREE (0, no), CACHED (0, yes), ACTIVE (1), SHARED (2 or more).
    """

    def __init__(self, num_blocks: int, block_tokens: int, block_bytes: int = 0) -> None:
        assert num_blocks > 0
        assert block_tokens > 0
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.version = 0  # grows with every change, so that a snapshot is made only when needed
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack; block 0 is taken first
        self._cached: OrderedDict[int, None] = OrderedDict()  # front = evicted next
        self._num_owners = [0] * num_blocks
        self._digest: list[Digest | None] = [None] * num_blocks
        self._block_of: dict[Digest, int] = {}
        self._states = bytearray(num_blocks)
        self._owners = array("H", [NO_OWNER]) * num_blocks
        self._sharers: dict[int, dict[int, int]] = {}  # SHARED block -> owner -> references
        self._unfilled = bytearray([0]) * num_blocks
        self._num_shared = 0
        self._num_saved = 0

    # --- queries ------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: FREE ones, then CACHED ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    @property
    def num_shared(self) -> int:
        return self._num_shared

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def state(self, block: int) -> BlockState:
        return BlockState(self._states[block])

    def num_owners(self, block: int) -> int:
        return self._num_owners[block]

    def counts(self) -> dict[BlockState, int]:
        return {
            BlockState.FREE: self.num_free,
            BlockState.CACHED: self.num_cached,
            BlockState.ACTIVE: self.num_used - self._num_shared,
            BlockState.SHARED: self._num_shared,
        }

    def find_prefix(self, digests: Items[Digest]) -> list[int]:
        """Blocks of the longest prefix of `digests` that the pool still holds. Changes nothing."""
        found: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_cached_among(self, blocks: Items[int]) -> int:
        """How many of these are CACHED, so that sharing them takes from what is available."""
        return sum(1 for block in blocks if self._num_owners[block] == 0)

    # --- changes ------------------------------------------------------------------------------

    def allocate(self, owner: int) -> int:
        """A block with one owner and no content; evicts the least recently used CACHED block when
        none is FREE. The caller has checked `num_available`."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget_digest(block)
        self._num_owners[block] = 1
        self._owners[block] = owner
        self._states[block] = BlockState.ACTIVE
        self._unfilled[block] = min(self.block_tokens, 255)
        self.version += 1
        return block

    def share(self, block: int, owner: int) -> None:
        """One more owner for a block with content; revives it when it is CACHED."""
        if self._num_owners[block] == 0:
            del self._cached[block]
            self._owners[block] = owner
            self._states[block] = BlockState.ACTIVE
        else:
            self._num_saved += 1
            if self._num_owners[block] == 1:
                self._num_shared += 1
                self._states[block] = BlockState.SHARED
                self._sharers[block] = {self._owners[block]: 1}
            sharers = self._sharers[block]
            sharers[owner] = sharers.get(owner, 0) + 1
        self._num_owners[block] += 1
        self.version += 1

    def release(self, blocks: Items[int], owner: int) -> None:
        """`owner` gives the blocks of a table back. Deepest first, so that of one sequence the
        deepest block is the next to be evicted: a prefix is worth more than what follows it."""
        for block in reversed(blocks):
            self._release_one(block, owner)
        self.version += 1

    def _release_one(self, block: int, owner: int) -> None:
        left = self._num_owners[block] = self._num_owners[block] - 1
        assert left >= 0, f"block {block} released more often than it was taken"
        if left:
            self._num_saved -= 1
            self._unshare(block, owner, left)
        elif self._digest[block] is not None:
            self._cached[block] = None
            self._states[block] = BlockState.CACHED
        else:
            self._set_free(block)

    def _unshare(self, block: int, owner: int, left: int) -> None:
        """The block shows the number of one who still holds it."""
        sharers = self._sharers[block]
        sharers[owner] -= 1
        if not sharers[owner]:
            del sharers[owner]
            if self._owners[block] == owner:
                self._owners[block] = next(iter(sharers))
        if left == 1:
            self._num_shared -= 1
            self._states[block] = BlockState.ACTIVE
            del self._sharers[block]

    def seal(self, block: int, digest: Digest) -> None:
        """A full block becomes findable under its digest. Where another block already has it, this
        one stays without a name and is FREE when released."""
        if digest not in self._block_of and self._digest[block] is None:
            self._block_of[digest] = block
            self._digest[block] = digest

    def set_filled(self, block: int, num_filled: int) -> None:
        self._unfilled[block] = min(self.block_tokens - num_filled, 255)
        self.version += 1

    def drop_cached(self, owner: int | None = None) -> int:
        """CACHED blocks of one owner, or all, become FREE. Returns how many."""
        blocks = [b for b in self._cached if owner is None or self._owners[b] == owner]
        for block in blocks:
            del self._cached[block]
            self._forget_digest(block)
            self._set_free(block)
        self.version += 1
        return len(blocks)

    def _forget_digest(self, block: int) -> None:
        digest = self._digest[block]
        assert digest is not None
        del self._block_of[digest]
        self._digest[block] = None

    def _set_free(self, block: int) -> None:
        self._free.append(block)
        self._states[block] = BlockState.FREE
        self._owners[block] = NO_OWNER
        self._unfilled[block] = 0

    # --- picture and proof ----------------------------------------------------------------------

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(
            num_blocks=self.num_blocks,
            block_tokens=self.block_tokens,
            block_bytes=self.block_bytes,
            states=bytes(self._states),
            owners=self._owners.tobytes(),
            unfilled=bytes(self._unfilled),
            num_saved_by_sharing=self._num_saved,
            time_s=time.monotonic(),
        )

    def check(self, tables: Items[tuple[int, Items[int]]] | None = None) -> None:
        """Assert every invariant. With `tables`, all block tables in use and whose they are, also
        that each reference is explained by one of them, and each colour by one who holds it."""
        assert len(set(self._free)) == len(self._free)
        assert len(self._free) + len(self._cached) + sum(1 for n in self._num_owners if n) == (
            self.num_blocks
        ), self.counts()
        for block in self._free:
            assert self._num_owners[block] == 0
            assert self._digest[block] is None
            assert self._states[block] == BlockState.FREE
        for block in self._cached:
            assert self._num_owners[block] == 0
            assert self._digest[block] is not None
            assert self._states[block] == BlockState.CACHED
        for block, owners in enumerate(self._num_owners):
            if owners:
                wanted = BlockState.ACTIVE if owners == 1 else BlockState.SHARED
                assert self._states[block] == wanted, (block, owners)
        assert self._num_shared == sum(1 for n in self._num_owners if n > 1)
        assert self._num_saved == sum(n - 1 for n in self._num_owners if n > 1)
        assert len(self._block_of) == sum(1 for d in self._digest if d is not None)
        assert all(self._digest[b] == d for d, b in self._block_of.items())
        assert {b for b, n in enumerate(self._num_owners) if n > 1} == self._sharers.keys()
        if tables is not None:
            holders: list[list[int]] = [[] for _ in range(self.num_blocks)]
            for owner, table in tables:
                for block in table:
                    holders[block].append(owner)
            assert [len(holding) for holding in holders] == self._num_owners
            for block, holding in enumerate(holders):
                assert not holding or self._owners[block] in holding, (block, holding)
