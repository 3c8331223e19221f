"""PrefixIndex: which full blocks the pool can name by their content, and how far a prompt follows.

A block's name is a digest over its tokens and all that came before them. Every layer group has its
own blocks under the same names. Standard library only.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine.layer_groups import LayerGroup

Digest = bytes  # 16 bytes: names a full block's tokens and everything before them

# Continuations of one prefix that are compared token by token, the newest ones: a prefix that ten
# thousand chats went on from in their own ways must not cost ten thousand comparisons.
MOST_CONTINUATIONS = 32


def root_digest(key: str) -> Digest:
    """Start of every chain of digests. `key` names all that changes K and V besides the tokens."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def chain_digest(parent: Digest, token_ids: Items[int]) -> Digest:
    """Digest of a full block with these tokens whose predecessors have the digest `parent`.

    A cryptographic hash: a collision would show one chat's text to another.
    """
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Tail:
    """The named block whose beginning goes on furthest where the full blocks end."""

    digest: Digest
    num_tokens: int  # of its beginning that are the same; may be 0


class PrefixIndex:
    """Owns digests and their blocks. Knows no states and no owners."""

    def __init__(self, groups: Items[LayerGroup], block_tokens: int, num_blocks: int) -> None:
        self._groups = tuple(groups)
        self._block_tokens = block_tokens
        # Flat arrays and as few objects as can be: in a pool of a million blocks what an operation
        # costs is how many places in memory it has to look at.
        self._block_of: list[dict[Digest, int]] = [{} for _ in groups]
        self._tokens = array("i", bytes(4 * block_tokens * num_blocks))  # of group 0's blocks
        self._parent: list[Digest] = [b""] * num_blocks  # likewise
        self._followers: dict[Digest, Digest | dict[Digest, None]] = {}  # one, or oldest first

    def __len__(self) -> int:
        return sum(map(len, self._block_of))

    def block(self, group: int, digest: Digest) -> int | None:
        return self._block_of[group].get(digest)

    def add(
        self, group: int, block: int, digest: Digest, parent: Digest, tokens: Items[int]
    ) -> bool:
        """Name a block. False when another block of the group has that name already."""
        names = self._block_of[group]
        if names.setdefault(digest, block) != block:
            return False
        if group == 0:
            start = block * self._block_tokens
            self._tokens[start : start + self._block_tokens] = array("i", tokens)
            self._parent[block] = parent
            self._follow(parent, digest)
        return True

    def _follow(self, parent: Digest, digest: Digest) -> None:
        one = self._followers.setdefault(parent, digest)
        if isinstance(one, dict):
            one[digest] = None
        elif one is not digest:
            self._followers[parent] = {one: None, digest: None}

    def remove(self, group: int, block: int, digest: Digest) -> None:
        del self._block_of[group][digest]
        if group:
            return
        parent = self._parent[block]
        several = self._followers[parent]
        if isinstance(several, dict) and len(several) > 1:
            del several[digest]
        else:
            del self._followers[parent]

    def longest(self, digests: Items[Digest]) -> int:
        """How many of these blocks, from the first on, a sequence can start behind: of full layers
        all of them are there, of windowed ones those that the next token still sees."""
        num_full = len(digests)
        for number, group in enumerate(self._groups):
            if not group.window:
                num_full = self._run(number, digests[:num_full])
        windowed = [(n, g) for n, g in enumerate(self._groups) if g.window]
        while num_full:
            holes = [self._hole(n, g, digests, num_full) for n, g in windowed]
            first_hole = min((hole for hole in holes if hole is not None), default=None)
            if first_hole is None:
                break
            num_full = first_hole  # whatever starts behind the hole would see it
        return num_full

    def _run(self, group: int, digests: Items[Digest]) -> int:
        for index, digest in enumerate(digests):
            if self.block(group, digest) is None:
                return index
        return len(digests)

    def _hole(
        self, number: int, group: LayerGroup, digests: Items[Digest], num_full: int
    ) -> int | None:
        """The last block that is missing among those that a start behind `num_full` blocks sees."""
        first = group.first_block(num_full * self._block_tokens, self._block_tokens)
        for index in range(num_full - 1, first - 1, -1):
            if self.block(number, digests[index]) is None:
                return index
        return None

    def tail(self, parent: Digest, tokens: Items[int]) -> Tail | None:
        """Of the blocks that follow `parent`, the one that begins most like `tokens`; None when
        nothing that follows it is held."""
        best: Tail | None = None
        found = self._followers.get(parent, {})
        newest = reversed(found) if isinstance(found, dict) else iter((found,))
        for _, digest in zip(range(MOST_CONTINUATIONS), newest, strict=False):
            start = self._block_of[0][digest] * self._block_tokens
            same = _num_same(self._tokens[start : start + self._block_tokens], tokens)
            if best is None or same > best.num_tokens:
                best = Tail(digest, same)
        return best

    def check(self, names: Items[tuple[int, int, Digest]]) -> None:
        """Assert that exactly these (group, block, digest) are held, and that every list of
        followers is right."""
        held = {(g, b, digest) for g, own in enumerate(self._block_of) for digest, b in own.items()}
        assert held == set(names)
        followers = {(self._parent[b], digest) for digest, b in self._block_of[0].items()}
        listed: set[tuple[Digest, Digest]] = set()
        for parent, several in self._followers.items():
            assert several
            listed |= {(parent, d) for d in (several if isinstance(several, dict) else (several,))}
        assert followers == listed


def _num_same(one: Items[int], other: Items[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
