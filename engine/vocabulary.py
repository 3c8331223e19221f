"""Vocabulary: a model's tokeniser as its files describe it. Owns reading those files.

Three sources: a GGUF's metadata, a `tokenizer.json` with its companions, and a SentencePiece
`tokenizer.model` (through `engine.sentencepiece_file`). Files are untrusted: whatever does not
fit together ends in one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine import charsmap as charsmap_
from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.pre_tokenisers import rule_of
from engine.token_stream import PieceKind, byte_alphabet

SPACE_MARK = "\u2581"
# Every way to cut a piece in two is looked at: the largest vocabularies make 2 million cuts, and
# the longest piece known has 512 letters.
MAX_PIECE_LETTERS = 1024
MAX_CUTS = 16_000_000


class PieceType(IntEnum):
    """What a token is, with the numbers of GGUF and SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(slots=True)
class Vocabulary:
    """What `engine.text.Text` needs to know of a tokeniser."""

    tokenizer: Tokenizer
    piece_kind: PieceKind
    size: int  # ids are 0 to size - 1
    strip_first_space: bool = False
    space_once: bool = False  # the normaliser's space goes before the text, not every stretch
    prefix_ids: tuple[int, ...] = ()  # before raw text: BOS, or nothing
    eos_ids: frozenset[int] = frozenset()
    names: dict[str, str] = field(default_factory=dict)  # "bos_token" -> "<s>", as templates see
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    score: float
    type: int


def is_library_error(error: BaseException) -> bool:
    """Whether the tokenisers' library said so: it raises nothing narrower than Exception, and a
    panic of its Rust code is a BaseException."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Whatever the tokenisers' library makes of a file ends in one sentence about it.

    Raises:
        BadFileError: in place of the library's error.
    """
    try:
        yield
    except BaseException as error:
        if not is_library_error(error):
            raise
        reason = shown(" ".join(str(error).split()), 160)
        raise BadFileError(f"{what} is damaged ({reason}). Download it again.") from error


# --- GGUF -------------------------------------------------------------------------------------

_NAME_KEYS = {
    "bos_token": ("bos_token_id",),
    "eos_token": ("eos_token_id",),
    "unk_token": ("unknown_token_id",),
    "pad_token": ("padding_token_id",),
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")


def from_gguf(metadata: Mapping[str, object]) -> Vocabulary:
    """The tokeniser of a GGUF file, from its `tokenizer.*` metadata.

    Raises:
        UnsupportedModelError: a kind of tokeniser that we cannot run; named in the sentence.
        BadFileError: keys are missing or do not fit together.
    """
    model = str(metadata.get("tokenizer.ggml.model", ""))
    pieces = _gguf_pieces(metadata)
    if model == "gpt2":
        vocabulary = _byte_level(metadata, pieces)
    elif model == "llama":
        vocabulary = _gguf_sentencepiece(metadata, pieces)
    elif model:
        raise UnsupportedModelError(
            f"This file has a tokeniser of the kind {shown(model)}, and Tessera can run the kinds "
            "'gpt2' and 'llama'. Choose another model."
        )
    else:
        raise BadFileError("This GGUF file has no tokeniser, so it cannot be used for a chat.")
    return _with_gguf_names(metadata, pieces, vocabulary)


def _gguf_pieces(metadata: Mapping[str, object]) -> list[Piece]:
    tokens = _list(metadata, "tokens")
    types = _list(metadata, "token_type") or [PieceType.NORMAL] * len(tokens)
    scores = _list(metadata, "scores") or [0.0] * len(tokens)
    if not tokens or not len(tokens) == len(types) == len(scores):
        raise BadFileError(
            f"The file's vocabulary does not fit together: {len(tokens)} tokens, "
            f"{len(types)} types, {len(scores)} scores. Download the file again."
        )
    rows = zip(tokens, scores, types, strict=True)
    try:
        return [Piece(str(text), float(score), int(kind)) for text, score, kind in rows]
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFileError(
            f"The file's vocabulary is damaged ({shown(str(error))}). Download the file again."
        ) from error


def _list(metadata: Mapping[str, object], key: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{key}", [])
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise BadFileError(f"The file's tokeniser key {key!r} is no list. Download it again.")
    return list(value)


def _byte_level(metadata: Mapping[str, object], pieces: Sequence[Piece]) -> Vocabulary:
    rule = rule_of(str(metadata.get("tokenizer.ggml.pre", "default")))
    alphabet = byte_alphabet()
    letters = {byte: letter for letter, byte in alphabet.items()}
    vocab: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        text = piece.text
        if piece.type == PieceType.NORMAL and not alphabet.keys() >= set(text):
            text = "".join(letters[byte] for byte in text.encode("utf-8", "replace"))
        vocab.setdefault(text, index)
    merges = [_merge(str(merge)) for merge in _list(metadata, "merges")]
    tokenizer = _build(
        lambda: models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words_first)
    )
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.build()
    tokenizer.decoder = decoders.ByteLevel()
    _add_marked(tokenizer, pieces)
    vocabulary = Vocabulary(tokenizer, "byte_level", len(pieces))
    _set_bos(metadata, vocabulary, default=rule.adds_bos)
    return vocabulary


def _merge(text: str) -> tuple[str, str]:
    left, _, right = text.partition(" ")
    if not left or not right or " " in right:
        raise BadFileError(
            f"The file's vocabulary has a broken merge {shown(text)}. Download it again."
        )
    return left, right


def _gguf_sentencepiece(metadata: Mapping[str, object], pieces: list[Piece]) -> Vocabulary:
    architecture = str(metadata.get("general.architecture", ""))
    gemma = architecture.startswith("gemma")
    if gemma:
        # These files write runs of spaces as spaces, and their scores do not follow the order
        # in which the merges were learned; the order of the tokens does.
        pieces = [
            Piece(SPACE_MARK * len(p.text) if p.text.isspace() and " " in p.text else p.text,
                  -float(i), p.type)
            for i, p in enumerate(pieces)
        ]  # fmt: skip
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", not gemma))
    # Phi-3's own tokeniser puts the space before every stretch between control tokens.
    vocabulary = sentencepiece_bpe(pieces, prefix=prefix, every=architecture == "phi3")
    _set_bos(metadata, vocabulary, default=True)
    return vocabulary


def sentencepiece_bpe(pieces: Sequence[Piece], *, prefix: bool, every: bool = False) -> Vocabulary:
    """A SentencePiece vocabulary that merges by score, as BPE with bytes for unknown letters.

    `prefix`: a space goes before the text; with `every`, before each stretch of it.
    """
    vocab: dict[str, int] = {}
    for index, piece in enumerate(pieces):
        vocab.setdefault(piece.text, index)
    unknown = next((p.text for p in pieces if p.type == PieceType.UNKNOWN), None)
    has_bytes = any(p.type == PieceType.BYTE for p in pieces)
    merges = _merges_by_score(pieces, vocab)
    tokenizer = _build(
        lambda: models.BPE(
            vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes
        )
    )
    tokenizer.normalizer = _spaces(prefix)
    _add_marked(tokenizer, pieces)
    return Vocabulary(
        tokenizer,
        "sentencepiece",
        len(pieces),
        strip_first_space=prefix,
        space_once=prefix and not every,
    )


def _merges_by_score(pieces: Sequence[Piece], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """All ways to make a piece from two others, best score first.

    Control, byte and unused tokens are left out: text must never merge into one of them.
    """
    plain = {p.text for p in pieces if p.type in (PieceType.NORMAL, PieceType.USER_DEFINED)}
    longest = max(map(len, plain), default=0)
    if longest > MAX_PIECE_LETTERS or sum(map(len, plain)) > MAX_CUTS:
        raise BadFileError(
            f"The file's vocabulary has tokens of up to {longest:,} letters, which cannot be. "
            "Download the file again."
        )
    found = []
    for piece in pieces:
        text = piece.text
        if text not in plain:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in plain and right in plain:
                found.append((-piece.score, -cut, vocab[left], vocab[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def sentencepiece_unigram(pieces: Sequence[Piece], *, prefix: bool, has_bytes: bool) -> Vocabulary:
    """A SentencePiece vocabulary that chooses the most likely cut of the whole text."""
    unknown = next((i for i, p in enumerate(pieces) if p.type == PieceType.UNKNOWN), None)
    rows = [(p.text, p.score) for p in pieces]
    tokenizer = _build(lambda: models.Unigram(rows, unk_id=unknown, byte_fallback=has_bytes))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE_MARK, prepend_scheme="never", split=True
    )
    tokenizer.normalizer = _spaces(prefix)
    _add_marked(tokenizer, pieces)
    return Vocabulary(
        tokenizer, "sentencepiece", len(pieces), strip_first_space=prefix, space_once=prefix
    )


def normalise(tokenizer: Tokenizer, charsmap: bytes, squeeze_spaces: bool) -> None:
    """Put a SentencePiece file's own clean-up of the text in front."""
    steps: list[normalizers.Normalizer] = []
    if charsmap:
        charsmap_.check(charsmap)
        with library_errors("The vocabulary's map of characters"):
            steps.append(normalizers.Precompiled(charsmap))
    if squeeze_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, *_steps(tokenizer.normalizer, "normalizers")]
    )


def _build(model: Callable[[], models.Model]) -> Tokenizer:
    with library_errors("The file's vocabulary"):
        return Tokenizer(model())


def _add_marked(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> None:
    """Control and user-defined tokens stay whole; the first kind only where we allow it."""
    control = [p.text for p in pieces if p.type == PieceType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    # Runs of spaces are left to merging: here only a literal mark would be found, and cut off
    # from the spaces beside it.
    defined = [
        p.text for p in pieces if p.type == PieceType.USER_DEFINED and p.text.strip(SPACE_MARK)
    ]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in defined])


def _set_bos(metadata: Mapping[str, object], vocabulary: Vocabulary, default: bool) -> None:
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if isinstance(bos, int) and bool(metadata.get("tokenizer.ggml.add_bos_token", default)):
        vocabulary.prefix_ids = (int(bos),)


def _with_gguf_names(
    metadata: Mapping[str, object], pieces: Sequence[Piece], vocabulary: Vocabulary
) -> Vocabulary:
    """Add what the ids in the metadata say: names for the template, ends of a turn."""
    ids = {key: metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS}
    for name, (key,) in _NAME_KEYS.items():
        ids[key] = metadata.get(f"tokenizer.ggml.{key}")
        if ids[key] is not None:
            vocabulary.names[name] = pieces[_checked(key, ids[key], len(pieces))].text
    ends = {_checked(key, ids[key], len(pieces)) for key in _END_KEYS if ids[key] is not None}
    turn_ends = set(TURN_ENDS)
    if "<|endoftext|>" in (vocabulary.names.get("bos_token"), vocabulary.names.get("pad_token")):
        turn_ends.add("<|endoftext|>")  # here it parts documents, so nothing follows it
    ends |= {i for i, p in enumerate(pieces) if p.type == PieceType.CONTROL and p.text in turn_ends}
    vocabulary.eos_ids = frozenset(ends)
    template = metadata.get("tokenizer.chat_template")
    vocabulary.template = template if isinstance(template, str) and template.strip() else None
    return vocabulary


def _checked(key: str, token_id: object, size: int) -> int:
    if not isinstance(token_id, int) or not 0 <= token_id < size:
        raise BadFileError(
            f"The file's {key} is {shown(token_id)}, but its vocabulary has {size} tokens. "
            "Download the file again."
        )
    return int(token_id)


# --- the space before a text --------------------------------------------------------------------


def _spaces(prefix: bool) -> normalizers.Normalizer:
    first = [normalizers.Prepend(SPACE_MARK)] if prefix else []
    return normalizers.Sequence([*first, normalizers.Replace(" ", SPACE_MARK)])


def tokeniser_after_control(vocabulary: Vocabulary) -> Tokenizer:
    """One that encodes what follows a control token: its first word gets no extra space.

    It is the vocabulary's own when that never tells the first word of a text from the others.
    """
    tokenizer = vocabulary.tokenizer
    if not vocabulary.space_once and not _first_only(tokenizer):
        return tokenizer
    other = Tokenizer.from_str(tokenizer.to_str())
    other.encode_special_tokens = tokenizer.encode_special_tokens
    for step in _first_only(other):
        step.prepend_scheme = "never"
    if vocabulary.space_once:
        steps = _steps(other.normalizer, "normalizers")
        other.normalizer = normalizers.Sequence(
            [step for step in steps if not isinstance(step, normalizers.Prepend)]
        )
    return other


def _first_only(tokenizer: Tokenizer) -> list[pre_tokenizers.Metaspace]:
    return [
        step
        for step in _steps(tokenizer.pre_tokenizer, "pretokenizers")
        if isinstance(step, pre_tokenizers.Metaspace) and step.prepend_scheme == "first"
    ]


def _steps(step: Any, key: str) -> list[Any]:
    """The parts of a sequence, which says nowhere but in its state how many it has."""
    if not isinstance(step, pre_tokenizers.Sequence | normalizers.Sequence):
        return [step]
    return [step[i] for i in range(len(json.loads(step.__getstate__())[key]))]
