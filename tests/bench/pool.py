"""What one operation of the pool costs, for pools of 1,000 and of 1,000,000 blocks.

    python tests/bench/pool.py

Every figure is the median of seven rounds, in microseconds per block. The pools are full of CACHED
chats. Twice: the numbers of a chat's blocks follow each other, or lie scattered over the pool, the
worst that long use can bring. The last line on stdout is JSON.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.blocks import BlockPool
from engine.prefix import Digest, chain_digest, root_digest

ROUNDS = 7
BLOCK_TOKENS = 16
CHAT_BLOCKS = 32
BATCH = 15 * CHAT_BLOCKS  # blocks of a round, for each operation
SIZES = (1_000, 1_000_000)


class Bench:
    """One pool, all of whose blocks are CACHED: chats of 32 blocks."""

    def __init__(self, num_blocks: int, is_scattered: bool) -> None:
        self.random = random.Random(1)
        self.root = root_digest("bench")
        self.pool = BlockPool(num_blocks, BLOCK_TOKENS)
        self.next_content = 0
        blocks = [self.pool.allocate(1) for _ in range(num_blocks)]
        if is_scattered:
            self.random.shuffle(blocks)
        for start in range(0, num_blocks, CHAT_BLOCKS):
            chat = blocks[start : start + CHAT_BLOCKS]
            for block, content in zip(chat, self.contents(len(chat)), strict=True):
                self.pool.set_filled(block, BLOCK_TOKENS)
                self.pool.seal(block, *content)
            self.pool.release(chat, 1)
        self.pool.check_idle()

    def contents(self, num_blocks: int) -> list[tuple[Digest, Digest, list[int]]]:
        """(digest, parent, tokens) of chats that nobody had before."""
        made: list[tuple[Digest, Digest, list[int]]] = []
        for index in range(num_blocks):
            parent = made[-1][0] if index % CHAT_BLOCKS else self.root
            self.next_content += 1
            tokens = [self.next_content] * BLOCK_TOKENS
            made.append((chain_digest(parent, tokens), parent, tokens))
        return made

    def round(self) -> dict[str, float]:
        pool, times = self.pool, {}

        def timed(name: str, work: Callable[[], object]) -> None:
            start = time.perf_counter()
            work()
            times[name] = (time.perf_counter() - start) / BATCH * 1e6

        taken: list[int] = []
        timed("evict and allocate", lambda: taken.extend(pool.allocate(2) for _ in range(BATCH)))
        contents = self.contents(len(taken))
        for block in taken:
            pool.set_filled(block, BLOCK_TOKENS)

        def name_all() -> None:
            for block, content in zip(taken, contents, strict=True):
                pool.seal(block, *content)

        timed("name", name_all)
        chats = [taken[i : i + CHAT_BLOCKS] for i in range(0, BATCH, CHAT_BLOCKS)]
        self.random.shuffle(chats)
        timed("release to the cache", lambda: each(pool.release, chats, 2))
        digests = [content[0] for content in contents]
        timed("find by content", lambda: [pool.index.block(0, digest) for digest in digests])
        timed("revive", lambda: each(pool.share, taken, 3))
        timed("share", lambda: each(pool.share, taken, 4))
        timed("unshare", lambda: each(pool.release, chats, 4))
        pool.release(taken, 3)
        return times


def each(work: Callable[..., object], items: Iterable[object], owner: int) -> None:
    for item in items:
        work(item, owner)


def measure(is_scattered: bool) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for size in SIZES:
        bench = Bench(size, is_scattered)
        bench.round()
        rounds = [bench.round() for _ in range(ROUNDS)]
        for name in rounds[0]:
            median = statistics.median(times[name] for times in rounds)
            rows.setdefault(name, {})[f"{size:,}"] = round(median, 3)
    small, large = (f"{size:,}" for size in SIZES)
    rows["all"] = {
        size: round(sum(row[size] for row in rows.values()), 3) for size in (small, large)
    }
    print(f"{'scattered' if is_scattered else 'in order':24}{small:>12}{large:>12}{'ratio':>8}")
    for name, row in rows.items():
        row["ratio"] = round(row[large] / row[small], 2)
        print(f"{name:24}{row[small]:12.2f}{row[large]:12.2f}{row['ratio']:8.2f}")
    return rows


def main() -> None:
    print(json.dumps({"in order": measure(False), "scattered": measure(True)}))


if __name__ == "__main__":
    main()
