"""JSON is the whole chat: what it holds comes back equal, whatever the text is."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.export.as_json import FORMAT, VERSION, to_json
from app.export.importer import parse_export
from app.prompt import clean
from app.records import ReplyRecord, ReplyState, Sampling, SessionRecord, TurnRecord

SPECIAL = st.sampled_from(
    [
        "\ud800",
        "\udfff",
        "\x00",
        "\u202eabc",
        "שלום",
        "👩‍👩‍👧",
        "\ufeff",
        "\ufffe",
        "\u2028",
        "\r\n",
        '"\\',
    ]
)
TEXTS = st.lists(SPECIAL | st.text(st.characters(exclude_categories=()), max_size=12)).map("".join)
WHOLE = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, 32_503_680_000_000)
SPEEDS = st.floats(0, allow_nan=False, allow_infinity=False)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    seed=st.none() | WHOLE,
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
)
REPLIES = st.builds(
    ReplyRecord,
    reply_id=TEXTS,
    text=TEXTS,
    state=st.sampled_from(get_args(ReplyState)),
    finish_reason=st.sampled_from(["", "stop", "length", "cancelled", "error"]) | TEXTS,
    error=TEXTS,
    model=TEXTS,
    created_ms=TIMES,
    ttft_ms=SPEEDS,
    tokens_per_s=SPEEDS,
    seed=st.none() | WHOLE,
    prompt_tokens=WHOLE,
    cached_tokens=WHOLE,
    new_tokens=WHOLE,
    num_blocks=WHOLE,
    kv_bytes=WHOLE,
)


@st.composite
def _turns(draw: st.DrawFn) -> TurnRecord:
    replies = tuple(draw(st.lists(REPLIES, max_size=3)))
    chosen = draw(st.integers(0, max(len(replies) - 1, 0)))
    return TurnRecord(draw(TEXTS), draw(TEXTS), draw(TIMES), replies, chosen)


SESSIONS = st.builds(
    SessionRecord,
    session_id=TEXTS,
    title=TEXTS,
    created_ms=TIMES,
    updated_ms=TIMES,
    system_prompt=TEXTS,
    sampling=SAMPLINGS,
    turns=st.lists(_turns(), max_size=4).map(tuple),
)


def storable(value: Any) -> Any:
    """A record as the application may hold it: no half surrogate pairs (no disk takes them; two
    halves side by side are a character), a title on one line, nobody writing any more."""
    if isinstance(value, str):
        return clean(json.loads(json.dumps(value)))
    if isinstance(value, tuple):
        return tuple(storable(one) for one in value)
    if not hasattr(value, "__dataclass_fields__"):
        return value
    value = replace(value, **{f.name: storable(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, SessionRecord):
        return replace(value, title=" ".join(value.title.split()) or "New chat")
    if isinstance(value, ReplyRecord) and value.state == "streaming":
        return replace(value, state="unfinished")
    return value


@given(SESSIONS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_chat_comes_back_equal(session: SessionRecord) -> None:
    assert parse_export(to_json(session)) == storable(session)


@given(SESSIONS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_second_export_is_the_same_file(session: SessionRecord) -> None:
    once = to_json(storable(session))
    assert to_json(parse_export(once)) == once


def test_half_a_surrogate_pair_is_in_the_file(chat) -> None:
    """The file loses nothing, even if a history could not hold it."""
    content = to_json(chat(("a\ud800b", "\udfff")))
    turn = json.loads(content)["session"]["turns"][0]
    assert (turn["user_text"], turn["replies"][0]["text"]) == ("a\ud800b", "\udfff")


def test_every_field_of_every_record_is_written(chat) -> None:
    session = chat(("q", "a"), title="Été", sampling=Sampling(seed=7, max_tokens=9))
    document = json.loads(to_json(session))
    assert (document["format"], document["version"]) == (FORMAT, VERSION)
    assert document["session"] == json.loads(json.dumps(asdict(session)))
    assert document["session"]["sampling"].keys() == {field.name for field in fields(Sampling)}


def test_text_stays_readable_in_the_file(chat) -> None:
    assert "héllo 你好 👋".encode() in to_json(chat(("héllo 你好 👋", None)))


@pytest.mark.parametrize("speed", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_does_not_have_does_not_spoil_the_file(chat, speed: float) -> None:
    session = chat(("q", "a"))
    reply = replace(session.turns[0].replies[0], tokens_per_s=speed, ttft_ms=2.5)
    session = replace(session, turns=(replace(session.turns[0], replies=(reply,)),))
    again = parse_export(to_json(session)).turns[0].replies[0]
    assert (again.tokens_per_s, again.ttft_ms) == (0.0, 2.5)


def test_versions_of_a_reply_keep_their_order_and_the_choice(chat) -> None:
    session = chat(("q", "first"))
    versions = tuple(
        replace(session.turns[0].replies[0], reply_id=f"r{i}", text=f"version {i}")
        for i in range(5)
    )
    turn = replace(session.turns[0], replies=versions, chosen=3)
    again = parse_export(to_json(replace(session, turns=(turn,)))).turns[0]
    assert [reply.text for reply in again.replies] == [f"version {i}" for i in range(5)]
    assert again.reply == versions[3]
