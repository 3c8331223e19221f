"""PoolModel: the latest picture of the blocks, and the figures that the memory panel shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QObject, Signal

from engine.messages import NO_OWNER, BlockState, PoolSnapshot

OWNER_NUMBERS = 64
NUM_STATES = 4
# Bytes of the indexed picture that belong to no owner: three of the 64 "free" entries.
FREE_INDEX, DIMMED_INDEX, WELL_INDEX = 0, 4, 8

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Blocks by state; together they are the pool."""

    free: int = 0
    cached: int = 0
    active: int = 0
    shared: int = 0

    @property
    def total(self) -> int:
        return self.free + self.cached + self.active + self.shared


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What one owner number holds: `in_use` blocks (active and shared) and `cached` ones."""

    owner: int
    in_use: int
    cached: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block. `owner` is None when it is free; `filled` counts slots that hold a token."""

    number: int
    state: BlockState
    owner: int | None
    filled: int
    block_tokens: int
    group: int = 0  # layer group, from 0
    num_groups: int = 1


class PoolModel(QObject):
    """Latest picture of the pool.

    Attributes:
        snapshot: what the engine sent last; None while no model is loaded.
        version: grows with every snapshot, so that painters know what they drew.

    Signals:
        changed: a newer snapshot is in `snapshot`.
        filter_changed: `filter_owner` is another one.
    """

    changed = Signal()
    filter_changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.version = 0
        self._filter_owner: int | None = None
        self._take(None)

    def set_snapshot(self, snapshot: PoolSnapshot | None) -> None:
        """Show this picture. None: there is no pool.

        Raises:
            ValueError: the byte strings do not have one entry per block.
        """
        self._take(snapshot)
        self.version += 1
        self.changed.emit()

    def _take(self, snapshot: PoolSnapshot | None) -> None:
        states = np.frombuffer(snapshot.states if snapshot else b"", np.uint8)  # [num_blocks]
        owners = np.frombuffer(snapshot.owners if snapshot else b"", np.uint16)
        unfilled = np.frombuffer(snapshot.unfilled if snapshot else b"", np.uint8)
        groups = np.frombuffer(snapshot.groups if snapshot else b"", np.uint8)  # or none at all
        num_blocks = snapshot.num_blocks if snapshot else 0
        if len(groups) not in (0, num_blocks):
            raise ValueError(f"snapshot of {num_blocks} blocks has {len(groups)} layer groups")
        if {len(states), len(owners), len(unfilled)} != {num_blocks}:
            raise ValueError(
                f"snapshot of {num_blocks} blocks has {len(states)} states,"
                f" {len(owners)} owners and {len(unfilled)} fills"
            )
        self.snapshot = snapshot
        self._states, self._owners, self._unfilled = states, owners, unfilled
        self._groups = groups
        self._num_groups = snapshot.num_groups if snapshot else 1
        self._by_state = np.bincount(states, minlength=NUM_STATES)
        # uint8 arithmetic wraps at 256, and so does the number: (owner % 64) * 4 fits exactly.
        index = (owners.astype(np.uint8) % OWNER_NUMBERS) * NUM_STATES + states
        self._index: Bytes = np.where(states == BlockState.FREE, FREE_INDEX, index).astype(np.uint8)

    @property
    def num_blocks(self) -> int:
        return self.snapshot.num_blocks if self.snapshot else 0

    @property
    def block_tokens(self) -> int:
        return self.snapshot.block_tokens if self.snapshot else 0

    @property
    def block_bytes(self) -> int:
        return self.snapshot.block_bytes if self.snapshot else 0

    @property
    def num_saved_by_sharing(self) -> int:
        return self.snapshot.num_saved_by_sharing if self.snapshot else 0

    @property
    def num_pinned(self) -> int:
        return self.snapshot.num_pinned if self.snapshot else 0

    @property
    def num_copies(self) -> int:
        return self.snapshot.num_copies if self.snapshot else 0

    @property
    def counts(self) -> PoolCounts:
        return PoolCounts(*(int(count) for count in self._by_state[:NUM_STATES]))

    @property
    def filter_owner(self) -> int | None:
        """The only owner whose blocks keep their colours; None shows all."""
        return self._filter_owner

    def set_filter_owner(self, owner: int | None) -> None:
        if owner != self._filter_owner:
            self._filter_owner = owner
            self.filter_changed.emit()

    def indexed_bytes(self) -> Bytes:
        """One byte per block, an entry of the colour table: (owner % 64) * 4 + state.

        Free blocks are FREE_INDEX; blocks that the filter hides are DIMMED_INDEX.
        """
        if self._filter_owner is None:
            return self._index
        is_hidden = (self._states != BlockState.FREE) & (self._owners != self._filter_owner)
        return np.where(is_hidden, DIMMED_INDEX, self._index).astype(np.uint8)

    def states(self) -> Bytes:
        """State of every block, [num_blocks]."""
        return self._states

    def owners(self) -> npt.NDArray[np.uint16]:
        """Owner number of every block, [num_blocks], NO_OWNER on free ones."""
        return self._owners

    def written(self) -> npt.NDArray[np.intp]:
        """Numbers of the blocks that are being written: active, with slots left."""
        is_written = (self._states == BlockState.ACTIVE) & (self._unfilled > 0)
        if self._filter_owner is not None:
            is_written &= self._owners == self._filter_owner
        return np.flatnonzero(is_written)

    def owner_rows(self) -> list[OwnerRow]:
        """One row per owner number that any block carries, by number.

        A shared block counts once, for the owner it carries: the rows add up to the pool.
        """
        held = self._states != BlockState.FREE
        is_cached = self._states == BlockState.CACHED
        all_blocks = np.bincount(self._owners[held & (self._owners != NO_OWNER)])
        cached = np.bincount(
            self._owners[is_cached & (self._owners != NO_OWNER)], minlength=len(all_blocks)
        )
        rows = []
        for owner in np.flatnonzero(all_blocks):
            total, idle = int(all_blocks[owner]), int(cached[owner])
            rows.append(OwnerRow(int(owner), total - idle, idle, total * self.block_bytes))
        return rows

    def block(self, number: int) -> BlockFacts:
        """Facts of one block.

        Raises:
            IndexError: the pool has no such block.
        """
        if not 0 <= number < self.num_blocks:
            raise IndexError(f"block {number}, the pool has {self.num_blocks}")
        state = BlockState(int(self._states[number]))
        owner = int(self._owners[number])
        is_free = state == BlockState.FREE
        filled = 0 if is_free else self.block_tokens - int(self._unfilled[number])
        has_owner = not is_free and owner != NO_OWNER
        return BlockFacts(
            number,
            state,
            owner if has_owner else None,
            filled,
            self.block_tokens,
            int(self._groups[number]) if len(self._groups) else 0,
            self._num_groups,
        )

    def owners_in(self, blocks: range) -> list[tuple[int, int]]:
        """(owner, blocks) for a run of blocks, the largest first; free blocks left out."""
        states = self._states[blocks.start : blocks.stop]
        owners = self._owners[blocks.start : blocks.stop]
        numbers, counts = np.unique(owners[states != BlockState.FREE], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(numbers[i]), int(counts[i])) for i in order if numbers[i] != NO_OWNER]

    def next_of_owner(self, number: int) -> int | None:
        """The next block after `number`, round the end, with the same owner; None: no other."""
        owner = self.block(number).owner
        if owner is None:
            return None
        mine = np.flatnonzero((self._owners == owner) & (self._states != BlockState.FREE))
        if len(mine) < 2:
            return None
        place = int(np.searchsorted(mine, number, side="right"))
        return int(mine[place % len(mine)])
