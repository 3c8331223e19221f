"""Files of exports: names that every system accepts, and writing without half-written files."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.errors import ExportError

MAX_NAME_BYTES = 150  # most systems allow 255; " (99)" and an extension are to come
MAX_TRIES = 1000  # other programs may take the names we find free, but not for ever
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$|clock\$)", re.IGNORECASE
)
_FORBIDDEN = '<>:"/\\|?*'
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_JOINER = "\u200d"  # within emoji and Arabic script: kept, but never the last character
_BLANK = "-_ .\u115f\u1160\u2800\u3164\uffa0"  # nothing to see, or nothing to tell files apart by
FALLBACK = "Chat"


# ---- names -----------------------------------------------------------------------------------


def safe_name(title: str) -> str:
    """A file name (without extension) that Windows, macOS and Linux accept, made from a title.

    Never empty, never a device name, never hidden, no character that turns its order around.
    """
    text = _INVISIBLE.sub("", unicodedata.normalize("NFC", title))
    text = "".join(_safe_character(one) for one in text)
    text = " ".join(text.split())
    text = _cut(text.strip(" .")).strip(" .")
    if not any(_can_be_seen(one) for one in text):
        return FALLBACK
    first, dot, rest = text.partition(".")
    if _RESERVED.fullmatch(first.strip()):  # Windows looks at what stands before the first dot
        return f"{first.strip()}_{dot}{rest}"
    return text


def _safe_character(one: str) -> str:
    if one in _FORBIDDEN:
        return "-"
    category = unicodedata.category(one)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    return "" if category in ("Cs", "Cn", "Co") else one


def _can_be_seen(one: str) -> bool:
    category = unicodedata.category(one)
    return one not in _BLANK and category != "Cf" and category[0] not in "MZ"


def _cut(text: str) -> str:
    """At most MAX_NAME_BYTES in UTF-8, never within a character or between it and its accents."""
    if len(text.encode()) <= MAX_NAME_BYTES:
        return text
    longest = len(text.encode()[:MAX_NAME_BYTES].decode(errors="ignore"))
    end = longest
    while end and (_is_joined(text[end]) or text[end - 1] == _JOINER):
        end -= 1
    return text[: end or longest]


def _is_joined(one: str) -> bool:
    """Whether a character belongs to the one before it: an accent, a joiner, a skin tone."""
    return (
        unicodedata.category(one)[0] == "M" or one == _JOINER or "\U0001f3fb" <= one <= "\U0001f3ff"
    )


def one_line_name(text: str) -> str:
    """A path as a part of a sentence: on one line, in characters that can be shown."""
    kept = (one if one.isprintable() or one == _JOINER else "\ufffd" for one in text)
    return "".join(kept)


def free_path(folder: Path, title: str, extension: str) -> Path:
    """A path in `folder` that nothing lies at: "Title.md", "Title (2).md", …"""
    stem = safe_name(title)
    path = folder / f"{stem}.{extension}"
    number = 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem} ({number}).{extension}"
    return path


# ---- writing ---------------------------------------------------------------------------------


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the whole new one is there.

    A file that is replaced keeps its access rights, a link goes on pointing to where it does.

    Raises:
        ExportError: no room, no right, no such folder, or what lies there is not a file.
    """
    with _failures(path):
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise ExportError(f"{one_line_name(str(path))} is not a file; choose another name.")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _written(target.parent, content) as temporary:
            with suppress(OSError):  # not there yet, or a disk that knows no rights
                shutil.copymode(target, temporary)
            os.replace(temporary, target)


def write_new(folder: Path, title: str, extension: str, content: bytes) -> Path:
    """Write a file named after a title and return its path. Nothing is ever replaced, whoever
    else writes there at the same moment.

    Raises:
        ExportError: no room, no right, no such folder.
    """
    with _failures(folder / f"{safe_name(title)}.{extension}"):
        with _written(folder, content) as temporary:
            path = _claim(folder, title, extension)
            try:
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    path.unlink()
                raise
        return path


def _claim(folder: Path, title: str, extension: str) -> Path:
    """Make an empty file under a free name: from here on the name is ours."""
    for _ in range(MAX_TRIES):
        path = free_path(folder, title, extension)
        with suppress(FileExistsError), open(path, "xb"):
            return path
    raise FileExistsError(f"{MAX_TRIES} names are taken")


@contextmanager
def _written(folder: Path, content: bytes) -> Iterator[Path]:
    """`content` on the disk under a passing name, which is gone afterwards in any case."""
    temporary = folder / f".tessera-{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Every way in which a disk says no, as one sentence."""
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{one_line_name(str(path))} could not be written ({error.strerror or error}); "
            "choose another place."
        ) from error
    except ValueError as error:  # characters that no path can hold
        raise ExportError(
            f"{one_line_name(str(path))} cannot be the name of a file; choose another name."
        ) from error
