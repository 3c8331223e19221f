"""Guards for the traps of these library versions that show in a whole process (1 to 4, and 15).

Each fails when its trap is stepped on. Rules for the source (4, 5, 7, 12, 13, 14) are in
test_traps_in_source.py, text and pictures (6, 7, 8, 13) in app/test_traps_of_text.py; what stands
beside that which it threatens is named by the last test here.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.collector import Collector

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "numba", "transformers", "triton", "tokenizers", "gguf")


def fresh_python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter of its own, the repository's root first on its path."""
    path = os.pathsep.join(str(one) for one in (ROOT, *paths))
    variables = os.environ | {"PYTHONPATH": path, "QT_QPA_PLATFORM": "offscreen"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


# ---- 1: PySide6 6.12.0 on Python 3.11 aborts after about 580 emissions -------------------------


def test_trap_01_signals_between_threads_survive_too() -> None:
    """5,000 on one thread are in test_architecture.py; these cross threads, as the engine's do."""
    code = """
import threading
from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal, Slot
class Sender(QObject):
    sent = Signal(int, object)
class Receiver(QObject):
    total = 0
    @Slot(int, object)
    def receive(self, number, thing):
        assert threading.current_thread() is threading.main_thread()
        self.total += len(thing)
        if number == 4999:
            application.quit()
application = QCoreApplication([])
sender, receiver = Sender(), Receiver()
sender.sent.connect(receiver.receive, Qt.ConnectionType.QueuedConnection)
def post():
    for number in range(5000):
        sender.sent.emit(number, {"text": number})
threading.Thread(target=post).start()
application.exec()
print(receiver.total)
"""
    done = fresh_python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "5000"), done.stderr


# ---- 2: a folder named `kernels` beside transformers, which looks for a package of that name ---


def as_installed(folder: Path, version: str) -> Path:
    """A folder that claims, as pip writes it, that our distribution owns the name `kernels`."""
    info = folder / f"tessera_chat-{version}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: tessera-chat\nVersion: {version}\n"
    (info / "METADATA").write_text(head, encoding="utf-8")
    (info / "top_level.txt").write_text("app\nengine\nkernels\n", encoding="utf-8")
    return folder


def test_trap_02_an_installed_tessera_is_not_taken_for_the_package_kernels(tmp_path) -> None:
    code = "from transformers.utils import is_kernels_available as has; print(has())"
    source = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.findall(r'^version = "([\d.]+)"', source, re.MULTILINE)[0]
    ours = fresh_python(code, as_installed(tmp_path / "ours", version))
    assert ours.stdout.strip() == "False", ours.stderr
    # With a version like that of the other package, transformers would walk into our folder.
    wrong = fresh_python(code, as_installed(tmp_path / "wrong", "0.18.5"))
    assert wrong.stdout.strip() == "True", wrong.stderr


def test_trap_02_the_other_package_is_not_installed() -> None:
    code = (
        "from importlib.metadata import packages_distributions as owners\n"
        "print(sorted(set(owners().get('kernels', [])) - {'tessera-chat'}))"
    )
    assert fresh_python(code).stdout.strip() == "[]"


# ---- 3: packaging/__init__.py and tests/packaging/__init__.py ----------------------------------


def test_trap_03_packaging_is_the_package_of_that_name_here_too() -> None:
    """In this process as pytest set it up, whose path has the root and tests/packaging on it."""
    import packaging.version

    assert ROOT not in Path(packaging.version.__file__).parents or ".venv" in packaging.__file__
    assert packaging.version.Version("1.10") > packaging.version.Version("1.9")
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    assert list((ROOT / "packaging").rglob("__init__.py")) == []


def test_trap_03_pytest_imports_by_path() -> None:
    options = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "--import-mode=importlib" in options
    assert list(ROOT.glob("conftest.py")) == []  # it would make the root a package of tests


# ---- 4: cyclic garbage is collected on the UI thread, full rounds only at load and unload ------


def test_trap_04_the_timer_collects_the_young_only(qapp, qtbot) -> None:
    rounds: list[tuple[int, threading.Thread]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            rounds.append((info["generation"], threading.current_thread()))

    collector = Collector()
    gc.callbacks.append(note)
    try:
        collector.start()
        assert not gc.isenabled()
        for _ in range(40):  # enough young rounds to make the middle generation due
            waste = [[] for _ in range(2000)]
            for one in waste:
                one.append(one)
            del waste
            collector._timer.timeout.emit()
        assert {generation for generation, _ in rounds} == {0, 1}
        assert {thread for _, thread in rounds} == {threading.main_thread()}
        collector.on_loaded()
        assert rounds[-1][0] == 2
    finally:
        gc.callbacks.remove(note)
        collector.stop()
        gc.disable()


# ---- 15: the window shows before anything heavy is imported ------------------------------------


def test_trap_15_the_window_is_shown_before_heavy_imports(tmp_path) -> None:
    """The whole application as a user starts it; the engine thread imports torch afterwards."""
    code = f"""
import asyncio, json, sys
from PySide6.QtWidgets import QMainWindow
from app.main import MainWindow, run
from app.options import parse
HEAVY = set({HEAVY!r})
seen = {{}}
def loaded():
    return sorted(HEAVY & sys.modules.keys())
def showEvent(self, event):
    seen.setdefault("shown", loaded())
    QMainWindow.showEvent(self, event)
def paintEvent(self, event):
    seen.setdefault("painted", loaded())
    QMainWindow.paintEvent(self, event)
assert "showEvent" not in vars(MainWindow) and "paintEvent" not in vars(MainWindow)
MainWindow.showEvent, MainWindow.paintEvent = showEvent, paintEvent
async def scene(app):
    while "torch" not in sys.modules or "painted" not in seen:
        await asyncio.sleep(0.005)
    print(json.dumps(seen | {{"visible": app.window.isVisible(), "later": loaded()}}))
    return 0
sys.exit(run(parse(["--data-dir", sys.argv[1]]), scene))
"""
    script = tmp_path / "scene.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "data")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["shown"] == []
    assert seen["visible"]
    assert "torch" in seen["later"]  # the engine did start: the first line was not for nothing


# ---- and every trap has a guard -----------------------------------------------------------------

ARCHITECTURE, COLLECTOR = "test_architecture.py", "app/test_collector.py"
FILES = ("test_traps.py", "test_traps_in_source.py", "app/test_traps_of_text.py")
GUARDS = {
    1: (ARCHITECTURE, "test_five_thousand_signals_do_not_abort"),
    2: (ARCHITECTURE, "test_transformers_builds_a_model_beside_our_kernels_and_packaging"),
    3: (ARCHITECTURE, "test_no_package_shadows_another"),
    4: (COLLECTOR, "test_garbage_made_on_another_thread_dies_on_the_ui_thread"),
    5: (COLLECTOR, "test_trap_5_is_real_and_the_core_builds_its_objects_on_the_ui_thread"),
    6: ("app/views/test_transcript.py", "test_the_cost_of_a_token_stays_small"),
    7: ("app/render/test_markdown.py", "test_html_is_shown_as_it_was_written"),
    8: ("app/views/test_composer.py", "test_a_long_paste_is_a_chip_and_sent_whole"),
    12: (ARCHITECTURE, "test_remote_code_is_refused_in_so_many_words"),
    13: ("app/render/test_theme.py", "test_forcing_a_theme_swaps_palette_and_style_sheet"),
    14: (COLLECTOR, "test_coroutines_and_slots_open_no_nested_event_loop"),
    15: (ARCHITECTURE, "test_the_window_shows_before_torch_is_imported"),
}


@pytest.mark.parametrize("trap", GUARDS)
def test_every_trap_is_guarded_by_its_number_and_where_it_threatens(trap: int) -> None:
    here = [ROOT / "tests" / name for name in FILES]
    by_number = "".join(path.read_text(encoding="utf-8") for path in here)
    assert f"def test_trap_{trap:02}_" in by_number
    path, name = GUARDS[trap]
    assert f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8")
