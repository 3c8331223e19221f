"""A real X server for the real window: Xvfb on a display that is free. Missing, it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """Name of a fresh X display."""
    program = shutil.which("Xvfb")
    if program is None:
        pytest.fail("Xvfb is not installed; on Debian and Ubuntu: apt-get install xvfb")
    read_end, write_end = os.pipe()
    server = subprocess.Popen(
        [program, "-displayfd", str(write_end), "-screen", "0", "1600x1000x24", "-nolisten", "tcp"],
        pass_fds=(write_end,),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        number = pipe.readline().strip()
    if not number:
        pytest.fail(f"Xvfb did not start (status {server.wait(10)})")
    yield f":{number}"
    server.terminate()
    server.wait(10)


@pytest.fixture
def window_env(display: str) -> dict[str, str]:
    """Environment of a process that opens a window."""
    env = os.environ | {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "OMP_NUM_THREADS": "1"}
    env.pop("WAYLAND_DISPLAY", None)
    env.pop("TESSERA_DATA_DIR", None)
    return env
