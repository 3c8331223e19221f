"""Files of exports: names that every system accepts, and writing without half-written files."""

from __future__ import annotations

import os
import re
import tempfile
import unicodedata
from contextlib import suppress
from pathlib import Path

from app.errors import ExportError

MAX_NAME_BYTES = 150  # most systems allow 255; " (99)" and an extension are to come
_RESERVED = re.compile(
    r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$|clock\$)", re.IGNORECASE
)
_FORBIDDEN = '<>:"/\\|?*'
_INVISIBLE = "\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\ufeff"
_ISOLATES = "\u2066\u2067\u2068\u2069"
FALLBACK = "Chat"


def safe_name(title: str) -> str:
    """A file name (without extension) that Windows, macOS and Linux accept, made from a title.

    Never empty, never a device name, never hidden, no character that turns its order around.
    """
    text = unicodedata.normalize("NFC", title)
    text = "".join(_safe_character(one) for one in text)
    text = " ".join(text.split())
    text = _cut(text.strip(" .")).strip(" .")
    if not text.strip("-_ ."):
        return FALLBACK
    if _RESERVED.fullmatch(text.split(".")[0].strip()):
        return f"{text.split('.')[0].strip()}_{text[len(text.split('.')[0]) :]}"
    return text


def _safe_character(one: str) -> str:
    if one in _FORBIDDEN:
        return "-"
    if one in _INVISIBLE or one in _ISOLATES:
        return ""
    category = unicodedata.category(one)
    if category in ("Cc", "Zl", "Zp"):
        return " "
    return "" if category in ("Cs", "Cn", "Co") else one


def _cut(text: str) -> str:
    """At most MAX_NAME_BYTES in UTF-8, never within a character or before its accents."""
    if len(text.encode()) <= MAX_NAME_BYTES:
        return text
    text = text.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    while text and (unicodedata.combining(text[-1]) or text[-1] == "\u200d"):
        text = text[:-1]
    return text


def free_path(folder: Path, title: str, extension: str) -> Path:
    """A path in `folder` that nothing lies at: "Title.md", "Title (2).md", …"""
    stem = safe_name(title)
    path = folder / f"{stem}.{extension}"
    number = 1
    while path.exists() or path.is_symlink():
        number += 1
        path = folder / f"{stem} ({number}).{extension}"
    return path


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that at any moment either the old or the whole new one is there.

    Raises:
        ExportError: no room, no right, no such folder.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".tessera-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        raise ExportError(
            f"{path} could not be written ({error.strerror or error}); choose another place."
        ) from error


def _umask() -> int:
    """What mkstemp ignores: a transcript is as readable as any other file of the user."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
