"""One window per data folder, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.instance import SingleInstance

ROOT = Path(__file__).resolve().parents[2]
ENV = os.environ | {"QT_QPA_PLATFORM": "offscreen"}

HOLDER = """
import sys
from pathlib import Path
from PySide6.QtCore import QCoreApplication, QTimer
from app.instance import SingleInstance
qt = QCoreApplication([])
instance = SingleInstance(Path(sys.argv[1]))
assert instance.acquire()
instance.raise_requested.connect(lambda: print("raised", flush=True))
print("holds", flush=True)
qt.exec()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT, env=ENV, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "holds\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_start_raises_the_first_window(holder, tmp_path, qapp):
    second = SingleInstance(tmp_path)
    assert not second.acquire()
    assert second.raise_first()
    assert holder.stdout.readline() == "raised\n"
    assert second.raise_first()  # and again


def test_a_killed_instance_leaves_nothing_in_the_way(holder, tmp_path, qapp):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    second = SingleInstance(tmp_path)
    assert second.acquire()
    assert second._server.isListening()
    second.release()


def test_an_instance_that_hangs_is_told_apart(holder, tmp_path, qapp, monkeypatch):
    monkeypatch.setattr("app.instance.ANSWER_MS", 200)
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        second = SingleInstance(tmp_path)
        assert not second.acquire()
        assert not second.raise_first()
    finally:
        os.kill(holder.pid, signal.SIGCONT)


def test_other_folders_have_other_names(tmp_path, qapp):
    one, other = SingleInstance(tmp_path / "a"), SingleInstance(tmp_path / "b")
    assert one.name != other.name
    assert one.acquire()
    assert other.acquire()
    assert SingleInstance(tmp_path / "b" / ".." / "a").name == one.name
    one.release()
    other.release()


def test_released_means_free(tmp_path, qapp):
    one = SingleInstance(tmp_path)
    assert one.acquire()
    one.release()
    assert one.acquire()
    one.release()
