"""Guard for trap 4: cyclic garbage collection happens on the UI thread only."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from app.collector import Collector
from engine.messages import ModelFailed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def collector(qapp):
    collector = Collector()
    collector.start()
    yield collector
    collector.stop()
    assert gc.isenabled()


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_garbage_made_on_another_thread_dies_on_the_ui_thread(collector, qtbot):
    died_on = []
    refs = []

    def engine():
        for _ in range(3000):
            cycle = Cycle()
            refs.append(weakref.ref(cycle, lambda _: died_on.append(threading.current_thread())))

    thread = threading.Thread(target=engine)
    thread.start()
    thread.join()
    assert died_on == []
    qtbot.waitUntil(lambda: len(died_on) == 3000, timeout=5000)
    assert set(died_on) == {threading.main_thread()}


def test_a_model_is_frozen_while_loaded_and_collected_after(collector):
    model = Cycle()
    ref = weakref.ref(model)
    collector.on_loaded()
    assert gc.get_freeze_count() > 0
    del model
    gc.collect()
    assert ref() is not None  # a frozen cycle is never freed
    collector.on_unloaded()
    assert ref() is None
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_load_that_was_cancelled_leaves_nothing(collector, is_kept):
    gc.collect()
    read = Cycle()
    ref = weakref.ref(read)
    gc.collect()  # the generation that no tick collects
    del read
    collector.on_load_failed(ModelFailed("/m", "Cancelled.", is_kept=is_kept, is_cancelled=True))
    assert (ref() is None) == (not is_kept)


def test_loading_another_model_lets_the_first_one_go(collector):
    model = Cycle()
    ref = weakref.ref(model)
    collector.on_loaded()
    collector.on_loading()
    del model
    collector.on_loaded()
    assert ref() is None


def test_only_the_collector_touches_gc():
    """Engine code never does (trap 4); so the app decides when and where."""
    guilty = [
        str(path.relative_to(ROOT))
        for folder in ("app", "engine", "kernels")
        for path in (ROOT / folder).rglob("*.py")
        if "import gc" in path.read_text(encoding="utf-8") and path.name != "collector.py"
    ]
    assert guilty == []


def test_coroutines_and_slots_open_no_nested_event_loop():
    """Guard for trap 14: exec() of a dialog or menu inside a coroutine breaks qasync."""
    guilty = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / "app").rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if ".exec(" in line or ".exec_(" in line
    ]
    assert guilty == []


LAMBDA = """
import threading
from PySide6.QtCore import QCoreApplication, QObject, Signal
class Speaker(QObject):
    said = Signal()
qt = QCoreApplication([])
heard = []
box = []
def worker():
    speaker = Speaker()
    speaker.said.connect(lambda: heard.append(threading.current_thread().name))
    box.append(speaker)
    speaker.said.emit()
thread = threading.Thread(target=worker, name="worker")
thread.start(); thread.join()
print(heard[0])
"""


def test_trap_5_is_real_and_the_core_builds_its_objects_on_the_ui_thread(core, qapp):
    """A lambda on a QObject made on a worker runs there; every object of ours lives with the UI."""
    done = subprocess.run([sys.executable, "-c", LAMBDA], capture_output=True, text=True)
    assert done.stdout.strip() == "worker"
    ours = [core.bridge, core.chats, core.replies, core.models, core.transfer, core.status]
    assert {one.thread() for one in ours} == {qapp.thread()}
