"""Fuzzer of the model readers: damages small valid models and loads them as the engine does.

    python tests/fuzz/files.py --cases 100000 --seed 1

Every case must load, or end in an error of `engine.errors` with a sentence a person can use, within
2 s of CPU and 64 MiB. The exit status is 1 when a case did not. A case is made from (seed, reader,
number) alone: `--first N --cases 1 --keep DIR` repeats one and leaves its files.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType

os.environ["RUST_BACKTRACE"] = "0"  # else a panic takes 100 ms to say where it was
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mutations
import tiny_models
import torch

from engine.config import EngineConfig
from engine.errors import TesseraError
from engine.model.loader import load_model
from engine.text import Text

MOST_CPU_S = 2.0
MOST_BYTES = 64 << 20
WATCHED = 100  # cases: should they take longer than this, the stack is printed and all ends
HANGS_S = 2 * WATCHED * MOST_CPU_S
CPU = torch.device("cpu")
CONFIG = EngineConfig(precision="exact")  # packing weights for a CPU would take most of the time
Files = tiny_models.Files


class TooSlow(BaseException):
    """Past every `except Exception`."""


def load(path: Path) -> None:
    """All that the engine does with a file before the first request, and a first text."""
    model = load_model(path, CONFIG, CPU, lambda fraction, note: None)
    source = model.tokenizer_source
    text = Text.from_folder(source) if isinstance(source, Path) else Text.from_gguf(source)
    ids = text.encode_raw("a chat <s>\n") + text.encode_rendered("<s>a b</s>", "")
    assert all(0 <= index < text.vocab_size for index in ids), ids
    text.decode(ids)
    stream = text.stream(("b",))
    for index in (*ids, *text.eos_ids, text.vocab_size, 0):
        stream.push(index)
    json.dumps(text.variables)  # they go to the template worker like this


def outcome(path: Path) -> tuple[str, str]:
    """(what came of it, what is wrong with that or "")"""
    try:
        load(path)
    except TesseraError as error:
        return type(error).__name__, _unfit(str(error))
    except TooSlow:
        return "too slow", f"over {MOST_CPU_S} s of CPU"
    except BaseException as error:  # a panic of the tokenisers' library is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return type(error).__name__, f"{type(error).__name__}: {str(error)[:200]}"
    return "loads", ""


def _unfit(sentence: str) -> str:
    """Why a person cannot use this sentence."""
    if not sentence.isprintable():
        return f"unprintable: {sentence!r}"
    if not 20 <= len(sentence) <= 400:
        return f"{len(sentence)} characters: {sentence[:450]}"
    words = ("etch", "hoose", "ownload", "ake ", "ry again", "heck", "dd the", "not of the same")
    if not any(word in sentence for word in (*words, "would not run", "cannot be used")):
        return f"no way out: {sentence}"
    return ""


# --- limits -------------------------------------------------------------------------------------


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _forget_peak() -> None:
    """So that the next growth shows; only Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


@contextmanager
def _limited() -> Iterator[None]:
    """Ends Python code after MOST_CPU_S of CPU; code of libraries that hangs ends the process."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    former = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def judged(path: Path) -> tuple[str, str]:
    """`outcome`, held against the limits of time and memory."""
    peak, started = _peak_bytes(), time.process_time()
    try:
        with _limited():
            kind, wrong = outcome(path)
    except TooSlow:  # the signal came a moment too late
        kind, wrong = "too slow", f"over {MOST_CPU_S} s of CPU"
    grown, seconds = _peak_bytes() - peak, time.process_time() - started
    if grown > MOST_BYTES:
        _forget_peak()
        wrong = wrong or f"memory grew by {grown >> 20} MiB"
    if seconds > MOST_CPU_S:
        wrong = wrong or f"took {seconds:.1f} s of CPU"
    return kind, wrong


# --- cases --------------------------------------------------------------------------------------


class GgufCases:
    """One file, damaged in its bytes, in its numbers, or in what it says."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.gguf"
        self._makers = list(tiny_models.GGUFS.values())

    def plain(self) -> Iterator[Path]:
        for make in self._makers:
            self._path.write_bytes(make().file())
            yield self._path

    def make(self, random_: random.Random) -> Path:
        parts = random_.choice(self._makers)()
        if random_.random() < 0.5:
            mutations.of_gguf(random_, parts)
        data = parts.file()
        if random_.random() < 0.6:
            data = mutations.of_numbers(random_, data, parts.spots)
        if random_.random() < 0.3:
            data = mutations.of_bytes(random_, data)
        self._path.write_bytes(data)
        return self._path


class FolderCases:
    """A model folder of which one to three files are damaged."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._folders = {name: make() for name, make in tiny_models.FOLDERS.items()}
        for name, files in self._folders.items():
            (folder / name).mkdir()
            for file, data in files.items():
                (folder / name / file).write_bytes(data)
        self._damaged: tuple[str, dict[str, bytes]] = ("json", {})

    def plain(self) -> Iterator[Path]:
        for name in self._folders:
            yield self._root / name

    def make(self, random_: random.Random) -> Path:
        self._repair()
        # Seldom the last two: a table of characters of 240 kB, and a second of transformers.
        (name,) = random_.choices(list(self._folders), (240, 180, 40, 1))
        files = self._folders[name]
        chosen = random_.sample(list(files), random_.choice((1, 1, 2, 3)))
        damaged = {file: files[file] for file in chosen}
        self._damaged = (name, damaged)
        for file, data in damaged.items():
            path = self._root / name / file
            if random_.random() < 0.02:
                path.unlink()
            else:
                path.write_bytes(mutations.of_file(random_, file, data))
        return self._root / name

    def _repair(self) -> None:
        name, damaged = self._damaged
        for file, data in damaged.items():
            (self._root / name / file).write_bytes(data)


READERS: dict[str, Callable[[Path], GgufCases | FolderCases]] = {
    "gguf": GgufCases,
    "safetensors": FolderCases,
}


def run(
    reader: str, seed: int, first: int, num_cases: int, keep: Path | None = None
) -> tuple[Counter[str], list[str]]:
    """(how often each outcome came, a line for each case that must not be so)"""
    counts: Counter[str] = Counter()
    wrongs: list[str] = []
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        cases = READERS[reader](Path(name))
        import_module("transformers.modeling_utils")  # 2 s once, which no case shall pay for
        for path in cases.plain():
            load(path)
        for number in range(first, first + num_cases):
            if (number - first) % WATCHED == 0:
                faulthandler.dump_traceback_later(HANGS_S, exit=True)
            path = cases.make(random.Random(f"{seed}/{reader}/{number}"))
            kind, wrong = judged(path)
            counts[kind] += 1
            if wrong:
                wrongs.append(f"{reader} seed {seed} case {number}: {wrong}")
            if keep is not None and (wrong or num_cases == 1):
                target = keep / f"{reader}-{seed}-{number}{path.suffix}"
                (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
    faulthandler.cancel_dump_traceback_later()
    return counts, wrongs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100_000, help="for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--reader", choices=[*READERS], help="only this one")
    parser.add_argument("--keep", type=Path, help="folder for the files of failing cases")
    args = parser.parse_args()
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    num_wrong = 0
    for reader in [args.reader] if args.reader else READERS:
        started = time.monotonic()
        counts, wrongs = run(reader, args.seed, args.first, args.cases, args.keep)
        seconds = time.monotonic() - started
        print(f"{reader}: {args.cases:,} cases in {seconds:.0f} s, seed {args.seed}", flush=True)
        for kind, count in counts.most_common():
            print(f"  {count:>9,} {kind}")
        print(f"  {len(wrongs):>9,} faults")
        print(*wrongs, sep="\n", end="\n" if wrongs else "")
        num_wrong += len(wrongs)
    return 1 if num_wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
