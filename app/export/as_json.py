"""A chat as JSON, every field of it: what `app.export.importer` reads back without loss."""

from __future__ import annotations

import json
from dataclasses import asdict

from app.records import SessionRecord

FORMAT = "tessera-chat"
VERSION = 1


def to_json(session: SessionRecord) -> bytes:
    content = {"format": FORMAT, "version": VERSION, "session": asdict(session)}
    try:
        return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair: it survives as an escape
        return (json.dumps(content, indent=1) + "\n").encode()
