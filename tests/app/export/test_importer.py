"""A stranger's file either becomes a chat whose every field is sound, or one clear sentence."""

from __future__ import annotations

import copy
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import ImportRefusedError
from app.export.as_json import to_json
from app.export.importer import MAX_FILE_BYTES, MAX_TIME_MS, parse_export, read_export
from app.history_file import HistoryFile
from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord
from app.state.session_list import group_name
from app.transfer import with_new_ids
from engine.messages import SamplingParams

SESSION = SessionRecord(
    "s", "Title", 5, 6, "Be brief.", Sampling(seed=3, max_tokens=4),
    (TurnRecord("t", "Hi", 7, (ReplyRecord("r", "Yo", "complete", "stop"),) * 2, 1),),
)  # fmt: skip


def document() -> dict[str, Any]:
    return json.loads(to_json(SESSION))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to everything within a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for name, one in inside:
        yield (*path, name)
        if isinstance(one, dict | list):
            yield from places(one, (*path, name))


def with_value(path: tuple[Any, ...], value: Any) -> bytes:
    """The file with one thing in it exchanged."""
    changed = document()
    holder: Any = changed
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    return json.dumps(changed).encode()


def is_sound(value: Any, hint: Any = SessionRecord) -> bool:
    """Whether a value is what its record's annotation says, all the way down."""
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        return type(value) is hint and all(
            is_sound(getattr(value, field.name), hints[field.name]) for field in fields(hint)
        )
    if getattr(hint, "__origin__", None) is tuple:
        return type(value) is tuple and all(is_sound(one, get_args(hint)[0]) for one in value)
    if value is None:
        return type(None) in get_args(hint)
    if isinstance(value, str):
        value.encode()
        return hint is str or value in get_args(hint)
    if isinstance(value, int | float) and not 0 <= value < 1.8e308:
        return False
    return type(value) is hint or type(value) in get_args(hint)


def outcome(content: bytes) -> SessionRecord | str:
    """The chat, or what is wrong with the file; any other exception fails the test."""
    try:
        return parse_export(content)
    except ImportRefusedError as error:
        return str(error)


def is_sound_or_refused(content: bytes) -> bool:
    result = outcome(content)
    return result.isprintable() if isinstance(result, str) else is_sound(result)


# ---- files that are no export ------------------------------------------------------------------

GOOD = to_json(SESSION)
FILES = {
    "empty": b"",
    "spaces": b" \n ",
    "text": b"hello",
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "binary": bytes(range(256)) * 20,
    "gguf": b"GGUF\x03\x00\x00\x00" + b"\x00" * 100,
    "gzip": gzip.compress(GOOD),
    "utf-16": GOOD.decode().encode("utf-16"),
    "nul": b"\x00" * 1000,
    "cut short": GOOD[: len(GOOD) // 2],
    "one byte short": GOOD.rstrip()[:-1],
    "twice": GOOD * 2,
    "list": b"[" + GOOD + b"]",
    "number": b"1",
    "null": b"null",
    "nan": b"NaN",
    "100,000 brackets": b"[" * 100_000,
    "100,000 brackets, closed": b"[" * 100_000 + b"]" * 100_000,
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "long number": b'{"format": ' + b"9" * 100_000 + b"}",
    "other program": json.dumps({"format": "notes", "version": 1}).encode(),
    "format is a list": json.dumps({"format": ["tessera-chat"]}).encode(),
    "nothing but the format": json.dumps({"format": "tessera-chat"}).encode(),
    "no session": json.dumps({"format": "tessera-chat", "version": 1}).encode(),
    "deep session": GOOD.replace(b'"Yo"', b"[" * 100_000 + b"]" * 100_000),
    "cut in a character": to_json(replace(SESSION, title="é")).split(b"\xc3")[0] + b"\xc3",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_what_is_no_export_gets_a_sentence(tmp_path, is_one_sentence, content: bytes) -> None:
    path = tmp_path / "my chat.json"
    path.write_bytes(content)
    with pytest.raises(ImportRefusedError) as caught:
        read_export(path)
    assert str(caught.value).startswith("my chat.json cannot be imported: ")
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("version", [0, -1, 2, 10**30, 1.0, True, "1", None, [1]])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(ImportRefusedError, match=r"version is not a number|newer Tessera"):
        parse_export(with_value(("version",), version))


def test_a_file_too_large_for_a_chat_is_not_read(tmp_path, is_one_sentence) -> None:
    path = tmp_path / "huge.json"
    with open(path, "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(ImportRefusedError, match=r"huge\.json is larger than 64 MiB") as caught:
        read_export(path)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("name", ["", "missing.json", "a\x00b", "x" * 300, "a\ud800", "a\n\u202eb"])
def test_what_cannot_be_read_gets_a_sentence(tmp_path, is_one_sentence, name: str) -> None:
    with pytest.raises(ImportRefusedError, match="choose another file") as caught:
        read_export(tmp_path / name)
    assert is_one_sentence(str(caught.value).replace("x" * 300, "x"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes in folders")
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ImportRefusedError, match=r"pipe\.json cannot be read"):
        read_export(tmp_path / "pipe.json")


@pytest.mark.skipif(sys.platform != "linux", reason="the file without an end is Linux's")
def test_a_file_without_an_end_is_not_read() -> None:
    with pytest.raises(ImportRefusedError, match="zero cannot be read"):
        read_export(Path("/dev/zero"))


# ---- exports with something wrong in them ------------------------------------------------------

WRONG: tuple[Any, ...] = (
    None, True, False, -1, -0.5, 2**63, 10**400, 1e308, float("nan"), float("inf"), float("-inf"),
    "", "x", "streaming", "\ud800", [], [[]], [None], [{}], {}, {"a": 1}, [[[[1]]]],
)  # fmt: skip


@pytest.mark.parametrize(
    "path", list(places(document())), ids=lambda path: "/".join(map(str, path))
)
def test_a_wrong_value_anywhere_is_refused_or_harmless(
    path: tuple[Any, ...], is_one_sentence: Callable[[str], bool]
) -> None:
    for value in WRONG:
        result = outcome(with_value(path, value))
        if isinstance(result, str):
            assert is_one_sentence(f"No: {result.removesuffix('.')}."), (path, value)
        else:
            assert is_sound(result), (path, value)
            assert parse_export(to_json(result)) == result


@pytest.mark.parametrize(
    "path", list(places(document())), ids=lambda path: "/".join(map(str, path))
)
def test_a_missing_value_is_refused_or_has_its_default(path: tuple[Any, ...]) -> None:
    changed = document()
    holder: Any = changed
    for name in path[:-1]:
        holder = holder[name]
    del holder[path[-1]]
    result = outcome(json.dumps(changed).encode())
    if isinstance(result, str):
        # Without a version of the reply, the one that was chosen is none.
        assert str(path[-1]) in result or path[-1] == "format" or "chosen" in result
    else:
        assert is_sound(result)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from([field.name for field in fields(ReplyRecord)]) | st.text(max_size=3),
            inside,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(path=st.sampled_from(list(places(document()))), value=JSON)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_put_anywhere(path: tuple[Any, ...], value: object) -> None:
    assert is_sound_or_refused(with_value(path, value))


@given(st.binary(max_size=60), st.integers(0, len(GOOD)), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_over_the_file(noise: bytes, place: int, length: int) -> None:
    assert is_sound_or_refused(GOOD[:place] + noise + GOOD[place + length :])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("session",), [], "session is missing or has the wrong type"),
        (("session", "title"), 3, "title of session has the wrong type"),
        (("session", "turns"), {}, "turns of session is not a list"),
        (("session", "turns", 0), None, "message 1 is missing"),
        (("session", "turns", 0, "chosen"), 2, "chosen of message 1 is 2"),
        (("session", "turns", 0, "user_text"), ["x"], "user_text of message 1 has the wrong type"),
        (("session", "turns", 0, "replies", 1, "state"), "done", "state of a reply to message 1"),
        (("session", "turns", 0, "replies", 1, "ttft_ms"), float("nan"), "ttft_ms of a reply to"),
        (("session", "updated_ms"), MAX_TIME_MS + 1, "updated_ms of session is out of range"),
        (("session", "sampling", "temperature"), 101, "temperature is 101.0, allowed 0 to 100"),
        (("session", "sampling", "max_tokens"), 0, "max_tokens is 0"),
    ],
)
def test_the_sentence_names_what_is_wrong(path: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises(ImportRefusedError) as caught:
        parse_export(with_value(path, value))
    assert words in str(caught.value)


# ---- what is accepted is safe to keep ----------------------------------------------------------


def test_the_largest_values_can_be_kept_shown_and_sent(tmp_path) -> None:
    """A chat that the history refuses, or that stops the list at every start, is not let in."""
    changed = document()
    session = changed["session"]
    session["created_ms"] = session["updated_ms"] = MAX_TIME_MS
    session["sampling"] |= {"temperature": 100, "top_k": 2**31 - 1, "seed": 2**63 - 1}
    for name in ("created_ms", "prompt_tokens", "kv_bytes", "seed"):
        largest = MAX_TIME_MS if name == "created_ms" else 2**63 - 1
        session["turns"][0]["replies"][0][name] = largest
    session["turns"][0]["user_text"] = "a\x00b\ud800"
    record = with_new_ids(parse_export(json.dumps(changed).encode()))
    history = HistoryFile(tmp_path / "history.db")
    history.open()
    history.save_session(record)
    history.close()
    again = HistoryFile(tmp_path / "history.db")
    assert again.open().sessions == (record,)
    again.close()
    sampling = record.sampling
    assert SamplingParams(temperature=sampling.temperature, seed=sampling.seed).top_k == 0
    assert group_name(record.updated_ms, date(2026, 1, 1)) == "Today"


def test_ids_that_occur_twice_do_no_harm(tmp_path) -> None:
    """Every part of the chat gets an id of its own before it reaches the history."""
    changed = document()
    changed["session"]["turns"] *= 3
    record = parse_export(json.dumps(changed).encode())
    assert len({turn.turn_id for turn in record.turns}) == 1
    fresh = with_new_ids(record)
    replies = [reply for turn in fresh.turns for reply in turn.replies]
    ids = {fresh.session_id} | {turn.turn_id for turn in fresh.turns}
    ids |= {reply.reply_id for reply in replies}
    assert len(ids) == 1 + 3 + 6


def test_a_name_twice_in_one_object_counts_once() -> None:
    twice = GOOD.replace(b'"title": "Title"', b'"title": 1, "title": "Last"')
    assert parse_export(twice).title == "Last"


@pytest.mark.parametrize(
    ("title", "shown"),
    [("a\n\tb", "a b"), ("", "New chat"), (" \r\n", "New chat"), ("x" * 40_000, "x" * 32_767)],
)
def test_a_title_is_one_line_and_never_empty(title: str, shown: str) -> None:
    assert parse_export(with_value(("session", "title"), title)).title == shown


def test_a_reply_that_streamed_is_unfinished_here() -> None:
    content = with_value(("session", "turns", 0, "replies", 0, "state"), "streaming")
    assert parse_export(content).turns[0].replies[0].state == "unfinished"


def test_names_of_a_later_version_and_a_mark_at_the_start_are_passed_over() -> None:
    changed = copy.deepcopy(document())
    changed["note"] = changed["session"]["pinned"] = changed["session"]["turns"][0]["mood"] = [1]
    content = b"\xef\xbb\xbf" + json.dumps(changed).encode()
    assert parse_export(content) == SESSION


def test_a_chat_with_only_what_is_needed() -> None:
    least = {"session_id": "s", "title": "T", "created_ms": 1, "updated_ms": 2}
    content = json.dumps({"format": "tessera-chat", "version": 1, "session": least}).encode()
    assert parse_export(content) == SessionRecord("s", "T", 1, 2)
