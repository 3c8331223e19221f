"""Crew: the threads that compute on the CPU, and programs of operations that they run together.

An operation is compiled to a C function of (record, item, worker); a record is a row of 64-bit
words with what it works on. A program is a list of operations, each cut into items. Whoever is
there takes the next item; an operation begins when all items of the one before are done. So a step
of 390 operations costs one call from Python, and a thread that the system holds up holds up no more
than the item it has: the others take the rest. (With a fork and a join for each operation a step
with one row took 9.4 ms instead of 5.5.)

Numbers of items are taken by compare and swap on words that carry the program's number: who comes
late, or was asleep since an earlier program, takes nothing of a later one by mistake.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import struct
import sys
import threading
from typing import Any

import numba
import numpy as np
import torch

from kernels.cpu.jit import kernel
from kernels.cpu.words import add_word, call_operation, load_word, relax, store_word, swap_word

FUNCTION, RECORD, ITEMS, ROW = 0, 1, 2, 3  # words of a row of a program's table
MOST_OPERATIONS = 4096
_LINE = 16  # words from one counter to the next: writes to others do not disturb who waits for one
# Words of the crew's own memory.
_GENERATION, _TABLE, _NUM, _WORKERS, _STOP, _NAP = range(0, 6 * _LINE, _LINE)
_COUNTERS = 6 * _LINE  # of each operation: items taken, items done
# A word of items taken: the program's number, how many items there are, how many are taken. All in
# one, for who comes late must not believe a table that is being written for the next program.
_BITS = 20
_MASK = (1 << _BITS) - 1
_PROGRAMS = 1 << 23  # then their numbers begin again

# Looks, of some 20 ns, before a thread sleeps between them: where another holds an item, and where
# there is no program. It does not offer its core with sched_yield: Linux since 6.6 counts that
# against it, and after thousands of times lets it wait for 100 ms.
_SPINS, _IDLE_SPINS = 2_000, 20_000
_NAP_US = 50  # that the system makes 100 or more
_NAPS = 5_000  # before it waits until it is called
_num_workers = 0  # 0 = not said


@numba.njit(inline="always")
def _take_part(control: Any, worker: Any, generation: Any) -> None:
    """Work on a program until it is done, or over."""
    table, num = load_word(control + _TABLE * 8), load_word(control + _NUM * 8)
    for number in range(num):
        taken = control + (_COUNTERS + number * 2 * _LINE) * 8
        done = taken + _LINE * 8
        row = table + number * ROW * 8
        while True:
            seen = load_word(taken)
            if seen >> 2 * _BITS != generation:
                return
            num_items, item = seen >> _BITS & _MASK, seen & _MASK
            if item >= num_items:
                break
            if swap_word(taken, seen, seen + 1):
                function, record = load_word(row + FUNCTION * 8), load_word(row + RECORD * 8)
                call_operation(function, record, item, worker)
                add_word(done, 1)
        spins = 0
        while load_word(done) < num_items:
            if load_word(taken) >> 2 * _BITS != generation:
                return
            spins += 1
            if spins < _SPINS:
                relax()
            else:
                call_operation(load_word(control + _NAP * 8), 1, 0, 0)


@kernel()
def _lead(control: Any, table: Any, num: Any, workers: Any) -> None:
    generation = (load_word(control + _GENERATION * 8) + 1) % _PROGRAMS
    for number in range(num):
        counter = control + (_COUNTERS + number * 2 * _LINE) * 8
        num_items = load_word(table + (number * ROW + ITEMS) * 8)
        store_word(counter, (generation << _BITS | num_items) << _BITS)
        store_word(counter + _LINE * 8, 0)
    store_word(control + _TABLE * 8, table)
    store_word(control + _NUM * 8, num)
    store_word(control + _WORKERS * 8, workers)
    store_word(control + _GENERATION * 8, generation)
    _take_part(control, 0, generation)


@kernel()
def _help(control: Any, worker: Any) -> bool:
    """Take part in programs until there was none for a while; whether to go on at all."""
    known = spins = 0
    while True:
        generation = load_word(control + _GENERATION * 8)
        if generation != known:
            known, spins = generation, 0
            if worker < load_word(control + _WORKERS * 8):
                _take_part(control, worker, generation)
        if load_word(control + _STOP * 8) != 0:
            return False
        spins += 1
        if spins < _IDLE_SPINS:
            relax()
        elif spins < _IDLE_SPINS + _NAPS:
            call_operation(load_word(control + _NAP * 8), _NAP_US, 0, 0)
        else:
            return True


class _Helper:
    """A thread that takes part in every program, asleep while there is none for long."""

    def __init__(self, control: int, worker: int) -> None:
        self._control, self._worker = control, worker
        self._called = threading.Event()
        self.is_asleep = False
        self._thread = threading.Thread(target=self._run, name=f"crew-{worker}", daemon=True)
        self._thread.start()

    def call(self) -> None:
        self.is_asleep = False
        self._called.set()

    def join(self) -> None:
        self.call()
        self._thread.join(1.0)

    def _run(self) -> None:
        while _help(self._control, self._worker):
            self.is_asleep = True
            self._called.wait()
            self._called.clear()


class _Crew:
    """The helpers of this process, and the memory by which they hear of programs."""

    def __init__(self) -> None:
        num_words = _COUNTERS + MOST_OPERATIONS * 2 * _LINE
        memory = np.zeros(num_words + 8, np.int64)
        # Helpers look at it to the very end of the process.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self._control = -(-memory.ctypes.data // 64) * 64
        start = (self._control - memory.ctypes.data) // 8
        words = memory[start:]
        words[_NAP] = _sleep_function()
        self._words = words
        self._helpers: list[_Helper] = []
        atexit.register(self._stop)

    def run(self, table: int, num: int, workers: int) -> None:
        for helper in self._helpers[: workers - 1]:
            if helper.is_asleep:
                helper.call()
        while len(self._helpers) < workers - 1:
            self._helpers.append(_Helper(self._control, len(self._helpers) + 1))
        _lead(self._control, table, num, workers)

    def _stop(self) -> None:
        self._words[_STOP] = 1
        for helper in self._helpers:
            helper.join()


def _sleep_function() -> int:
    """Address of the system's function that sleeps for so many microseconds, or for a moment."""
    if sys.platform == "win32":
        call = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        call = ctypes.CDLL(None).usleep
    return ctypes.cast(call, ctypes.c_void_p).value or 0


@functools.cache
def _crew() -> _Crew:
    return _Crew()


def run(table: int, num: int, workers: int) -> None:
    """Run a program; `LOCK` is held.

    Args:
        table: address of [num, ROW] int64: an operation, the address of its record, its number of
            items, below 2 ** 20.
        workers: threads that may take part, for whom there is memory.
    """
    assert num <= MOST_OPERATIONS
    _crew().run(table, num, workers)


def num_workers() -> int:
    """Threads that shall take part; as many as torch has, if nobody has said. Another engine of
    this process may change it at any time."""
    return _num_workers or torch.get_num_threads()


def set_num_workers(number: int) -> None:
    global _num_workers
    _num_workers = number


# --- operations and their records -----------------------------------------------------------------

_LAUNCH_BYTES = 1 << 14
_launch = np.zeros(_LAUNCH_BYTES // 8, np.int64)
Call = tuple[int, struct.Struct, tuple[float, ...], int]  # operation, its record, number of items


def launch(workers: int, *calls: Call) -> None:
    """Run some operations once; `LOCK` is held."""
    at = len(calls) * ROW * 8
    base = _launch.ctypes.data
    for number, (function, record, values, num_items) in enumerate(calls):
        assert num_items <= _MASK
        _launch[number * ROW : number * ROW + ROW] = function, base + at, num_items
        record.pack_into(_launch.data, at, *values)
        at += record.size
    run(base, len(calls), workers)
