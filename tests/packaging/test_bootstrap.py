"""The set-up's gate, its command line, and what it leaves of other people's arguments."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BOOTSTRAP = ROOT / "packaging/bootstrap.py"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module setup_steps, as bootstrap.py sees it."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import setup_steps

    return setup_steps


def bootstrap(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BOOTSTRAP), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        timeout=60,
    )


def test_the_gate_parses_on_an_old_python() -> None:
    ast.parse(BOOTSTRAP.read_text(encoding="utf-8"), feature_version=(3, 6))


def test_an_old_python_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import bootstrap as gate

    monkeypatch.setattr(gate.sys, "version_info", (3, 9, 2))
    assert gate.main() == 1
    said = capsys.readouterr().err
    assert "needs Python 3.11 or newer and this is Python 3.9" in said
    assert said.count("\n") == 1


def test_no_command_prints_the_usage_and_fails() -> None:
    done = bootstrap()
    assert done.returncode == 2
    assert "run " in done.stderr


def test_an_unknown_command_is_named() -> None:
    done = bootstrap("isntall")
    assert done.returncode == 2
    assert "'isntall'" in done.stderr.splitlines()[-1]


def test_data_dir_without_a_folder_is_one_sentence() -> None:
    done = bootstrap("run", "--data-dir")
    assert done.returncode == 1
    assert done.stderr == "tessera: --data-dir needs a folder after it.\n"


@pytest.mark.parametrize(
    ("arguments", "given", "rest"),
    [
        ([], None, []),
        (["--data-dir", "a b", "--demo", "x"], "a b", ["--demo", "x"]),
        (["-h", "--data-dir=d", "--model", "m"], "d", ["-h", "--model", "m"]),
        (["tests/engine", "-k", "a or b"], None, ["tests/engine", "-k", "a or b"]),
    ],
)
def test_only_data_dir_is_taken_from_the_arguments(
    steps: ModuleType, arguments: list[str], given: str | None, rest: list[str]
) -> None:
    assert steps.take_data_dir(arguments) == (given, rest)


class Trace:
    """Stands where the steps are: the real ones would install things and start the window."""

    def __init__(
        self, steps: ModuleType, monkeypatch: pytest.MonkeyPatch, codes: dict[str, int]
    ) -> None:
        self.commands: list[list[str]] = []
        self.variables: list[dict[str, str]] = []
        environment = steps.setup_venv.Environment(ROOT, steps.pip_errors.explain)
        monkeypatch.setattr(steps, "prepare", lambda for_tests: environment)
        monkeypatch.setattr(steps, "fetch_starter", lambda environment, data_dir: data_dir)
        monkeypatch.setattr(steps.os, "execve", self._become)
        self._codes = codes
        monkeypatch.setattr(steps.subprocess, "run", self._run)

    def _become(self, program: str, command: list[str], variables: dict[str, str]) -> None:
        self.commands.append(command)
        self.variables.append(variables)

    def _run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        self.variables.append(options["env"])
        code = next((code for word, code in self._codes.items() if word in command), 0)
        return subprocess.CompletedProcess(command, code)


def test_run_hands_everything_else_to_the_app(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = Trace(steps, monkeypatch, {})
    steps.main(["run", "--data-dir", str(tmp_path), "--model", "./m.gguf", "-x"])
    command = trace.commands[0]
    assert command[1:4] == ["-P", "-m", "app"]
    assert command[4:] == ["--data-dir", str(tmp_path), "--model", "./m.gguf", "-x"]
    assert trace.variables[0]["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_run_starts_without_a_model_when_it_cannot_be_fetched(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = Trace(steps, monkeypatch, {})

    def no_network(environment: object, data_dir: Path) -> Path:
        raise steps.DownloadError("The network is away.")

    monkeypatch.setattr(steps, "fetch_starter", no_network)
    steps.main(["run"])
    assert trace.commands[0][1:4] == ["-P", "-m", "app"]
    assert "The network is away." in capsys.readouterr().err
    assert steps.main(["test"]) == 1, "tests need it"


def test_test_runs_every_check_and_hands_the_rest_to_pytest(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = Trace(steps, monkeypatch, {})
    assert steps.main(["test", "--data-dir", str(tmp_path), "-k", "pool"]) == 0
    ran = [" ".join(Path(word).name for word in command[:4]) for command in trace.commands]
    assert [line.split(" ", 1)[-1] for line in ran] == [
        "-m ruff check",
        "-m ruff format",
        "-m mypy",
        "lint-imports",
        "-m pytest -k",
    ]
    assert trace.commands[-1][-2:] == ["-k", "pool"]
    assert all(each["TESSERA_DATA_DIR"] == str(tmp_path) for each in trace.variables)


@pytest.mark.parametrize("broken", ["check", "--check", "mypy", "pytest"])
def test_one_failed_check_fails_the_test_command_but_the_others_still_run(
    steps: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    trace = Trace(steps, monkeypatch, {broken: 1})
    assert steps.main(["test"]) == 1
    assert len(trace.commands) == 5
    assert "Failed: " in capsys.readouterr().err.splitlines()[-1]


def test_ctrl_c_says_that_it_goes_on_from_here(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(for_tests: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "prepare", interrupt)
    assert steps.main(["setup"]) == 130
    assert "goes on from here" in capsys.readouterr().err


def test_ci_runs_the_test_command() -> None:
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1].endswith("python3 packaging/bootstrap.py test")
