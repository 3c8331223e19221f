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


@dataclass(slots=True)
class _Content:
    """One digest: its tokens, what it follows, and the block of each group that holds it."""

    parent: Digest
    tokens: array[int]
    blocks: dict[int, int]  # layer group -> block


class PrefixIndex:
    """Owns digests and their blocks. Knows no states and no owners."""

    def __init__(self, groups: Items[LayerGroup], block_tokens: int) -> None:
        self._groups = tuple(groups)
        self._block_tokens = block_tokens
        self._contents: dict[Digest, _Content] = {}
        self._continuations: dict[Digest, dict[Digest, None]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._contents)

    def block(self, group: int, digest: Digest) -> int | None:
        content = self._contents.get(digest)
        return None if content is None else content.blocks.get(group)

    def add(
        self, group: int, block: int, digest: Digest, parent: Digest, tokens: Items[int]
    ) -> bool:
        """Name a block. False when another block of the group has that name already."""
        content = self._contents.get(digest)
        if content is None:
            content = _Content(parent, array("q", tokens), {})
            self._contents[digest] = content
            self._continuations.setdefault(parent, {})[digest] = None
        elif group in content.blocks:
            return False
        content.blocks[group] = block
        return True

    def remove(self, group: int, digest: Digest) -> None:
        content = self._contents[digest]
        del content.blocks[group]
        if content.blocks:
            return
        del self._contents[digest]
        siblings = self._continuations[content.parent]
        del siblings[digest]
        if not siblings:
            del self._continuations[content.parent]

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
        continuations = self._continuations.get(parent, {})
        for _, digest in zip(range(MOST_CONTINUATIONS), reversed(continuations), strict=False):
            same = _num_same(self._contents[digest].tokens, tokens)
            if best is None or same > best.num_tokens:
                best = Tail(digest, same)
        return best

    def check(self, names: Items[tuple[int, int, Digest]]) -> None:
        """Assert that exactly these (group, block, digest) are held, and that every list of
        continuations is right."""
        held = {
            (group, block, digest)
            for digest, content in self._contents.items()
            for group, block in content.blocks.items()
        }
        assert held == set(names)
        followers = {(c.parent, digest) for digest, c in self._contents.items()}
        listed = {(p, digest) for p, several in self._continuations.items() for digest in several}
        assert followers == listed
        assert all(self._continuations.values())


def _num_same(one: Items[int], other: Items[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
