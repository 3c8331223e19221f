"""BlockPool: who holds which physical block. Owns free list, reference counts, names and pins.

Allocate, share, release, revive and evict are O(1) whatever the size of the pool: FREE blocks are
a stack, CACHED ones an ordered dictionary whose front is the least recently used.
Paging after Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (SOSP 2023).
"""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items

from engine.layer_groups import ONE_GROUP, LayerGroup, group_size
from engine.messages import NO_OWNER, BlockState, PoolSnapshot
from engine.prefix import Digest, PrefixIndex


class BlockPool:
    """The physical blocks of one pool.

    States follow from two facts per block, its number of owners and whether a digest names its
    content: FREE (0, no), CACHED (0, yes), ACTIVE (1), SHARED (2 or more). Of the CACHED blocks
    those that an owner pinned are evicted only when no other is left.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        block_bytes: int = 0,
        groups: Items[LayerGroup] = ONE_GROUP,
    ) -> None:
        assert num_blocks > 0
        assert block_tokens > 0
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.groups = tuple(groups)
        self.index = PrefixIndex(groups, block_tokens, num_blocks)
        self.version = 0  # grows with every change, so that a snapshot is made only when needed
        self.num_copies = 0  # blocks copied before a write, since the start
        self._free = array("i", range(num_blocks - 1, -1, -1))  # a stack; block 0 is taken first
        self._cached: OrderedDict[int, None] = OrderedDict()  # front = evicted next
        self._kept: OrderedDict[int, None] = OrderedDict()  # CACHED and pinned, likewise
        self._num_owners = array("i", [0]) * num_blocks
        self._digest: list[Digest | None] = [None] * num_blocks
        self._states = bytearray(num_blocks)
        self._owners = array("H", [NO_OWNER]) * num_blocks
        self._group = bytearray(num_blocks)
        self._filled = array("H", [0]) * num_blocks
        self._unfilled = bytearray(num_blocks)
        self._sharers: dict[int, dict[int, int]] = {}  # SHARED block -> owner -> references
        self._pins: dict[int, set[int]] = {}  # block -> owners who pinned it
        self._pinned_by: dict[int, set[int]] = {}  # owner -> blocks
        self._num_held = [0] * len(self.groups)  # ACTIVE and SHARED blocks
        self._num_written = [0] * len(self.groups)  # their slots with a token
        self._num_shared = 0
        self._num_saved = 0

    # --- queries ------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """CACHED blocks, the pinned ones included."""
        return len(self._cached) + len(self._kept)

    @property
    def num_kept(self) -> int:
        """CACHED blocks that are pinned."""
        return len(self._kept)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out without touching a pinned one."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - self.num_cached

    @property
    def num_shared(self) -> int:
        return self._num_shared

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of one group."""
        return -(-num_tokens // self.block_tokens)

    def most_blocks(self, num_tokens: int, step_tokens: int = 1) -> int:
        """Blocks of all groups that a sequence of so many tokens needs at the same time."""
        size = self.block_tokens
        return sum(group.most_blocks(num_tokens, step_tokens, size) for group in self.groups)

    def most_tokens(self) -> int:
        """The longest sequence that the whole pool holds."""
        low, high = 0, 1 << 31  # low fits, high does not, unless every group has a window
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.most_blocks(middle) <= self.num_blocks
            low, high = (middle, high) if fits else (low, middle)
        return low

    def state(self, block: int) -> BlockState:
        return BlockState(self._states[block])

    def num_owners(self, block: int) -> int:
        return self._num_owners[block]

    def is_writable(self, block: int) -> bool:
        """Whether its one owner may write: nobody else reads it, and no digest vouches for it."""
        return self._num_owners[block] == 1 and self._digest[block] is None

    def counts(self) -> dict[BlockState, int]:
        return {
            BlockState.FREE: self.num_free,
            BlockState.CACHED: self.num_cached,
            BlockState.ACTIVE: self.num_used - self._num_shared,
            BlockState.SHARED: self._num_shared,
        }

    def num_cached_among(self, blocks: Items[int], with_kept: bool = False) -> int:
        """How many of these are CACHED and not pinned (or either): sharing them takes from what
        can be handed out."""
        cached = sum(1 for block in blocks if block in self._cached)
        return cached + (sum(1 for block in blocks if block in self._kept) if with_kept else 0)

    def cached_of(self, owner: int) -> list[int]:
        """CACHED blocks whose last owner this was. Looks at every block."""
        return [b for c in (self._cached, self._kept) for b in c if self._owners[b] == owner]

    def slots(self) -> tuple[float, int]:
        """(written, held) slots of ACTIVE and SHARED blocks, each block once. A slot of a group
        with fewer layers than a block has room for is written in part only."""
        size = group_size(self.groups)
        written = sum(
            number * len(group.layers) / size
            for number, group in zip(self._num_written, self.groups, strict=True)
        )
        return written, sum(self._num_held) * self.block_tokens

    # --- changes ------------------------------------------------------------------------------

    def allocate(self, owner: int, group: int = 0) -> int:
        """A block with one owner and no content; evicts the least recently used CACHED block when
        none is FREE, a pinned one last. The caller has checked that there is one."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = (self._cached or self._kept).popitem(last=False)
            self._forget(block)
        self._num_owners[block] = 1
        self._owners[block] = owner
        self._group[block] = group
        self._states[block] = BlockState.ACTIVE
        self._filled[block] = 0
        self._unfilled[block] = min(self.block_tokens, 255)
        self._num_held[group] += 1
        self.version += 1
        return block

    def share(self, block: int, owner: int) -> None:
        """One more owner for a block with content; revives it when it is CACHED."""
        if self._num_owners[block] == 0:
            del (self._kept if block in self._pins else self._cached)[block]
            self._owners[block] = owner
            self._states[block] = BlockState.ACTIVE
            group = self._group[block]
            self._num_held[group] += 1
            self._num_written[group] += self._filled[block]
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
            return
        group = self._group[block]
        self._num_held[group] -= 1
        self._num_written[group] -= self._filled[block]
        if self._digest[block] is None:
            self._set_free(block)
        else:
            (self._kept if block in self._pins else self._cached)[block] = None
            self._states[block] = BlockState.CACHED

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

    def seal(self, block: int, digest: Digest, parent: Digest, tokens: Items[int]) -> None:
        """A full block becomes findable under its digest. Where another block already has it, this
        one stays without a name and is FREE when released."""
        if self._digest[block] is None and self.index.add(
            self._group[block], block, digest, parent, tokens
        ):
            self._digest[block] = digest

    def unseal(self, block: int) -> None:
        """The block loses its name, so that its one owner may write into it."""
        if self._digest[block] is not None:
            self._forget(block)

    def set_filled(self, block: int, num_filled: int) -> None:
        """So many slots of a block that is held have a token."""
        self._num_written[self._group[block]] += num_filled - self._filled[block]
        self._filled[block] = num_filled
        self._unfilled[block] = min(self.block_tokens - num_filled, 255)
        self.version += 1

    def drop_cached(self, owner: int | None = None) -> int:
        """CACHED blocks of one owner, or all, become FREE, pinned or not. Returns how many."""
        blocks = [*self._cached, *self._kept] if owner is None else self.cached_of(owner)
        for block in blocks:
            del (self._kept if block in self._pins else self._cached)[block]
            self._forget(block)
            self._set_free(block)
        self.version += 1
        return len(blocks)

    def _forget(self, block: int) -> None:
        """The block's content can no longer be found; nobody can have it pinned any more."""
        digest = self._digest[block]
        assert digest is not None
        self.index.remove(self._group[block], block, digest)
        self._digest[block] = None
        for owner in self._pins.pop(block, ()):
            self._unpinned(owner, block)

    def _set_free(self, block: int) -> None:
        self._free.append(block)
        self._states[block] = BlockState.FREE
        self._owners[block] = NO_OWNER
        self._group[block] = 0
        self._filled[block] = 0
        self._unfilled[block] = 0

    # --- pins ---------------------------------------------------------------------------------

    def pin(self, blocks: Items[int], owner: int) -> None:
        """Exactly these blocks, those of them that have a name, are pinned for `owner` now; others
        that were are no longer."""
        wanted = {block for block in blocks if self._digest[block] is not None}
        for block in self._pinned_by.get(owner, set()) - wanted:
            self._pins[block].discard(owner)
            if not self._pins[block]:
                del self._pins[block]
                if block in self._kept:
                    del self._kept[block]
                    self._cached[block] = None
            self._unpinned(owner, block)
        for block in wanted:
            if block in self._cached:
                del self._cached[block]
                self._kept[block] = None
            self._pins.setdefault(block, set()).add(owner)
        if wanted:
            self._pinned_by[owner] = wanted
        self.version += 1

    def _unpinned(self, owner: int, block: int) -> None:
        blocks = self._pinned_by[owner]
        blocks.discard(block)
        if not blocks:
            del self._pinned_by[owner]

    # --- picture and proof ----------------------------------------------------------------------

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot(
            num_blocks=self.num_blocks,
            block_tokens=self.block_tokens,
            block_bytes=self.block_bytes,
            states=bytes(self._states),
            owners=self._owners.tobytes(),
            unfilled=bytes(self._unfilled),
            groups=bytes(self._group) if len(self.groups) > 1 else b"",
            num_groups=len(self.groups),
            num_saved_by_sharing=self._num_saved,
            num_copies=self.num_copies,
            num_pinned=len(self._pins),
            time_s=time.monotonic(),
        )

    def check_idle(self) -> None:
        """Assert, in no time, that nobody holds a block and that the counts agree."""
        assert self.num_used == 0, self.counts()
        assert self._num_shared == self._num_saved == len(self._sharers) == 0, self.counts()
        assert not any(self._num_held), self._num_held
        assert not any(self._num_written), self._num_written

    def check(self, tables: Items[tuple[int, Items[int]]] | None = None) -> None:
        """Assert every invariant. With `tables`, all block tables in use and whose they are, also
        that each reference is explained by one of them, and each colour by one who holds it."""
        self._check_states()
        self._check_pins()
        names = [(self._group[b], b, d) for b, d in enumerate(self._digest) if d is not None]
        self.index.check(names)
        held = [block for block, owners in enumerate(self._num_owners) if owners]
        for number in range(len(self.groups)):
            own = [block for block in held if self._group[block] == number]
            assert self._num_held[number] == len(own)
            assert self._num_written[number] == sum(self._filled[block] for block in own)
        if tables is not None:
            holders: list[list[int]] = [[] for _ in range(self.num_blocks)]
            for owner, table in tables:
                for block in table:
                    holders[block].append(owner)
            assert [len(holding) for holding in holders] == list(self._num_owners)
            for block, holding in enumerate(holders):
                assert not holding or self._owners[block] in holding, (block, holding)

    def _check_states(self) -> None:
        owners = self._num_owners
        listed = [*self._free, *self._cached, *self._kept]
        assert len(set(listed)) == len(listed)
        assert len(listed) + sum(1 for n in owners if n) == self.num_blocks, self.counts()
        for block in range(self.num_blocks):
            named = self._digest[block] is not None
            wanted = min(owners[block], 2) + 1 if owners[block] else int(named)
            assert self._states[block] == wanted, (block, owners[block], named)
            if named:
                assert self._filled[block] == self.block_tokens
        assert all(self._states[block] == BlockState.FREE for block in self._free)
        assert self._num_shared == sum(1 for n in owners if n > 1)
        assert self._num_saved == sum(n - 1 for n in owners if n > 1)
        assert {b for b, n in enumerate(owners) if n > 1} == self._sharers.keys()

    def _check_pins(self) -> None:
        pairs = {(owner, block) for block, several in self._pins.items() for owner in several}
        assert pairs == {(o, block) for o, blocks in self._pinned_by.items() for block in blocks}
        assert all(self._pins.values())
        assert all(self._digest[block] is not None for block in self._pins)
        assert all(block in self._pins for block in self._kept)
        assert not any(block in self._pins for block in self._cached)
