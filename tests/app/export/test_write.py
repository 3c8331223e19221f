"""One door for four formats: what it returns lies there, whole, and nothing else does."""

from __future__ import annotations

import ast
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.errors import ExportError
from app.export import files
from app.export.importer import read_export
from app.export.write import FORMATS, write_export

STARTS = {"md": b"# A chat\n", "json": b"{\n", "html": b"<!DOCTYPE html>", "pdf": b"%PDF-"}
FOLDER = Path(__file__).resolve().parents[3] / "app" / "export"


@pytest.mark.parametrize("format_name", FORMATS)
def test_into_a_folder_under_the_name_of_the_chat(qapp, chat, tmp_path, format_name: str) -> None:
    first = write_export(chat(("q", "a")), format_name, tmp_path)
    second = write_export(chat(("q", "b")), format_name, tmp_path)
    assert [first.name, second.name] == [f"A chat.{format_name}", f"A chat (2).{format_name}"]
    assert first.read_bytes().startswith(STARTS[format_name])
    assert sorted(os.listdir(tmp_path)) == sorted([first.name, second.name])


@pytest.mark.parametrize("format_name", FORMATS)
def test_to_the_file_that_the_user_named(qapp, chat, tmp_path, format_name: str) -> None:
    path = tmp_path / "named by me"
    path.write_text("old")
    assert write_export(chat(("q", "a")), format_name, path) == path
    assert path.read_bytes().startswith(STARTS[format_name])


def test_what_is_written_is_read_again(chat, tmp_path) -> None:
    session = chat(("q\x00\u202e", "a"), ("👩‍👩‍👧", None), title="Über: alles?")
    path = write_export(session, "json", tmp_path)
    assert path.name == "Über- alles-.json"
    assert read_export(path) == session


@pytest.mark.parametrize(
    "title", ["", "CON", "../up", "a" * 1000, "\x00", "?", "\ud83d", "x\u202ey."]
)
def test_any_title_lands_in_the_folder(chat, tmp_path, title: str) -> None:
    path = write_export(replace(chat(), title=title), "md", tmp_path / ".")
    assert path.parent == tmp_path
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("format_name", ["", "docx", "MD", "../md"])
def test_an_unknown_format_is_a_sentence(chat, tmp_path, is_one_sentence, format_name: str) -> None:
    with pytest.raises(ExportError, match="choose md, json, html or pdf") as caught:
        write_export(chat(), format_name, tmp_path)
    assert is_one_sentence(str(caught.value))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_disk_without_room(
    qapp, chat, tmp_path, monkeypatch, is_one_sentence, format_name: str
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", no_room)
    for path in (tmp_path, tmp_path / f"b.{format_name}"):
        with pytest.raises(ExportError, match="No space left on device") as caught:
            write_export(chat(("q", "a")), format_name, path)
        assert is_one_sentence(str(caught.value))
        assert f".{format_name} could not be written" in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["x" * 300, "a\x00b", "\ud800"])
def test_a_name_that_no_disk_takes_is_a_sentence(chat, tmp_path, name: str) -> None:
    with pytest.raises(ExportError, match="choose another"):
        write_export(chat(), "md", tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="the full device is Linux's")
def test_a_device_is_not_replaced(chat) -> None:
    with pytest.raises(ExportError, match="/dev/full is not a file"):
        write_export(chat(), "md", Path("/dev/full"))
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_exports_know_no_widget(path: Path) -> None:
    """They are made from the stored text: widgets damage code fences (trap 7)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)]
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not any("QtWidgets" in name or name.startswith(("app.views", "app.state"))
                       for name in names)  # fmt: skip
