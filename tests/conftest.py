"""Basics of every test: no screen, no network, a data folder of its own, the starter model."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# Before anything imports Qt or the Hugging Face libraries, which read these once.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # silent about forks in tests

import pytest

from engine import places

# The user's own data folder, where the set-up put the starter model. It is only read from.
_MODEL = places.starter_path(places.data_dir())


def _with_model(folder: Path) -> Path:
    """Make the starter model appear inside a data folder, without a second copy if possible."""
    target = places.starter_path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    if _MODEL.exists():
        try:
            target.symlink_to(_MODEL)
        except OSError:  # Windows without the right to make links
            shutil.copyfile(_MODEL, target)
    return folder


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """TESSERA_DATA_DIR for this process and its children: tests never touch the user's chats."""
    folder = _with_model(tmp_path_factory.mktemp("tessera-data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSERA_DATA_DIR", str(folder))
        yield folder


@pytest.fixture
def data_folder(tmp_path: Path, starter_model: Path) -> Path:
    """A fresh data folder that holds the starter model and nothing else."""
    assert starter_model.exists()
    return _with_model(tmp_path / "data")


@pytest.fixture(scope="session")
def starter_model() -> Path:
    """The real starter model's path, outside every folder that tests write to."""
    if not _MODEL.exists():
        pytest.fail(
            f"The starter model is not at {_MODEL}: run `python3 packaging/bootstrap.py test`, "
            "or set TESSERA_DATA_DIR to the data folder that holds it."
        )
    return _MODEL


@pytest.fixture(scope="module", autouse=True)
def collect_on_the_main_thread() -> Iterator[None]:
    """Garbage is collected here, between modules, as the app does it: a collection that starts by
    itself on a worker thread would destroy QObjects there, and the process with them."""
    gc.disable()
    yield
    gc.collect()
    gc.enable()
