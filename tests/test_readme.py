"""README tells the truth: its map names every module, its pictures and commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_map_names_every_module_in_its_own_words() -> None:
    spec = importlib.util.spec_from_file_location("map_of_files", ROOT / "tests/map_of_files.py")
    assert spec is not None
    assert spec.loader is not None
    map_of_files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(map_of_files)
    _, section, _ = map_of_files.split(README)
    assert section.strip() == map_of_files.section().strip(), "run: python tests/map_of_files.py"


def test_every_picture_and_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_two_commands_are_the_first_two() -> None:
    commands = re.findall(r"^(python3 packaging/bootstrap\.py \w+)$", README, re.MULTILINE)
    assert commands[:2] == [
        "python3 packaging/bootstrap.py run",
        "python3 packaging/bootstrap.py test",
    ]
