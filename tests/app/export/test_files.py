"""Names that no system refuses, and files that are whole or not there."""

from __future__ import annotations

import errno
import io
import os
import stat
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ExportError
from app.export import files
from app.export.files import FALLBACK, MAX_NAME_BYTES, free_path, safe_name, write_atomic, write_new

DEVICES = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"]
DEVICES += [f"{name}{number}" for name in ("COM", "LPT") for number in "0123456789¹²³"]
TURNS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


# ---- names -----------------------------------------------------------------------------------


def is_safe(name: str) -> bool:
    """Whether Windows, macOS and Linux take this name with an extension and a number behind it."""
    whole = f"{name} (99).html"
    return (
        0 < len(name.encode()) <= MAX_NAME_BYTES + 1  # a device's name gets one more
        and len(whole.encode()) <= 255
        and not set(name) & set('<>:"/\\|?*' + TURNS)
        and not any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in name)
        and name == name.strip(" .")
        and name.split(".")[0].rstrip().upper() not in DEVICES
        and unicodedata.is_normalized("NFC", name)
        and any(unicodedata.category(one)[0] in "LNSP" for one in name)
    )


PIECES = st.sampled_from(
    [*DEVICES, "con", "Aux", ".", "..", " ", "/", "\\", ":", "\x00", "\n", "\x7f", "\x85", "\u2028",
     *TURNS, "\u200b", "\u200d", "\ufeff", "\ud800", "\ufffe", "\ue000", "e\u0301", "你" * 40, "🏽",
     "👩‍👩‍👧" * 9, "~", "%", "$HOME", "..\\..\\", "\u3164", "\u0300" * 200, "x" * 140, "-", "_"]
)  # fmt: skip


@given(st.lists(PIECES | st.characters(exclude_categories=()), max_size=6).map("".join))
@settings(max_examples=500, deadline=None)
def test_every_title_gives_a_safe_name(title: str) -> None:
    name = safe_name(title)
    assert is_safe(name), ascii(name)
    assert safe_name(name) == name


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("What is 1/2?", "What is 1-2-"),
        ("a:b*c|d<e>f\"g\\h", "a-b-c-d-e-f-g-h"),
        ("../../etc/passwd", "-..-etc-passwd"),
        ("  two   spaces\tand\nlines  ", "two spaces and lines"),
        (".hidden", "hidden"),
        ("dots...", "dots"),
        ("space . .", "space"),
        ("v1.2 notes.txt", "v1.2 notes.txt"),
        ("exe\u202efdp.scr", "exefdp.scr"),
        ("a\x00b\x1bc", "a b c"),
        ("cafe\u0301", "café"),
        ("日本語 עברית", "日本語 עברית"),
        ("👩‍👩‍👧 family", "👩‍👩‍👧 family"),
        ("-rf", "-rf"),
    ],
)  # fmt: skip
def test_a_title_stays_recognisable(title: str, name: str) -> None:
    assert safe_name(title) == name


@pytest.mark.parametrize("device", [*DEVICES, "con", "Com1", "nUl"])
@pytest.mark.parametrize(
    "form", ["{}", "{}.", "{} ", "{}.txt", "{} .txt", " {}", "{}..a", "\u200e{}"]
)
def test_no_name_is_a_device_of_windows(device: str, form: str) -> None:
    name = safe_name(form.format(device))
    assert name.lower().startswith(device.lower())
    assert is_safe(name), name


@pytest.mark.parametrize("title", ["console", "nullable", "com10", "my con", "CON-1", "aux_"])
def test_names_that_only_resemble_a_device_stay(title: str) -> None:
    assert safe_name(title) == title


@pytest.mark.parametrize(
    "title",
    ["", " ", ".", "...", "???", "/", "--", "\x00", "\ud800", "\u200d", "\u00ad", "\ufe0f",
     "\u3164", "\u2800", "\u202e", "\u0301", "_"],
)  # fmt: skip
def test_a_title_without_anything_to_see_gets_a_name(title: str) -> None:
    assert safe_name(title) == FALLBACK


@pytest.mark.parametrize(
    "one", ["x", "é", "e\u0323\u0302", "你", "🙂", "👍🏽", "👩‍👩‍👧", "🇨🇭", "क्षि", "❤️"]
)
@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_long_titles_are_cut_between_characters(one: str, before: str) -> None:
    """At 150 bytes, never before an accent or within an emoji."""
    title = unicodedata.normalize("NFC", before + one * 300)
    name = safe_name(title)
    assert MAX_NAME_BYTES - 24 <= len(name.encode()) <= MAX_NAME_BYTES
    assert title.startswith(name)
    rest = title[len(name)]
    assert unicodedata.category(rest)[0] != "M"
    assert rest not in ("\u200d", "🏽")
    assert name[-1] != "\u200d"


def test_a_title_cut_after_a_space_or_dot_does_not_end_with_it() -> None:
    assert safe_name("x" * 149 + " y") == "x" * 149
    assert safe_name("x" * 148 + "..." + "y") == "x" * 148


def test_a_free_path_counts_up(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = free_path(tmp_path, "A/b", "md")
        path.write_text("")
        names.append(path.name)
    assert names == ["A-b.md", "A-b (2).md", "A-b (3).md"]
    assert free_path(tmp_path, "A/b", "json").name == "A-b.json"


def test_a_link_to_nowhere_and_a_folder_take_a_name_too(tmp_path: Path) -> None:
    (tmp_path / "A.md").symlink_to(tmp_path / "gone")
    (tmp_path / "A (2).md").mkdir()
    assert free_path(tmp_path, "A", "md").name == "A (3).md"


# ---- writing ---------------------------------------------------------------------------------


def test_a_file_is_written_in_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.md"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["a.md"]


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_atomic(tmp_path / "a.md", b"x")
    wanted = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE((tmp_path / "a.md").stat().st_mode) == wanted


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
def test_a_replaced_file_keeps_its_rights_and_a_link_its_target(tmp_path: Path) -> None:
    secret, link = tmp_path / "secret.md", tmp_path / "link.md"
    secret.write_text("old")
    secret.chmod(0o600)
    link.symlink_to(secret)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert secret.read_bytes() == b"new"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_many_exports_at_once_replace_nothing(tmp_path: Path) -> None:
    contents = [b"%d" % number * 1000 for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda one: write_new(tmp_path, "Same", "md", one), contents))
    assert len(set(paths)) == 40
    assert [path.read_bytes() for path in paths] == contents
    assert len(os.listdir(tmp_path)) == 40


def test_a_name_taken_at_the_last_moment_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    def slow(folder: Path, title: str, extension: str) -> Path:
        path = free_path(folder, title, extension)
        if path.name == "A.md":
            path.write_text("another program's")
        return path

    monkeypatch.setattr(files, "free_path", slow)
    assert write_new(tmp_path, "A", "md", b"ours").name == "A (2).md"
    assert (tmp_path / "A.md").read_text() == "another program's"
    assert (tmp_path / "A (2).md").read_bytes() == b"ours"


# ---- disks that say no -------------------------------------------------------------------------


class FullDisk(io.FileIO):
    """A file on a disk with room for three bytes."""

    def write(self, content: Any) -> int:
        super().write(bytes(content)[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full(path: Path, mode: str) -> FullDisk:
    return FullDisk(path, mode.replace("b", ""))


def read_only(path: Path, mode: str) -> FullDisk:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def broken(*_: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


Breaks = Callable[[pytest.MonkeyPatch], None]
FAILURES: dict[str, tuple[Breaks, int]] = {
    "full": (lambda patch: patch.setattr(files, "open", full, raising=False), errno.ENOSPC),
    "read-only": (
        lambda patch: patch.setattr(files, "open", read_only, raising=False),
        errno.EACCES,
    ),
    "not synced": (lambda patch: patch.setattr(files.os, "fsync", broken), errno.EIO),
    "not renamed": (lambda patch: patch.setattr(files.os, "replace", broken), errno.EIO),
}


@pytest.mark.parametrize(("breaks", "number"), FAILURES.values(), ids=FAILURES)
def test_a_disk_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch, is_one_sentence, breaks: Breaks, number: int
) -> None:
    path = tmp_path / "A.md"
    path.write_text("old")
    with monkeypatch.context() as patch:
        breaks(patch)
        with pytest.raises(ExportError) as replacing:
            write_atomic(path, b"new text")
        with pytest.raises(ExportError) as adding:
            write_new(tmp_path, "A", "md", b"new text")
    assert os.listdir(tmp_path) == ["A.md"]
    assert path.read_text() == "old"
    for caught in (replacing, adding):
        assert f"{path} could not be written ({os.strerror(number)})" in str(caught.value)
        assert is_one_sentence(str(caught.value))


def test_a_real_limit_of_the_system_leaves_no_half_file(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="Windows limits no sizes of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ExportError, match=os.strerror(errno.EFBIG)):
            write_atomic(tmp_path / "A.md", b"x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["a\x00b.md", "\ud800.md", "x" * 300, "x" * 300 + "/a.md", "a\n" * 200]
)
def test_a_path_that_no_system_takes_is_a_sentence(tmp_path, is_one_sentence, name: str) -> None:
    with pytest.raises(ExportError, match="choose another") as caught:
        write_atomic(tmp_path / name, b"x")
    assert is_one_sentence(str(caught.value).replace(str(tmp_path), ""))
    assert os.listdir(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_a_sentence(tmp_path, is_one_sentence) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.md", tmp_path / "file" / "deep" / "a.md"):
        with pytest.raises(ExportError) as caught:
            write_atomic(path, b"x")
        assert is_one_sentence(str(caught.value))
    with pytest.raises(ExportError, match="could not be written"):
        write_new(tmp_path / "gone", "A", "md", b"x")


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """As an administrator, renaming over a device would replace the device."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ExportError, match="is not a file"):
        write_atomic(tmp_path / "folder", b"x")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ExportError, match="is not a file"):
            write_atomic(tmp_path / "pipe", b"x")
        assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
