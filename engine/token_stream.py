"""TokenStream: token ids -> text that can no longer change. Owns what is held back, and why.

Two things are held back: the bytes of a character that is not complete yet, and the longest tail
of the text that could still become a stop string. Each token costs its own length, not the
answer's.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

PieceKind = Literal["byte_level", "sentencepiece"]

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"  # SentencePiece writes a space like this


def byte_alphabet() -> dict[str, int]:
    """The 256 printable characters in which byte-level vocabularies spell bytes -> the byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    letters = {chr(byte): byte for byte in plain}
    letters.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return letters


class Pieces:
    """Token id -> the bytes it stands for. Control tokens and unknown ids stand for none."""

    def __init__(
        self,
        spelling: Callable[[int], str | None],
        kind: PieceKind,
        hidden: Collection[int],
        strip_first_space: bool = False,
    ) -> None:
        """`spelling` gives the vocabulary's text of an id; ids in `hidden` are not shown.

        `strip_first_space`: the tokeniser puts a space before every text, and takes it off again.
        """
        self._spelling = spelling
        self._kind = kind
        self._hidden = frozenset(hidden)
        self._alphabet = byte_alphabet()
        self._known: dict[int, bytes] = {}
        self.strip_first_space = strip_first_space

    def bytes_of(self, token_id: int) -> bytes:
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._look_up(token_id)
        return found

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of all ids at once. Bytes that are no UTF-8 become replacement characters."""
        data = b"".join(map(self.bytes_of, token_ids))
        if self.strip_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def _look_up(self, token_id: int) -> bytes:
        if token_id < 0 or token_id in self._hidden:
            return b""
        piece = self._spelling(token_id)
        if piece is None:
            return b""
        if self._kind == "sentencepiece":
            byte = BYTE_PIECE.fullmatch(piece)
            if byte:
                return bytes([int(byte[1], 16)])
            return piece.replace(_SPACE_MARK, " ").encode("utf-8", "replace")
        letters = [self._alphabet.get(letter, -1) for letter in piece]
        if min(letters, default=0) < 0:  # an added token, written as plain text
            return piece.encode("utf-8", "replace")
        return bytes(letters)


class TokenStream:
    """One reply's text as it grows.

    `stopped` is True once a stop string was found; the text is cut before it and nothing follows.
    Which one: the stop string that is complete first, and of those ending together the longest.
    """

    def __init__(self, pieces: Pieces, stop: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = pieces.strip_first_space
        self._stops = [_StopMatcher(text) for text in dict.fromkeys(stop)]
        self._held = ""  # a tail that could still become a stop string
        self.stopped = False

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Take one token; return the text that became final, often none or a few letters.

        Without `may_stop` a stop string that this token completes is text like any other; one
        that it only begins can still stop the reply later.
        """
        if self.stopped:
            return ""
        data = self._pieces.bytes_of(token_id)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._release(self._utf8.decode(data), may_stop)

    def finish(self) -> str:
        """The reply has ended: return what was held back (nothing after a stop string)."""
        if self.stopped:
            return ""
        text = self._release(self._utf8.decode(b"", final=True))
        if self.stopped:
            return text
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str, may_stop: bool = True) -> str:
        if not self._stops:
            return text
        pending = self._held + text
        for index in range(len(self._held), len(pending)):
            matched = [len(stop.text) for stop in self._stops if stop.advance(pending[index])]
            if matched and may_stop:
                self.stopped = True
                self._held = ""
                return pending[: index + 1 - max(matched)]
        cut = len(pending) - max(stop.num_begun for stop in self._stops)
        self._held = pending[cut:]
        return pending[:cut]


class _StopMatcher:
    """How much of one stop string the text ends with (Knuth, Morris, Pratt: no going back)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        self._shorter = [0] * len(text)  # [i] longest proper border of text[: i + 1]
        border = 0
        for i in range(1, len(text)):
            while border and text[i] != text[border]:
                border = self._shorter[border - 1]
            border += text[i] == text[border]
            self._shorter[i] = border

    @property
    def num_begun(self) -> int:
        """How many characters at the end of the text could still become the stop string."""
        is_complete = self.num_matched == len(self.text)
        return self._shorter[-1] if is_complete else self.num_matched

    def advance(self, letter: str) -> bool:
        """Take the next character; True when the stop string is complete."""
        self.num_matched = self.num_begun
        while self.num_matched and letter != self.text[self.num_matched]:
            self.num_matched = self._shorter[self.num_matched - 1]
        self.num_matched += letter == self.text[self.num_matched]
        return self.num_matched == len(self.text)
