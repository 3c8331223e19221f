"""Tables: the block tables of sequences: what they start from, grow by, copy, and give back.

Blocks that several sequences read are never written. Full ones need not be; a part-filled one at
the end is copied before the first write (copy-on-write).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from engine.blocks import BlockPool
from engine.layer_groups import group_size
from engine.prefix import Digest
from engine.sequence import GONE, Sequence

Copies = dict[int, int]  # target block -> source block


@dataclass(slots=True)
class Start:
    """Blocks with content that a sequence can go on from. The last one may be its own only in
    part: `num_tokens` says how far."""

    num_tokens: int = 0
    tables: list[list[int]] = field(default_factory=list)
    diverged_at: int | None = None

    @property
    def blocks(self) -> list[int]:
        return [block for table in self.tables for block in table if block != GONE]


class Tables:
    """Moves blocks between one pool and its sequences."""

    def __init__(self, pool: BlockPool, root: Digest) -> None:
        self.pool = pool
        self._root = root
        self._size = pool.block_tokens
        self._num_groups = len(pool.groups)

    # --- where to start ---------------------------------------------------------------------------

    def nothing(self) -> Start:
        return Start(tables=[[] for _ in self.pool.groups])

    def cached_start(self, sequence: Sequence, with_tail: bool = True) -> Start:
        """The longest beginning of the sequence that the pool still holds. At least one token is
        left to compute."""
        if not sequence.use_prefix_cache:
            return self.nothing()
        size, index = self._size, self.pool.index
        whole = (sequence.num_tokens - 1) // size
        digests = sequence.digests_up_to(whole, size, self._root)
        num_full = index.longest(digests)
        parent = digests[num_full - 1] if num_full else self._root
        rest = sequence.token_ids[
            num_full * size : min(num_full * size + size, sequence.num_tokens)
        ]
        tail = index.tail(parent, rest)
        start = self._named(digests[:num_full], num_full * size)
        if tail is None:
            return start
        if tail.num_tokens < len(rest):
            start.diverged_at = num_full * size + tail.num_tokens
        num_same = min(tail.num_tokens, size - 1, sequence.num_tokens - 1 - num_full * size)
        if with_tail and num_same > 0:
            longer = self._named([*digests[:num_full], tail.digest], num_full * size + num_same)
            longer.diverged_at = start.diverged_at
            return longer if longer.num_tokens else start
        return start

    def _named(self, digests: Items[Digest], num_tokens: int) -> Start:
        """The blocks of these names, as far as each group still needs them; nothing when one is
        missing."""
        start = Start(num_tokens)
        for number, group in enumerate(self.pool.groups):
            first = group.first_block(num_tokens, self._size)
            blocks = [self.pool.index.block(number, digest) for digest in digests[first:]]
            found = [block for block in blocks if block is not None]
            if len(found) < len(blocks):
                return self.nothing()
            start.tables.append([GONE] * min(first, len(digests)) + found)
        return start

    def forked_start(self, parent: Sequence, num_tokens: int) -> Start | None:
        """The first `num_tokens` tokens of a running sequence; None where blocks that they need
        have left its window already."""
        start = Start(num_tokens)
        num_blocks = self.pool.blocks_for(num_tokens)
        for number, group in enumerate(self.pool.groups):
            first = group.first_block(num_tokens, self._size)
            if first < parent.num_gone[number]:
                return None
            table = parent.block_tables[number]
            start.tables.append([GONE] * first + table[first:num_blocks])
        return start

    def begin(self, sequence: Sequence, start: Start) -> None:
        """The sequence takes the blocks of its start as one more owner."""
        for block in start.blocks:
            self.pool.share(block, sequence.owner)
        sequence.block_tables = start.tables
        sequence.num_gone = [table.count(GONE) for table in start.tables]
        sequence.num_computed = start.num_tokens

    # --- growth -----------------------------------------------------------------------------------

    def tail_room(self, sequence: Sequence) -> int:
        """Slots of the last block that have no token."""
        return sequence.num_logical * self._size - sequence.num_computed

    def _shared_tails(self, sequence: Sequence) -> int:
        """Part-filled last blocks that others hold as well: each must be copied before a write."""
        index, filled = divmod(sequence.num_computed, self._size)
        if not filled:
            return 0
        tails = (table[index] for table in sequence.block_tables)
        return sum(1 for block in tails if self.pool.num_owners(block) > 1)

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the next `num_tokens` tokens need and the sequence does not have."""
        wanted = self.pool.blocks_for(sequence.num_computed + num_tokens)
        new = max(0, wanted - sequence.num_logical) * self._num_groups
        return new + self._shared_tails(sequence)

    def room(self, sequence: Sequence, with_kept: bool) -> int:
        """Tokens that fit now without anybody giving up a block; with or without pinned ones."""
        available = self.pool.num_available + (self.pool.num_kept if with_kept else 0)
        available -= self._shared_tails(sequence)
        if available < 0:
            return 0
        return available // self._num_groups * self._size + self.tail_room(sequence)

    def needed(self, sequence: Sequence, start: Start, step_tokens: int) -> int:
        """Blocks that a sequence takes, besides those of its start, to read all it has."""
        size, num_blocks = self._size, self.pool.blocks_for(sequence.num_tokens)
        part = int(start.num_tokens % size > 0)  # a part-filled block is copied
        total = 0
        for group, table in zip(self.pool.groups, start.tables, strict=True):
            gone = table.count(GONE)
            most = group.most_blocks(sequence.num_tokens, step_tokens, size)
            total += max(part, min(num_blocks - gone, most) - (len(table) - gone - part))
        return total

    def take(self, sequence: Sequence, num_tokens: int, copies: Copies) -> None:
        """Blocks for the next `num_tokens` tokens. What must be copied first goes to `copies`."""
        wanted = self.pool.blocks_for(sequence.num_computed + num_tokens)
        new = max(0, wanted - sequence.num_logical) * self._num_groups
        self._own_tails(sequence, new, copies)
        for number, table in enumerate(sequence.block_tables):
            while len(table) < wanted:
                table.append(self.pool.allocate(sequence.owner, number))
        sequence.peak_blocks = max(sequence.peak_blocks, sequence.num_held)

    def _own_tails(self, sequence: Sequence, num_new: int, copies: Copies) -> None:
        """Make the part-filled last blocks writable. One that is named but read by nobody else is
        copied while there is room, so that its content stays cached, else it loses its name."""
        pool = self.pool
        index, filled = divmod(sequence.num_computed, self._size)
        if not filled:
            return
        for number, table in enumerate(sequence.block_tables):
            block = table[index]
            if pool.is_writable(block):
                continue
            if pool.num_owners(block) == 1 and pool.num_available <= num_new:
                pool.unseal(block)
                continue
            table[index] = own = pool.allocate(sequence.owner, number)
            pool.set_filled(own, filled)
            # The source may be a target of this very step, whose content is not there yet.
            copies[own] = copies.get(block, block)
            pool.num_copies += 1
            pool.release([block], sequence.owner)

    # --- after a step, and the end ----------------------------------------------------------------

    def commit(self, sequence: Sequence, num_tokens: int, fork_tokens: int | None = None) -> None:
        """K and V of the next `num_tokens` tokens are in the pool: count them, name the blocks that
        became full, give back those that left their window. Somebody may be about to fork at
        `fork_tokens`, and sees as much further back."""
        size, before = self._size, sequence.num_computed // self._size
        self.fill(sequence, num_tokens)
        sequence.num_computed += num_tokens
        full = sequence.num_computed // size
        if full > before and sequence.use_prefix_cache:
            self._seal(sequence, before, full)
        self.leave_windows(sequence, fork_tokens)

    def fill(self, sequence: Sequence, num_tokens: int) -> None:
        """The slots of the next `num_tokens` tokens count as written."""
        size, end = self._size, sequence.num_computed + num_tokens
        for table, gone in zip(sequence.block_tables, sequence.num_gone, strict=True):
            for index in range(max(sequence.num_computed // size, gone), len(table)):
                self.pool.set_filled(table[index], min(max(0, end - index * size), size))

    def _seal(self, sequence: Sequence, first: int, stop: int) -> None:
        digests = sequence.digests_up_to(stop, self._size, self._root)
        for index in range(first, stop):
            parent = digests[index - 1] if index else self._root
            tokens = sequence.token_ids[index * self._size : (index + 1) * self._size]
            for table in sequence.block_tables:
                self.pool.seal(table[index], digests[index], parent, tokens)

    def leave_windows(self, sequence: Sequence, num_tokens: int | None = None) -> bool:
        """Give back what the token behind `num_tokens` (all that are computed) does not see any
        more; True when there was something."""
        if num_tokens is None:
            num_tokens = sequence.num_computed
        found = False
        for number, group in enumerate(self.pool.groups):
            table, gone = sequence.block_tables[number], sequence.num_gone[number]
            first = group.first_block(num_tokens, self._size)
            if first > gone:
                self.pool.release(table[gone:first], sequence.owner)
                table[gone:first] = [GONE] * (first - gone)
                sequence.num_gone[number] = first
                found = True
        return found

    def give_back(self, sequence: Sequence) -> None:
        """All blocks of all groups, deepest first."""
        for table, gone in zip(sequence.block_tables, sequence.num_gone, strict=True):
            self.pool.release(table[gone:], sequence.owner)
        sequence.block_tables, sequence.num_gone = [], []
        sequence.num_computed = 0

    def cut(self, sequence: Sequence) -> None:
        """Give back the blocks beyond the computed tokens: their step did not happen."""
        keep = self.pool.blocks_for(sequence.num_computed)
        for table in sequence.block_tables:
            self.pool.release(table[keep:], sequence.owner)
            del table[keep:]
        if sequence.num_computed % self._size:  # the last one may have been filled already
            self.fill(sequence, 0)

    def named_blocks(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Blocks that hold the first `num_tokens` tokens under their names, whoever has them now,
        as far as a sequence that goes on from there needs them."""
        if not sequence.use_prefix_cache:
            return []
        num_full = min(num_tokens, sequence.num_computed) // self._size
        digests = sequence.digests_up_to(num_full, self._size, self._root)
        found: list[int] = []
        for number, group in enumerate(self.pool.groups):
            first = group.first_block(num_full * self._size, self._size)
            blocks = (self.pool.index.block(number, digest) for digest in digests[first:])
            found += [block for block in blocks if block is not None]
        return found

    # --- figures ----------------------------------------------------------------------------------

    def slots(self, running: Items[Sequence]) -> tuple[float, int]:
        """(written, held) slots of all running sequences; a shared block counts once, and a token
        that has left its window is as good as none."""
        written, held = self.pool.slots()
        return written - sum(self._gone_slots(running)), held

    def _gone_slots(self, running: Items[Sequence]) -> list[float]:
        size = group_size(self.pool.groups)
        gone: dict[int, float] = {}
        for number, group in enumerate(self.pool.groups):
            if not group.window:
                continue
            for one in running:
                table, first = one.block_tables[number], one.num_gone[number]
                slots = group.tokens_gone(one.num_computed) - first * self._size
                if slots and first < len(table):
                    share = slots * len(group.layers) / size
                    gone[table[first]] = min(share, gone.get(table[first], share))
        return list(gone.values())

    def count_waste(self, sequence: Sequence) -> None:
        """Add the present step to the sequence's own sums."""
        size = group_size(self.pool.groups)
        for number, group in enumerate(self.pool.groups):
            held = sequence.num_logical - sequence.num_gone[number]
            used = sequence.num_computed - group.tokens_gone(sequence.num_computed)
            sequence.sum_held += held * self._size
            sequence.sum_written += used * len(group.layers) / size

    # --- proof ------------------------------------------------------------------------------------

    def check(self, sequence: Sequence, num_held: int, num_late: int) -> None:
        """Assert the invariants of one running sequence's tables.

        Args:
            num_held: tokens that have their slots but are not computed wholly.
            num_late: tokens computed since blocks may have left a window.
        """
        size = self._size
        assert 0 <= self.tail_room(sequence) - num_held < size, sequence
        assert {len(table) for table in sequence.block_tables} == {sequence.num_logical}
        late = sequence.num_computed - num_late
        for group, table, gone in zip(
            self.pool.groups, sequence.block_tables, sequence.num_gone, strict=True
        ):
            assert group.first_block(late, size) <= gone, (sequence, group)
            assert gone <= group.first_block(sequence.num_computed, size), (sequence, group)
            assert all((block < 0) == (i < gone) for i, block in enumerate(table))
