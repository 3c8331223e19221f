"""Reader of a SentencePiece `tokenizer.model`. Owns the few fields of its protobuf we need.

The file is untrusted and small: every length is checked against what is left of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.vocabulary import (
    Piece,
    PieceType,
    Vocabulary,
    normalise,
    sentencepiece_bpe,
    sentencepiece_unigram,
)

_UNIGRAM, _BPE = 1, 2
_MAX_BYTES = 64 << 20  # the largest in use is about 5 MB


def read(path: Path) -> Vocabulary:
    """The tokeniser in `path`.

    Raises:
        BadFileError: the file is damaged or is something else.
        UnsupportedModelError: its kind is neither BPE nor unigram.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        return _vocabulary(path.read_bytes(), path)
    except (ValueError, struct.error, OSError) as error:
        raise BadFileError(
            f"{path.name} is no readable SentencePiece vocabulary ({shown(str(error), 160)}). "
            "Download it again."
        ) from error


def _vocabulary(data: bytes, path: Path) -> Vocabulary:
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    rules: dict[int, int | bytes] = {}
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, bytes):
            trainer = dict(_fields(value))
        elif number == 3 and isinstance(value, bytes):
            rules = dict(_fields(value))
    if not pieces:
        raise ValueError("no pieces")
    prefix = bool(rules.get(3, 1))
    kind = trainer.get(3, _UNIGRAM)
    if kind == _BPE:
        vocabulary = sentencepiece_bpe(pieces, prefix=prefix)
    elif kind == _UNIGRAM:
        has_bytes = any(p.type == PieceType.BYTE for p in pieces)
        vocabulary = sentencepiece_unigram(pieces, prefix=prefix, has_bytes=has_bytes)
    else:
        raise UnsupportedModelError(
            f"{path.name} is a SentencePiece vocabulary of kind {shown(kind)}, and Tessera can run "
            "BPE and unigram. Choose another model."
        )
    charsmap = rules.get(2, b"")
    if not isinstance(charsmap, bytes):
        raise ValueError("no character map")
    normalise(vocabulary.tokenizer, charsmap, bool(rules.get(4, 1)))
    return _with_names(vocabulary, pieces, trainer)


def _with_names(
    vocabulary: Vocabulary, pieces: list[Piece], trainer: dict[int, int | bytes]
) -> Vocabulary:
    ids = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2)}
    for name, (field, default) in ids.items():
        index = trainer.get(field, default)
        if isinstance(index, int) and 0 <= index < len(pieces):  # absent ones are stored as -1
            vocabulary.names[name] = pieces[index].text
            if name == "bos_token":
                vocabulary.prefix_ids = (index,)
            elif name == "eos_token":
                vocabulary.eos_ids = frozenset({index})
    return vocabulary


def _piece(data: bytes) -> Piece:
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return Piece(text, score, kind)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field: an int for varints, bytes for all else."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if length > len(data) - at:
            raise ValueError("cut short")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("number too long")
