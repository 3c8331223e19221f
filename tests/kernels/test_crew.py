"""The crew: every item is done once, in order of operations, however late its helpers come."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numba
import numpy as np
import pytest

from kernels.cpu import crew
from kernels.cpu.jit import LOCK, address, operation
from kernels.cpu.words import add_word, load_word

RECORD = struct.Struct("<3q")  # counts of this operation, of the one before or 0, their number
SLOW = 20_000


@pytest.fixture
def workers() -> Iterator[int]:
    """More than there are cores: some are always held up."""
    before = crew._num_workers
    crew.set_num_workers(5)
    yield 5
    crew.set_num_workers(before)


def _count(record, item, worker):  # type: ignore[no-untyped-def]
    """Count an item; a wrong order of operations counts a thousand."""
    r = numba.carray(address(record), 3, np.int64)
    if r[1] != 0:
        for other in range(r[2]):
            if load_word(r[1] + other * 8) != 1:
                add_word(r[0] + item * 8, 1_000)
    add_word(r[0] + item * 8, 1)


def _dawdle(record, item, worker):  # type: ignore[no-untyped-def]
    r = numba.carray(address(record), 3, np.int64)
    total = 0
    for turn in range(SLOW):
        total += load_word(r[0]) + turn
    if total >= 0:
        add_word(r[0] + item * 8, 1)


def test_every_item_is_done_once_and_in_order(workers: int) -> None:
    """Tables are written anew while helpers of the program before may still be on their way."""
    count = operation(_count)
    chance = random.Random(1)
    for _ in range(3_000):
        sizes = [chance.randrange(0, 40) for _ in range(chance.randrange(1, 8))]
        counts = [np.zeros(max(size, 1), np.int64) for size in sizes]
        calls = []
        for number, size in enumerate(sizes):
            before = counts[number - 1].ctypes.data if number else 0
            values = (counts[number].ctypes.data, before, sizes[number - 1] if number else 0)
            calls.append((count, RECORD, values, size))
        with LOCK:
            crew.launch(workers, *calls)
        for size, done in zip(sizes, counts, strict=True):
            assert done[:size].tolist() == [1] * size


def test_helpers_take_part_and_fall_asleep(workers: int) -> None:
    done = np.zeros(2_000, np.int64)
    with LOCK:
        crew.launch(workers, (operation(_dawdle), RECORD, (done.ctypes.data, 0, 0), len(done)))
    assert done.tolist() == [1] * len(done)
    helpers = crew._crew()._helpers
    assert len(helpers) >= workers - 1
    end_s = time.monotonic() + 30
    while not all(helper.is_asleep for helper in helpers) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert all(helper.is_asleep for helper in helpers), "nobody spins while there is no work"
    with LOCK:
        crew.launch(workers, (operation(_dawdle), RECORD, (done.ctypes.data, 0, 0), len(done)))
    assert done.tolist() == [2] * len(done)


def test_programs_of_several_threads_do_not_mix(workers: int) -> None:
    count = operation(_count)
    wrong: list[int] = []

    def run() -> None:
        for _ in range(300):
            done = np.zeros(17, np.int64)
            with LOCK:
                crew.launch(workers, (count, RECORD, (done.ctypes.data, 0, 0), len(done)))
            if done.tolist() != [1] * len(done):
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_number_of_a_program_begins_again(workers: int) -> None:
    count = operation(_count)
    crew._crew()._words[crew._GENERATION] = crew._PROGRAMS - 3
    for _ in range(6):
        done = np.zeros(33, np.int64)
        with LOCK:
            crew.launch(workers, (count, RECORD, (done.ctypes.data, 0, 0), len(done)))
        assert done.tolist() == [1] * len(done)


def test_a_process_ends_while_helpers_wait() -> None:
    code = (
        "import torch; from kernels.cpu import crew; from kernels.cpu.rows import rms_norm;"
        "from kernels.cpu.products import multiply, pack; crew.set_num_workers(4);"
        "z = torch.zeros(64, 2); w = pack(torch.zeros(64, 2, 16, dtype=torch.uint8), z, z, 4);"
        "multiply(torch.ones(3, 64), w, 4, 64, None); print('done')"
    )
    root = Path(__file__).resolve().parents[2]
    start_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr
    assert time.monotonic() - start_s < 60
