"""Pins: which chats the user wants kept in memory, and that the engine knows."""

from __future__ import annotations

from contextlib import suppress

from app.bridge import EngineBridge
from app.owners import OwnerNumbers
from engine.errors import EngineStoppedError
from engine.messages import Pin, Unpin


class Pins:
    """For this run of the application. A pinned chat keeps its owner number even while no block
    carries it: given to another chat, that one would be pinned."""

    def __init__(self, bridge: EngineBridge, owners: OwnerNumbers) -> None:
        self._bridge = bridge
        self._owners = owners
        self._pinned: set[str] = set()  # session ids

    @property
    def session_ids(self) -> frozenset[str]:
        return frozenset(self._pinned)

    def add(self, session_id: str, has_pool: bool) -> None:
        """Keep what this chat has and will have. Without a pool `tell_all` says so later."""
        if session_id not in self._pinned:
            self._pinned.add(session_id)
            if has_pool:
                self._send(Pin(self._owners.take(session_id)))

    def remove(self, session_id: str) -> None:
        if session_id in self._pinned:
            self._pinned.remove(session_id)
            owner = self._owners.number(session_id)
            if owner is not None:
                self._send(Unpin(owner))

    def tell_all(self) -> None:
        """Another pool is there, which knows of no pin."""
        for session_id in sorted(self._pinned):
            self._send(Pin(self._owners.take(session_id)))

    def _send(self, command: Pin | Unpin) -> None:
        with suppress(EngineStoppedError):  # the pool has gone with the engine
            self._bridge.send(command)
