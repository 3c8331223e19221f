"""OwnerNumbers: which number, and so which colour, the blocks of a chat carry. No Qt."""

from __future__ import annotations

import numpy as np

from engine.messages import BlockState, PoolSnapshot


class OwnerNumbers:
    """Gives each chat the lowest number that no block carries and no other chat holds.

    A chat keeps its number while any block carries it, so colours are stable over turns. Numbers
    above 63 are given as well; views take them mod 64 and name the chat beside the colour.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}  # session id -> number
        self._carried: frozenset[int] = frozenset()
        self._fills: dict[int, int] = {}

    def number(self, session_id: str) -> int | None:
        return self._held.get(session_id)

    def take(self, session_id: str) -> int:
        """The number of a chat that is about to hold blocks."""
        if session_id not in self._held:
            taken = self._carried.union(self._held.values())
            self._held[session_id] = next(n for n in range(len(taken) + 1) if n not in taken)
        return self._held[session_id]

    def release(self, session_id: str) -> None:
        """The chat is gone; its number is given out again once no block carries it."""
        self._held.pop(session_id, None)

    def clear(self) -> None:
        """Another pool: no block carries anything."""
        self._held.clear()
        self._carried, self._fills = frozenset(), {}

    def see(self, snapshot: PoolSnapshot, busy: frozenset[str]) -> None:
        """Look at the blocks; chats that are not busy and have none left lose their number."""
        states = np.frombuffer(snapshot.states, np.uint8)
        owners = np.frombuffer(snapshot.owners, np.uint16)
        unfilled = np.frombuffer(snapshot.unfilled, np.uint8)
        self._carried = frozenset(np.unique(owners[states != BlockState.FREE]).tolist())
        writing = (states == BlockState.ACTIVE) & (unfilled > 0)
        filled = snapshot.block_tokens - unfilled[writing].astype(int)
        self._fills = dict(zip(owners[writing].tolist(), filled.tolist(), strict=True))
        for session_id, number in list(self._held.items()):
            if number not in self._carried and session_id not in busy:
                del self._held[session_id]

    def has_blocks(self, session_id: str) -> bool:
        return self._held.get(session_id) in self._carried

    def fill(self, session_id: str, block_tokens: int) -> int:
        """Filled slots of the block that the chat writes; full when none is half-filled."""
        number = self._held.get(session_id)
        if number is None or number not in self._carried:
            return 0
        return self._fills.get(number, block_tokens)
