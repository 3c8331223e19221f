"""The command line: what is taken, what is refused and how, and which model a window gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.options import model_to_load, parse
from engine.places import starter_path

ROOT = Path(__file__).resolve().parents[2]


def test_everything_is_taken(tmp_path):
    options = parse(
        ["--data-dir", str(tmp_path), "--model", "m.gguf", "--theme", "dark", "--num-blocks", "9",
         "--memory-fraction", "0.25", "--precision", "exact", "--backend", "reference",
         "--demo", "three-chats", "--shots", str(tmp_path / "shots")]
    )  # fmt: skip
    assert options.model == str(Path("m.gguf").absolute())
    assert (options.theme, options.demo) == ("dark", "three-chats")
    assert (options.config.num_blocks, options.config.memory_fraction) == (9, 0.25)
    assert (options.config.precision, options.config.backend) == ("exact", "reference")


def test_the_starter_is_a_path_in_the_data_folder(tmp_path):
    assert parse(["--data-dir", str(tmp_path), "--model", "starter"]).model == str(
        starter_path(tmp_path)
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--memory-fraction", "7"],
        ["--num-blocks", "0"],
        ["--num-blocks", "many"],
        ["--demo", "three-chats"],
        ["--shots", "x"],
        ["--demo", "three-chats", "--shots", "x", "--model", "starter"],
        ["--theme", "purple"],
        ["--nonsense"],
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, tmp_path, capsys):
    with pytest.raises(SystemExit) as ending:
        parse(["--data-dir", str(tmp_path), *arguments])
    assert ending.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1


def test_a_demo_without_a_model_is_one_sentence_and_status_2(tmp_path):
    shots = tmp_path / "shots"
    command = [sys.executable, "-m", "app", "--data-dir", str(tmp_path), "--demo", "three-chats"]
    for more in (["--shots", str(shots)], ["--shots", str(shots), "--model", "missing.gguf"]):
        done = subprocess.run(command + more, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1
    assert not shots.exists()


def test_help_needs_neither_qt_nor_torch():
    code = (
        "import sys, app.__main__, app.options\n"
        "app.options.parse([])\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('PySide6', 'torch')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_model_a_window_starts_with(tmp_path):
    last = tmp_path / "last.gguf"
    assert model_to_load("", "", tmp_path) == ""
    assert model_to_load("", str(last), tmp_path) == ""
    starter = starter_path(tmp_path)
    starter.parent.mkdir(parents=True)
    starter.touch()
    assert model_to_load("", str(last), tmp_path) == str(starter)
    last.touch()
    assert model_to_load("", str(last), tmp_path) == str(last)
    assert model_to_load("/given.gguf", str(last), tmp_path) == "/given.gguf"
