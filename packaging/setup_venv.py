"""The virtual environment: made, filled with the pinned packages, and found whole again.

A stamp file, written last, says for which pins and which Python the environment is complete. No
stamp, or another one: the run is repeated, and pip keeps what is already right. So an interrupted
run heals at the next, and a finished one costs one small read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from setup_report import SetupError, say

CONSTRAINTS = Path("packaging/constraints.txt")
CONSTRAINTS_TRITON = Path("packaging/constraints-triton.txt")
STAMP = "tessera-stamp.json"
# Measured: 2.7 GB with the CPU build of torch and the test tools; a CUDA build needs about 8 GB,
# which pip finds out by itself.
NEEDED_BYTES = 3_500_000_000
HEARTBEAT_S = 30.0
# Loaded once after installing: a package that arrived damaged shows here, not in the window.
PROOF = "import numpy, torch, tokenizers, qasync, PySide6.QtWidgets, jinja2, gguf, transformers"


@dataclass(frozen=True)
class Environment:
    """The environment of one checkout. `explain` turns a pip failure into a sentence."""

    root: Path
    explain: Callable[[str, int], str]

    @property
    def folder(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        windows = sys.platform == "win32"
        return self.folder / ("Scripts/python.exe" if windows else "bin/python")

    def script(self, name: str) -> Path:
        """A command that a package installed into the environment."""
        return self.python.with_name(name + (".exe" if sys.platform == "win32" else ""))

    def is_ready(self, for_tests: bool) -> bool:
        """Whether the environment is complete for the pins and the Python of today."""
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if not isinstance(stamp, dict) or stamp.get("key") != self._key():
            return False
        return self.python.exists() and (stamp.get("tests") is True or not for_tests)

    def ensure(self, for_tests: bool) -> None:
        """Make the environment complete; a moment when it already is.

        Raises:
            SetupError: it cannot be made; the sentence names the way out.
        """
        if self.is_ready(for_tests):
            return
        for_tests = for_tests or self._had_tests()
        self._check_room()
        try:
            self._make()
            self._forget_half_installed()
            (self.folder / STAMP).unlink(missing_ok=True)
            self._install(for_tests)
            self._prove()
            self._write_stamp(for_tests)
        except OSError as error:
            raise SetupError(
                f"{self.folder} cannot be written ({error.strerror or error}): make room or give "
                "write permission, and run the same command again."
            ) from error

    # ---- the stamp -------------------------------------------------------------------------

    def _key(self) -> str:
        """A hash of everything that decides what has to be installed."""
        digest = hashlib.sha256()
        for part in (self.requirements(True), platform.python_implementation(), sys.platform):
            digest.update(repr(part).encode())
        digest.update(repr((sys.version_info[:2], platform.machine())).encode())
        for constraints in (CONSTRAINTS, CONSTRAINTS_TRITON):
            digest.update((self.root / constraints).read_bytes())
        return digest.hexdigest()

    def requirements(self, for_tests: bool) -> list[str]:
        """The requirements that pyproject.toml names, with the test tools if asked for."""
        with (self.root / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        wanted: list[str] = list(project["dependencies"])
        return wanted + (list(project["optional-dependencies"]["dev"]) if for_tests else [])

    def _had_tests(self) -> bool:
        """Whether the test tools were wanted before: new pins then refresh them too."""
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(stamp, dict) and stamp.get("tests") is True

    def _write_stamp(self, for_tests: bool) -> None:
        part = self.folder / (STAMP + ".part")
        part.write_text(json.dumps({"key": self._key(), "tests": for_tests}), encoding="utf-8")
        os.replace(part, self.folder / STAMP)

    # ---- making it -------------------------------------------------------------------------

    def _check_room(self) -> None:
        """Refuse early, with numbers, when the disk cannot hold a new environment."""
        if not os.access(self.folder if self.folder.exists() else self.root, os.W_OK):
            raise SetupError(
                f"{self.root} cannot be written to: give yourself write permission, or copy the "
                "project to a folder of your own and run it there."
            )
        free = shutil.disk_usage(self.root).free
        if free < NEEDED_BYTES and not self._answers():
            raise SetupError(
                f"The packages need about {NEEDED_BYTES / 1e9:.1f} GB (8 GB where PyTorch brings "
                f"CUDA) and {self.root} has {free / 1e9:.1f} GB free: make room and run the same "
                "command again."
            )

    def _answers(self) -> bool:
        """Whether the environment's Python runs, has pip, and is of the version that runs us."""
        if not self.python.exists():
            return False
        # INSTALLER is the last sign of a whole pip: `import pip` works with half of its files.
        question = (
            "import sys, importlib.metadata as packages;"
            "packages.distribution('pip').read_text('INSTALLER') or sys.exit(1);"
            "print(*sys.version_info[:2])"
        )
        try:
            answer = subprocess.run(
                [self.python, "-I", "-c", question], capture_output=True, text=True, timeout=60
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return answer.stdout.split() == [str(number) for number in sys.version_info[:2]]

    def _make(self) -> None:
        """Create the environment, or create it anew when it is half made or of another Python."""
        if self._answers():
            return
        again = self.folder.exists()
        say("Making .venv anew: it was not complete" if again else "Making .venv")
        command = [sys.executable, "-m", "venv", "--clear", str(self.folder)]
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode != 0:
            output = (made.stdout + made.stderr).strip()
            last = output.splitlines()[-1][:200] if output else f"exit code {made.returncode}"
            reason = self.explain(output, made.returncode)
            if reason.startswith("pip failed"):
                reason = f"Delete {self.folder} and run the same command again"
            raise SetupError(f"The environment .venv could not be made ({last}). {reason}.")

    def site_packages(self) -> Path:
        """Where the environment's packages lie."""
        if sys.platform == "win32":
            return self.folder / "Lib/site-packages"
        major, minor = sys.version_info[:2]
        return self.folder / f"lib/python{major}.{minor}/site-packages"

    def _forget_half_installed(self) -> None:
        """Drop the records of packages that a killed pip had only begun to write.

        pip writes INSTALLER after the last file of a package; a record without it makes pip
        believe in files that may not be there. `~name` folders are a killed upgrade's leavings.
        """
        site = self.site_packages()
        for record in site.glob("*.dist-info"):
            if not (record / "INSTALLER").exists() or not (record / "RECORD").exists():
                shutil.rmtree(record)
        for leaving in site.glob("~*"):
            shutil.rmtree(leaving) if leaving.is_dir() else leaving.unlink()

    # ---- filling it ------------------------------------------------------------------------

    def _install(self, for_tests: bool) -> None:
        """PyTorch first, since its build decides who pins triton; then everything else."""
        say("Installing PyTorch (the largest part: minutes on a slow line)")
        self._pip("torch")
        constraints = ["-c", str(self.root / CONSTRAINTS_TRITON)]
        triton = [] if self.torch_brings_triton() else constraints
        say("Installing the other packages")
        self._pip(*triton, *self.requirements(for_tests))

    def torch_brings_triton(self) -> bool:
        """Whether the installed torch names a triton of its own, as CUDA builds do."""
        found = importlib.metadata.distributions(name="torch", path=[str(self.site_packages())])
        needs = [need for torch in found for need in torch.requires or []]
        return any(need.startswith("triton") and "extra ==" not in need for need in needs)

    def _pip(self, *arguments: str) -> None:
        """One pip install with the pins.

        Its progress goes to stderr, so that stdout belongs to the app; its errors go there too,
        and are kept, to be turned into a sentence.
        """
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--no-input", "-c", str(self.root / CONSTRAINTS), *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        kept: list[str] = []
        reader = threading.Thread(target=_pass_on, args=(process.stderr, kept), daemon=True)
        reader.start()
        code = _wait(process)
        reader.join(timeout=5)
        if code != 0:
            raise SetupError(self.explain("".join(kept), code) + ".")

    def _prove(self) -> None:
        """Load what the app loads, once; raises SetupError when a package is damaged."""
        say("Checking that the packages load")
        command = [str(self.python), "-I", "-c", PROOF]
        proof = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if proof.returncode != 0:
            lines = proof.stderr.strip().splitlines() or [f"exit code {proof.returncode}"]
            raise SetupError(
                f"The installed packages do not load ({lines[-1][:200]}): delete {self.folder} "
                "and run the same command again."
            )


def find_missing_venv() -> dict[str, str]:
    """The parts of the standard library without which no environment can be made."""
    import setup_system

    names = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    return {f"the Python module {name}": setup_system.venv_package() for name in names}


def _pass_on(stream: IO[bytes], kept: list[str]) -> None:
    """Show pip's error output as it comes, and keep it."""
    for line in stream:
        text = line.decode(errors="replace")
        kept.append(text)
        print(text, end="", file=sys.stderr, flush=True)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for pip, saying now and then that it is still at work where it draws no progress bar."""
    waited_s = 0.0
    try:
        while True:
            try:
                return process.wait(timeout=HEARTBEAT_S)
            except subprocess.TimeoutExpired:
                waited_s += HEARTBEAT_S
                if not sys.stderr.isatty():
                    say(f"still installing, {waited_s:.0f} s so far")
    finally:
        if process.poll() is None:  # we are being interrupted: pip must not go on alone
            process.terminate()
            process.wait()
