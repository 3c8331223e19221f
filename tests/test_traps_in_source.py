"""Guards for traps that are rules for the source, checked on its syntax tree (4, 5, 7, 12 to 14).

Every rule is first shown lines that break it: one that sees nothing guards nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from PySide6.QtGui import QTextDocument

ROOT = Path(__file__).resolve().parent.parent
Find = Callable[[ast.Module], Iterator[ast.AST]]


def files_below(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def found_in(find: Find, *folders: str) -> list[str]:
    """Where a rule finds something, as "file:line"."""
    return [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for path in files_below(*folders)
        for node in find(ast.parse(path.read_text(encoding="utf-8")))
    ]


def finds(find: Find, line: str) -> bool:
    """Whether a rule sees the trap in one line of code: a rule that sees nothing guards nothing."""
    return any(True for _ in find(ast.parse(line)))


def calls(module: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(module) if isinstance(node, ast.Call))


# ---- 4: garbage is collected where the application says, and nowhere else ----------------------


def uses_gc(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        if any(name.split(".")[0] == "gc" for name in names):
            yield node


def test_trap_04_only_the_collector_touches_gc() -> None:
    assert finds(uses_gc, "from gc import collect")
    assert finds(uses_gc, "import sys, gc")
    assert found_in(uses_gc, "engine", "kernels", "packaging") == []
    assert {place.split(":")[0] for place in found_in(uses_gc, "app")} == {"app/collector.py"}


# ---- 5: a lambda on an object made on a worker runs on that worker -----------------------------


def loose_connections(module: ast.Module) -> Iterator[ast.AST]:
    """`connect` with anything but a method or a signal: a lambda, a partial, a nested function."""
    nested = {
        inner.name
        for outer in ast.walk(module)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(outer)
        if inner is not outer and isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for call in calls(module):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "connect" and call.args:
            slot = call.args[0]
            is_nested = isinstance(slot, ast.Name) and slot.id in nested
            if is_nested or isinstance(slot, ast.Lambda | ast.Call):
                yield call


def test_trap_05_slots_are_methods() -> None:
    assert finds(loose_connections, "timer.timeout.connect(lambda: self.go())")
    assert finds(loose_connections, "a.b.connect(partial(self.go, 1))")
    assert finds(loose_connections, "def f():\n def g(): ...\n a.b.connect(g)")
    assert not finds(loose_connections, "a.b.connect(self.go)")
    assert found_in(loose_connections, "app") == []


def own_slots(path: Path) -> Iterator[str]:
    """Names of the classes in a file that connect a signal to a method of their own."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef):
            continue
        for call in ast.walk(node):
            is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            is_connect = is_call and call.func.attr == "connect" and call.args
            if is_connect and re.match(r"self\.\w+$", ast.unparse(call.args[0])):
                yield node.name


def test_trap_05_whoever_listens_is_a_qobject() -> None:
    """The slot of a plain object has no thread: Qt would call it wherever the signal was sent."""
    listeners = {
        (".".join(path.relative_to(ROOT).with_suffix("").parts), name)
        for path in files_below("app")
        for name in own_slots(path)
    }
    assert len(listeners) > 20
    plain = [
        f"{module}.{name}"
        for module, name in sorted(listeners)
        if not issubclass(getattr(importlib.import_module(module), name), QObject)
    ]
    assert plain == []


def test_trap_05_what_runs_on_workers_makes_no_object_that_listens() -> None:
    """The io threads run these; the window's objects are all built on the UI thread."""
    on_workers = ["app/export", "app/library"]
    assert finds(all_connections, "document.contentsChanged.connect(self.go)")
    assert found_in(all_connections, *on_workers) == []
    assert "PySide6" not in (ROOT / "app/history_file.py").read_text(encoding="utf-8")
    for path in files_below(*on_workers):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for _, one in inspect.getmembers(importlib.import_module(module), inspect.isclass):
            own = one.__module__ == module
            assert not (own and issubclass(one, QObject) and not issubclass(one, QTextDocument))


def all_connections(module: ast.Module) -> Iterator[ast.AST]:
    for call in calls(module):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "connect":
            yield call


def test_trap_05_the_engine_has_no_qt_and_makes_no_connection() -> None:
    names = "PySide6", "qasync"
    for path in files_below("engine", "kernels"):
        assert not any(name in path.read_text(encoding="utf-8") for name in names), path


# ---- 7: Qt's own Markdown shows nothing for `<smirk>`, and damages code fences ----------------


def qt_markdown(module: ast.Module) -> Iterator[ast.AST]:
    names = {"setMarkdown", "toMarkdown", "QTextBrowser", "insertMarkdown", "fromMarkdown"}
    for node in ast.walk(module):
        if (isinstance(node, ast.Attribute) and node.attr in names) or (
            isinstance(node, ast.alias | ast.Name)
            and (node.name if isinstance(node, ast.alias) else node.id) in names
        ):
            yield node


def test_trap_07_qts_own_markdown_is_not_used() -> None:
    assert finds(qt_markdown, "document.setMarkdown(text)")
    assert finds(qt_markdown, "from PySide6.QtWidgets import QTextBrowser")
    places = found_in(qt_markdown, "app")
    ours = "app/export/"  # to_markdown there is our own, from the stored text
    assert [place for place in places if not place.startswith(ours)] == []


# ---- 12: transformers asks on stdin when trust_remote_code is unset ----------------------------


def asks_about_code(module: ast.Module) -> Iterator[ast.AST]:
    """Calls that make a model, a configuration or a tokeniser and may run a stranger's code."""
    for call in calls(module):
        if not isinstance(call.func, ast.Attribute):
            continue
        owner = ast.unparse(call.func.value)
        is_auto = owner.split(".")[-1].startswith("Auto") and call.func.attr != "register"
        if is_auto or call.func.attr in ("from_pretrained", "from_config"):
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            if given.get("trust_remote_code") != "False":
                yield call
        elif call.func.attr == "pipeline":
            yield call


@pytest.mark.parametrize(
    ("line", "is_trap"),
    [
        ("AutoConfig.from_pretrained(path)", True),
        ("transformers.AutoModelForCausalLM.from_config(config)", True),
        ("AutoTokenizer.from_pretrained(path, trust_remote_code=True)", True),
        ("LlamaForCausalLM.from_pretrained(path)", True),
        ("model_class.from_pretrained(path, **more)", True),
        ("AutoConfig.for_model('llama')", True),
        ("transformers.pipeline('text-generation')", True),
        ("AutoConfig.from_pretrained(path, trust_remote_code=False)", False),
    ],
)
def test_trap_12_the_rule_sees_every_way_in(line: str, is_trap: bool) -> None:
    assert finds(asks_about_code, line) == is_trap


def test_trap_12_remote_code_is_refused_in_so_many_words() -> None:
    assert found_in(asks_about_code, "app", "engine", "kernels", "packaging") == []


# ---- 13: asking Qt for a dark scheme does nothing on every platform --------------------------


def asks_qt_for_dark(module: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in ("setColorScheme", "unsetColorScheme"):
            yield node


def test_trap_13_qt_is_not_asked_for_its_dark() -> None:
    assert finds(asks_qt_for_dark, "hints.setColorScheme(Qt.ColorScheme.Dark)")
    assert found_in(asks_qt_for_dark, "app") == []


# ---- 14: exec() inside a coroutine breaks qasync -----------------------------------------------

STATIC = {
    "QMessageBox": ("about", "aboutQt", "critical", "information", "question", "warning"),
    "QFileDialog": (
        "getOpenFileName", "getOpenFileNames", "getSaveFileName", "getExistingDirectory",
        "getOpenFileUrl", "getSaveFileUrl", "getExistingDirectoryUrl",
    ),
    "QInputDialog": ("getText", "getItem", "getInt", "getDouble", "getMultiLineText"),
    "QColorDialog": ("getColor",),
    "QFontDialog": ("getFont",),
}  # fmt: skip


def nested_loops(module: ast.Module) -> Iterator[ast.AST]:
    """Whatever turns an event loop inside an event loop."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Attribute):
            continue
        owner = ast.unparse(node.value).split(".")[-1]
        if node.attr in ("exec", "exec_", "processEvents") or node.attr in STATIC.get(owner, ()):
            yield node


@pytest.mark.parametrize(
    "line",
    [
        "dialog.exec()", "menu.exec_(position)", "act = menu.exec", "QDrag(self).exec(actions)",
        "QMessageBox.question(self, 'a', 'b')", "QtWidgets.QFileDialog.getOpenFileName(self)",
        "QInputDialog.getText(self, 'a', 'b')", "QApplication.processEvents()",
    ],
)  # fmt: skip
def test_trap_14_the_rule_sees_every_nested_loop(line: str) -> None:
    assert finds(nested_loops, line)


def test_trap_14_no_nested_event_loop_anywhere() -> None:
    assert not finds(nested_loops, "menu.popup(at)\ndialog.open()")
    assert found_in(nested_loops, "app") == []
