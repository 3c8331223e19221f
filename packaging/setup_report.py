"""How the set-up speaks: progress lines, a byte counter, and the one sentence of a failure."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class SetupError(Exception):
    """The set-up cannot go on; `str(error)` is one sentence with the way out."""


def say(text: str) -> None:
    """One line of progress on stderr: stdout belongs to the app."""
    print(f"tessera: {text}", file=sys.stderr, flush=True)


class ByteCounter:
    """Shows how much of a download has arrived: a moving line on a terminal, else now and then."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty()
        self._every_s = 0.2 if self._moving else 5.0
        self._next_s = 0.0
        self._line_open = False

    def __call__(self, done: int, total: int) -> None:
        """Show `done` of `total` bytes, unless it was shown a moment ago."""
        now = time.monotonic()
        if now < self._next_s and done < total:
            return
        self._next_s = now + self._every_s
        text = f"tessera: {self._what}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if self._moving:
            print(f"\r{text}", end="", file=self._stream, flush=True)
            self._line_open = True
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """End the moving line, so that what follows starts on one of its own."""
        if self._line_open:
            print(file=self._stream, flush=True)
            self._line_open = False
