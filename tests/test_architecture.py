"""The architecture's rules that import-linter cannot express, and guards for traps of packaging."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("app", "engine", "kernels", "packaging")
# What QtCore-only state must not reach for: widgets, and everything that paints or shows.
WINDOW_MODULES = {"QtGui", "QtWidgets", "QtSvg", "QtSvgWidgets", "QtPrintSupport"}


def modules_below(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports, anywhere in it: `from a import b` gives `a.b`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def loaded_by(*names: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing `names`."""
    code = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = python(code)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def python(code: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter with the repository's root on its path."""
    variables = os.environ | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


# ---- places ----------------------------------------------------------------------------------


def test_the_top_level_holds_exactly_what_was_agreed() -> None:
    made = {".git", ".venv", "build", "dist"}  # and caches; all ignored by git
    there = {
        path.name
        for path in ROOT.iterdir()
        if path.name not in made and not path.name.endswith(("cache", "cache__", ".egg-info"))
    }
    folders = {name for name in there if (ROOT / name).is_dir()} - {".hypothesis"}
    assert folders == {"app", "engine", "kernels", "packaging", "resources", "tests", ".ci"}
    assert {"README.md", "LICENSE", "pyproject.toml", ".gitignore"} <= there


@pytest.mark.parametrize("folder", ["tests", "packaging"])
def test_no_package_shadows_another(folder: str) -> None:
    """Trap 3: `packaging/__init__.py` would hide PyPA's package and break transformers."""
    assert list((ROOT / folder).rglob("__init__.py")) == []


def test_the_first_file_of_kernels_is_empty() -> None:
    """Trap 2: a package of that name on an index is looked up by transformers."""
    assert (ROOT / "kernels/__init__.py").read_text() == ""
    assert (ROOT / "engine/__init__.py").read_text() == ""


def test_every_folder_of_the_product_is_a_package() -> None:
    """Without an `__init__.py`, import-linter and mypy pass over a folder in silence."""
    folders = {path.parent for path in modules_below("app", "engine", "kernels")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", modules_below(*PRODUCT), ids=lambda path: path.stem)
def test_a_file_is_one_noun_of_at_most_400_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    if text:
        assert ast.get_docstring(ast.parse(text)), "the first sentence says what the file owns"


def test_the_version_is_the_same_everywhere() -> None:
    from app.options import VERSION as OF_APP
    from engine.serving import VERSION as OF_ENGINE

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == OF_APP == OF_ENGINE


# ---- direction -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", modules_below("app/state"), ids=lambda path: path.stem)
def test_state_uses_qtcore_and_nothing_that_paints(path: Path) -> None:
    used = {name.split(".")[1] for name in imported(path) if name.startswith("PySide6.")}
    assert used & WINDOW_MODULES == set()
    assert used <= {"QtCore"}


@pytest.mark.parametrize("path", modules_below("app/state", "app/views"), ids=lambda p: p.stem)
def test_the_window_knows_the_engine_by_its_messages_only(path: Path) -> None:
    of_engine = [name for name in imported(path) if name.split(".")[0] == "engine"]
    assert [name for name in of_engine if not name.startswith("engine.messages")] == []


@pytest.mark.parametrize(
    "path",
    modules_below("app/library", "app/advisor", "app/server"),
    ids=lambda path: path.stem,
)
def test_libraries_and_endpoint_are_without_torch_and_qt(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    assert roots & {"torch", "PySide6", "qasync", "transformers", "numpy"} == set()


@pytest.mark.parametrize("path", modules_below("engine", "kernels"), ids=lambda path: path.stem)
def test_engine_and_kernels_never_touch_the_collector(path: Path) -> None:
    """Trap 4: only the app decides when garbage is collected, on the thread of its objects."""
    assert "gc" not in {name.split(".")[0] for name in imported(path)}


def test_engine_above_the_line_loads_without_torch_and_qt() -> None:
    above = ["scheduler", "plan", "tables", "prefix", "layer_groups", "pace", "client", "thread"]
    above += ["blocks", "config", "messages", "params", "places", "errors"]
    above += ["sequence", "footprint", "gguf_header", "template_worker"]
    loaded = loaded_by(*(f"engine.{name}" for name in above))
    assert loaded & {"torch", "numpy", "PySide6", "qasync", "triton", "numba", "app"} == set()
    assert loaded & {"transformers", "kernels", "gguf"} == set()


def test_reference_kernels_load_neither_triton_nor_numba() -> None:
    names = {name.split(".")[0] for name in imported(ROOT / "kernels/reference.py")}
    assert names & {"triton", "numba"} == set()


def test_choosing_the_reference_loads_neither_triton_nor_numba() -> None:
    code = (
        "import sys, torch; from kernels.dispatch import choose;"
        "choose(torch.device('cpu'), torch.float32, 'reference');"
        "assert 'kernels.cpu' not in sys.modules and 'numba' not in sys.modules;"
        "assert not any(name.startswith('kernels.gpu') for name in sys.modules)"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_the_command_line_of_the_window_loads_nothing_heavy() -> None:
    """Trap 15: torch stalls the other threads for a second when first imported."""
    loaded = loaded_by("app.__main__")
    assert loaded & {"PySide6", "torch", "numpy", "numba", "transformers", "qasync"} == set()


def test_the_window_shows_before_torch_is_imported() -> None:
    """Trap 15: everything the window is made of loads without the engine's heavy parts."""
    loaded = loaded_by("app.main")
    assert "PySide6" in loaded
    assert loaded & {"torch", "numba", "transformers", "triton", "gguf", "tokenizers"} == set()


# ---- guards for traps of these versions ------------------------------------------------------


def test_five_thousand_signals_do_not_abort() -> None:
    """Trap 1: PySide6 6.12.0 on Python 3.11 aborts after about 580 emissions."""
    code = """
from PySide6.QtCore import QCoreApplication, QObject, Signal, Slot
class Sender(QObject):
    sent = Signal(int)
class Receiver(QObject):
    total = 0
    @Slot(int)
    def receive(self, number):
        self.total += number
application = QCoreApplication([])
sender, receiver = Sender(), Receiver()
sender.sent.connect(receiver.receive)
for number in range(5000):
    sender.sent.emit(number)
assert receiver.total == 5000 * 4999 // 2, receiver.total
print("whole")
"""
    done = python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "whole"), done.stderr


def test_transformers_builds_a_model_beside_our_kernels_and_packaging() -> None:
    """Traps 2 and 3: with the root on the path, our folders come before packages so named."""
    code = """
import packaging.version, kernels, torch
from pathlib import Path
root = Path.cwd()
assert Path(kernels.__file__).parent == root / "kernels", kernels.__file__
assert root / "packaging" not in Path(packaging.__file__).parents, packaging.__file__
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(vocab_size=31, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
model = LlamaForCausalLM(config).eval()
out = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, do_sample=False,
                     pad_token_id=0, eos_token_id=None)
assert out.shape == (1, 7), out.shape
print("built")
"""
    done = python(code)
    assert (done.returncode, done.stdout.strip()) == (0, "built"), done.stderr[-2000:]


def test_the_other_package_named_kernels_is_never_a_requirement() -> None:
    """Trap 2, and trap 1's pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert [need for need in wanted if need.startswith("kernels")] == []
    assert int(project["version"].split(".")[0]) >= 2026, "a calendar version"
    assert any(need.startswith("PySide6-Essentials") and "<6.12" in need for need in wanted)
    pins = (ROOT / "packaging/constraints.txt").read_text(encoding="utf-8").splitlines()
    assert "kernels" not in {pin.split("==")[0] for pin in pins}
    assert not any(pin.startswith("triton==") for pin in pins), "trap 17: CUDA builds pin their own"


@pytest.mark.parametrize("path", modules_below("app", "engine"), ids=lambda path: path.stem)
def test_remote_code_is_refused_in_so_many_words(path: Path) -> None:
    """Trap 12: left unset, transformers asks on stdin and blocks for 15 s."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        if node.func.attr in ("from_pretrained", "from_config") and "Auto" in owner:
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("trust_remote_code") == "False", f"{path}:{node.lineno}"
