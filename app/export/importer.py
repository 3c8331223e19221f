"""Reads a JSON export back. The file is a stranger's until every field has been checked."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from app.errors import ImportRefusedError
from app.export.as_json import FORMAT, VERSION
from app.export.files import one_line_name
from app.prompt import NEW_TITLE, clean
from app.records import ReplyRecord, ReplyState, Sampling, SessionRecord, TurnRecord
from engine.errors import SamplingError
from engine.messages import SamplingParams

MAX_FILE_BYTES = 64 * 1024 * 1024
MAX_WHOLE = 2**63 - 1  # the history holds no larger number
MAX_TIME_MS = 32_503_680_000_000  # the year 3000
MAX_TITLE_CHARS = 32_767  # as many as the field for renaming takes
Record = TypeVar("Record", Sampling, ReplyRecord, TurnRecord, SessionRecord)


def read_export(path: Path) -> SessionRecord:
    """The chat that a JSON export holds.

    Raises:
        ImportRefusedError: not readable, too large, no export of ours, or a field is wrong.
    """
    name = one_line_name(path.name or str(path))
    try:
        content = _content(path)
    except OSError as error:
        raise ImportRefusedError(
            f"{name} cannot be read ({error.strerror or error}); choose another file."
        ) from error
    except ValueError as error:  # characters that no path can hold
        raise ImportRefusedError(
            f"{name} cannot be the name of a file; choose another file."
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ImportRefusedError(
            f"{name} is larger than 64 MiB, so it cannot be one chat; choose another file."
        )
    try:
        return parse_export(content)
    except ImportRefusedError as error:
        what = str(error).removesuffix(".")
        raise ImportRefusedError(f"{name} cannot be imported: {what}.") from error


def _content(path: Path) -> bytes:
    """The file's bytes, one more than allowed at most. A pipe or a device could go on for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is not a file")
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def parse_export(content: bytes) -> SessionRecord:
    """Raises ImportRefusedError with what is wrong, as the second half of a sentence."""
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ImportRefusedError("it is not a JSON file that Tessera wrote") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ImportRefusedError("it is not a chat that Tessera exported")
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ImportRefusedError("its version is not a number")
    if version > VERSION:
        raise ImportRefusedError("a newer Tessera wrote it; update this one")
    return _session(document.get("session"))


def _session(value: object) -> SessionRecord:
    session = _object(value, "session")
    turns = tuple(_turn(one, i) for i, one in enumerate(_list(session, "turns", "session")))
    sampling = _sampling(_object(session.get("sampling", {}), "sampling"))
    record = _record(SessionRecord, session, "session", sampling=sampling, turns=turns)
    title = " ".join(record.title.split())[:MAX_TITLE_CHARS]  # one line, as renaming makes it
    return replace(record, title=title or NEW_TITLE)


def _sampling(values: dict[str, Any]) -> Sampling:
    sampling = _record(Sampling, values, "sampling")
    try:
        SamplingParams(**asdict(sampling))
    except SamplingError as error:  # every message of the chat would be refused
        raise ImportRefusedError(str(error)) from error
    return sampling


def _turn(value: object, index: int) -> TurnRecord:
    where = f"message {index + 1}"
    turn = _object(value, where)
    replies = tuple(_reply(one, where) for one in _list(turn, "replies", where))
    record = _record(TurnRecord, turn, where, replies=replies)
    if not 0 <= record.chosen < max(len(replies), 1):
        raise ImportRefusedError(f"chosen of {where} is {record.chosen}, which is no version")
    return record


def _reply(value: object, where: str) -> ReplyRecord:
    where = f"a reply to {where}"
    reply = dict(_object(value, where))
    if reply.get("state") == "streaming":
        reply["state"] = "unfinished"  # nobody goes on writing it here
    if reply.get("state") not in get_args(ReplyState):
        raise ImportRefusedError(f"state of {where} is none that Tessera knows")
    return _record(ReplyRecord, reply, where)


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ImportRefusedError(f"{where} is missing or has the wrong type")
    return value


def _list(value: dict[str, Any], name: str, where: str) -> list[Any]:
    found = value.get(name, [])
    if not isinstance(found, list):
        raise ImportRefusedError(f"{name} of {where} is not a list")
    return found


def _record(kind: type[Record], values: dict[str, Any], where: str, **ready: Any) -> Record:
    """Build a record from checked values; unknown names are left out, so that a file of a later
    minor change still opens."""
    hints = get_type_hints(kind)
    chosen = dict(ready)
    for field in fields(kind):
        if field.name in ready:
            continue
        if field.name not in values:
            if field.default is MISSING and field.default_factory is MISSING:
                raise ImportRefusedError(f"{field.name} of {where} is missing")
            continue
        chosen[field.name] = _checked(values[field.name], hints[field.name], field.name, where)
    return kind(**chosen)


def _checked(value: Any, hint: Any, name: str, where: str) -> Any:
    allowed = get_args(hint) if NoneType in get_args(hint) else (hint,)
    if value is None and NoneType in allowed:
        return None
    if isinstance(value, str) and (str in allowed or hint is ReplyState):
        return clean(value)  # an escape may hold half of a surrogate pair, which no disk takes
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ImportRefusedError(f"{name} of {where} has the wrong type")
    if isinstance(value, int) and int in allowed:
        # A time beyond the year 3000 is none that every system can show.
        most = MAX_TIME_MS if name in ("created_ms", "updated_ms") else MAX_WHOLE
        if 0 <= value <= most:
            return value
    elif float not in allowed:
        raise ImportRefusedError(f"{name} of {where} has the wrong type")
    elif 0 <= value <= sys.float_info.max:  # neither infinite nor NaN
        return float(value)
    raise ImportRefusedError(f"{name} of {where} is out of range")
