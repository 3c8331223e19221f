"""The one way from a chat to a file: picks the format, makes the bytes, writes them whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from app.errors import ExportError
from app.export.as_html import to_html
from app.export.as_json import to_json
from app.export.as_markdown import to_markdown
from app.export.as_pdf import to_pdf
from app.export.files import write_atomic, write_new
from app.records import SessionRecord

FORMATS: dict[str, Callable[[SessionRecord], bytes]] = {
    "md": to_markdown,
    "json": to_json,
    "html": to_html,
    "pdf": to_pdf,
}


def write_export(record: SessionRecord, format_name: str, path: Path) -> Path:
    """Write a chat as md, json, html or pdf and return where it lies.

    `path` is a file that the user named (the file dialog asks before one is replaced), or a
    folder: then the name comes from the title and nothing is replaced.

    Raises:
        ExportError: unknown format, or the file could not be written.
    """
    make = FORMATS.get(format_name)
    if make is None:
        raise ExportError(f"There is no export as {format_name!r}; choose md, json, html or pdf.")
    content = make(record)
    if os.path.isdir(path):  # says no to names that no disk takes, where Path.is_dir raises
        return write_new(path, record.title, format_name, content)
    write_atomic(path, content)
    return path
