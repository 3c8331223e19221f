"""A chat as JSON, every field of it: what `app.export.importer` reads back without loss."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from app.records import SessionRecord

FORMAT = "tessera-chat"
VERSION = 1


def to_json(session: SessionRecord) -> bytes:
    content = {"format": FORMAT, "version": VERSION, "session": _standard(asdict(session))}
    try:
        return (json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()
    except UnicodeEncodeError:  # half of a surrogate pair: it survives as an escape
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _standard(value: Any) -> Any:
    """The same values; a number that JSON does not have (a speed over no time) becomes 0."""
    if isinstance(value, dict):
        return {name: _standard(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_standard(one) for one in value]
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value
