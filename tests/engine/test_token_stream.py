"""TokenStream: the joined stream is the decoded whole, and stop strings never show."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.token_stream import Pieces, TokenStream, byte_alphabet

LETTER_OF = {byte: letter for letter, byte in byte_alphabet().items()}


def spelled(data: bytes) -> str:
    return "".join(LETTER_OF[byte] for byte in data)


# 256 bytes, then some longer pieces: parts of characters, a flag, an added token with a space.
LONGER = ["界".encode()[:2], "🇩🇪".encode()[1:6], "ď".encode(), b" the", b"\n\n", "น้ำ".encode()]
BYTE_LEVEL = [spelled(bytes([i])) for i in range(256)] + list(map(spelled, LONGER))
BYTE_LEVEL += ["  <added>", "<|im_end|>"]
SENTENCEPIECE = [f"<0x{i:02X}>" for i in range(256)]
SENTENCEPIECE += ["\u2581", "\u2581\u2581", "\u2581Hello", "wor", "ld", "界", "</s>", ""]


def pieces_of(vocabulary: list[str], kind: str, hidden: str, strip: bool = False) -> Pieces:
    def spelling(index: int) -> str | None:
        return vocabulary[index] if index < len(vocabulary) else None

    return Pieces(spelling, kind, {vocabulary.index(hidden)}, strip)


KINDS = {
    "byte_level": (pieces_of(BYTE_LEVEL, "byte_level", "<|im_end|>"), len(BYTE_LEVEL)),
    "sentencepiece": (
        pieces_of(SENTENCEPIECE, "sentencepiece", "</s>", strip=True),
        len(SENTENCEPIECE),
    ),
    "no first space": (pieces_of(SENTENCEPIECE, "sentencepiece", "</s>"), len(SENTENCEPIECE)),
}


def ids_of(pieces_and_size: tuple[Pieces, int]) -> st.SearchStrategy[list[int]]:
    size = pieces_and_size[1]
    longer = st.integers(256, size - 1)
    text = st.text(max_size=12).map(lambda text: list(text.encode("utf-8")))  # byte ids 0 to 255
    part = st.one_of(text, longer.map(lambda i: [i]), st.integers(0, size + 5).map(lambda i: [i]))
    return st.lists(part, max_size=12).map(lambda parts: [i for part in parts for i in part])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_joined_stream_is_the_decoded_whole(kind: str, data: st.DataObject) -> None:
    pieces, _ = KINDS[kind]
    ids = data.draw(ids_of(KINDS[kind]))
    stream = TokenStream(pieces)
    parts = [stream.push(i) for i in ids]
    assert "".join(parts) + stream.finish() == pieces.decode(ids)


def cut_at_stop(text: str, stop: list[str]) -> tuple[str, bool]:
    """The plain definition: the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def longest_hope(text: str, stop: list[str]) -> int:
    """Length of the longest tail that could still become a stop string."""
    tails = range(len(text), 0, -1)
    return next((n for n in tails if any(s.startswith(text[-n:]) for s in stop)), 0)


@settings(max_examples=500, deadline=None)
@given(
    parts=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=12),
    stop=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_stop_strings_cut_exactly_and_hold_back_exactly(parts: list[str], stop: list[str]) -> None:
    pieces = Pieces(lambda i: parts[i], "byte_level", ())
    stream = TokenStream(pieces, stop)
    shown, seen = "", ""
    for index, part in enumerate(parts):
        shown += stream.push(index)
        seen += part
        wanted, stopped = cut_at_stop(seen, stop)
        assert stream.stopped == stopped
        if stopped:
            assert shown == wanted
            break
        assert shown == seen[: len(seen) - longest_hope(seen, stop)]
    shown += stream.finish()
    assert (shown, stream.stopped) == cut_at_stop(seen, stop)
    assert not stream.stopped or stream.push(0) == stream.finish() == ""


def letters(text: str, stop: tuple[str, ...]) -> tuple[list[str], TokenStream]:
    stream = TokenStream(Pieces(lambda i: text[i], "byte_level", ()), stop)
    return [stream.push(i) for i in range(len(text))], stream


def test_a_tail_is_released_when_it_cannot_match() -> None:
    parts, stream = letters("A-END-OX", ("END-OF",))
    assert parts == ["A", "-", "", "", "", "", "", "END-OX"]
    assert not stream.stopped


def test_an_unfinished_tail_comes_at_the_end() -> None:
    parts, stream = letters("so-EN", ("END",))
    assert "".join(parts) == "so-"
    assert stream.finish() == "EN"
    assert stream.finish() == ""


def test_stop_string_that_overlaps_itself() -> None:
    parts, stream = letters("aabaabaac", ("aabaac",))
    assert "".join(parts) == "aab"
    assert stream.stopped


def test_stop_string_in_the_middle_of_a_token_and_over_a_split_character() -> None:
    data = "ab界c".encode()
    vocabulary = [spelled(data[:3]), spelled(data[3:]), spelled(b"d")]
    stream = TokenStream(Pieces(vocabulary.__getitem__, "byte_level", ()), ("b界",))
    assert [stream.push(i) for i in range(3)] == ["a", "", ""]
    assert stream.stopped
    assert stream.finish() == ""


def test_incomplete_character_at_the_end_is_marked() -> None:
    stream = TokenStream(KINDS["byte_level"][0])
    assert stream.push("界".encode()[0]) == ""
    assert stream.finish() == "\ufffd"


def test_first_space_goes_only_once_and_hidden_tokens_do_not_count() -> None:
    pieces, _ = KINDS["sentencepiece"]
    end, hello = SENTENCEPIECE.index("</s>"), SENTENCEPIECE.index("\u2581Hello")
    stream = TokenStream(pieces)
    assert [stream.push(i) for i in (end, hello, hello)] == ["", "Hello", " Hello"]


def test_a_long_reply_costs_no_more_per_token_than_a_short_one() -> None:
    """Counts characters looked at: what is held back must not grow with the answer."""
    parts, stream = letters("ab" * 5000 + "END", ("abc", "END"))
    assert max(map(len, parts)) <= 3
    assert "".join(parts) == "ab" * 5000
    assert stream.stopped
