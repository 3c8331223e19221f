"""Text: one model's way between text and token ids. Owns which ids may stand for control tokens.

A control token (`<|im_end|>`) is only ever made from what the chat template wrote. The same
letters inside a message are encoded as the plain text they are: the template worker puts a guard
character into them, and `encode_rendered` takes it out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Encoding, Tokenizer

from engine.errors import RequestError, shown
from engine.token_stream import BYTE_PIECE, Pieces, TokenStream
from engine.tokeniser_folder import from_folder
from engine.vocabulary import (
    Vocabulary,
    from_gguf,
    is_library_error,
    library_errors,
    tokeniser_after_control,
)

_CONTROL_LOOK = re.compile(r"<[|\uff5c].+[|\uff5c]>")  # `<|tool|>`, also in DeepSeek's wide bars
_MOST_LOST = 64  # letters in a row that a normaliser may have taken away
_NO_SPACE = re.compile(r"\S")


class Text:
    """A tokeniser with its special tokens and its chat template. Two threads may use it at once.

    Attributes:
        vocab_size: ids are 0 to vocab_size - 1; a model's output may be wider.
        eos_ids: ids that end a reply.
        special_tokens: text of each control token -> its id.
        template: the chat template, or None (then `template_worker.PLAIN_TEMPLATE` is used).
        variables: what the template is given beside the messages (bos_token, eos_token, ...).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._prefix_ids = list(vocabulary.prefix_ids)
        tokens = _control_tokens(vocabulary)
        # From here on control tokens in a text are not looked for: `_control` does it by hand.
        self._tokenizer.encode_special_tokens = True
        with library_errors("The model's vocabulary"):
            self._later = tokeniser_after_control(vocabulary)
        self._tokens = {token.content: token for token in tokens.values()}
        self._control = _pattern(self._tokens)
        self.special_tokens = {token.content: index for index, token in tokens.items()}
        self._control_ids = frozenset(tokens)
        if vocabulary.piece_kind == "sentencepiece":  # unknown letters may truly become <unk>
            self._control_ids -= {self.token_id(vocabulary.names.get("unk_token"))}
        self._byte_ids = _byte_ids(vocabulary)
        self.vocab_size = vocabulary.size
        self.eos_ids = vocabulary.eos_ids
        self.bos_token = vocabulary.names.get("bos_token", "")
        self.eos_token = vocabulary.names.get("eos_token", "")
        self.template = vocabulary.template
        self.variables: dict[str, object] = dict(vocabulary.names)
        self.variables["adds_bos"] = bool(self._prefix_ids)
        self._pieces = Pieces(
            self._tokenizer.id_to_token,
            vocabulary.piece_kind,
            hidden=tokens,
            strip_first_space=vocabulary.strip_first_space,
        )

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Text:
        """From a GGUF file's metadata (`tokenizer.*` keys and `general.architecture`).

        Raises:
            UnsupportedModelError: a kind of tokeniser that we cannot run.
            BadFileError: keys are missing or do not fit together.
        """
        return cls(from_gguf(metadata))

    @classmethod
    def from_folder(cls, path: str | Path) -> Text:
        """From a model folder's tokenizer.json or tokenizer.model and their companions.

        Raises:
            UnsupportedModelError: there is none, or a kind that we cannot run.
            BadFileError: a file is damaged.
        """
        return cls(from_folder(Path(path)))

    def token_id(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a text that no template has seen; control tokens typed in it stay text."""
        return self._prefix_ids + self._plain(text, at_start=True)[0]

    def encode_rendered(self, text: str, guard: str) -> list[int]:
        """Ids of a rendered chat template.

        `guard` is the character that the template worker put behind the first letter of whatever
        looked like a control token in a message; it leaves no trace in the ids. No BOS is added:
        templates write their own.
        """
        return self.encode_messages(text, guard, ())[0]

    def encode_messages(
        self, text: str, guard: str, starts: Sequence[int]
    ) -> tuple[list[int], tuple[int, ...]]:
        """As `encode_rendered`, and for each of `starts` (places in `text`, -1 = unknown) the index
        of the token that holds the letter there; -1 where there is none."""
        ids: list[int] = []
        indices = [-1] * len(starts)
        waiting = sorted((at, i) for i, at in enumerate(starts) if 0 <= at < len(text))[::-1]
        for at, part, is_control in self._parts(text, guard):
            inside = []
            while waiting and waiting[-1][0] < at + len(part):
                inside.append(waiting.pop())
            # One before this part is among spaces that a control token swallowed.
            places = [len(_without(part[: max(0, place - at)], guard)) for place, _ in inside]
            if is_control:
                new, firsts = [self.special_tokens[part]], [0] * len(places)
            else:
                new, firsts = self._plain(_without(part, guard), not ids, places)
            for (_, index), first in zip(inside, firsts, strict=True):
                indices[index] = len(ids) + first
            ids += new
        return ids, tuple(index if index < len(ids) else -1 for index in indices)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of a whole reply, without its control tokens."""
        return self._pieces.decode(token_ids)

    def bytes_of(self, token_id: int) -> bytes:
        """What one token adds to a text, often part of a character; a control token adds none."""
        return self._pieces.bytes_of(token_id)

    def stream(self, stop: Sequence[str] = ()) -> TokenStream:
        """A new reply's incremental decoder; all its pieces joined are `decode` of all its ids."""
        return TokenStream(self._pieces, stop)

    def _parts(self, text: str, guard: str) -> Iterator[tuple[int, str, bool]]:
        """(place, stretch, whether it is a control token); guards are still in plain stretches."""
        at = 0
        for match in self._control.finditer(text) if self._control else ():
            if guard and text.startswith(guard, match.end()):
                continue  # a one-letter control token of a message
            token = self._tokens[match[0]]
            before = text[at : match.start()]
            before = before.rstrip() if token.lstrip else before
            if before:
                yield at, before, False
            yield match.start(), match[0], True
            at = match.end()
            if token.rstrip:  # this token swallows the spaces that follow it
                at = _after_spaces(text, at)
        if at < len(text):
            yield at, text[at:], False

    def _plain(
        self, text: str, at_start: bool, places: Sequence[int] = ()
    ) -> tuple[list[int], list[int]]:
        """Ids of plain text, and which of them holds the letter at each place.

        Only at the start of a text does the first word get its space.
        """
        if not text:
            return [], [0] * len(places)
        text = _encodable(text)
        encoding = _encoded(self._tokenizer if at_start else self._later, text)
        ids = encoding.ids
        firsts = [_token_at(encoding, place, len(text)) for place in places]
        wrong = set(self._wrong_tokens(encoding, text))
        if not wrong:
            return ids, firsts
        parts = [self._spelled(n) if i in wrong else [n] for i, n in enumerate(ids)]
        firsts = [sum(map(len, parts[:first])) for first in firsts]
        return [index for part in parts for index in part], firsts

    def _wrong_tokens(self, encoding: Encoding, text: str) -> Iterator[int]:
        """Which tokens plain letters must not become, although a vocabulary may do so: control
        tokens, and pieces like `<0x0A>`, which stand for a byte, made from these six letters."""
        ids = encoding.ids
        if not self._control_ids.isdisjoint(ids):
            yield from (i for i, index in enumerate(ids) if index in self._control_ids)
        if self._byte_ids and BYTE_PIECE.search(text):
            for i, (begin, end) in enumerate(encoding.offsets):
                if ids[i] in self._byte_ids and BYTE_PIECE.fullmatch(text, begin, end):
                    yield i

    def _spelled(self, token_id: int) -> list[int]:
        """A token's letters, one by one."""
        letters = self._tokenizer.id_to_token(token_id) or ""
        spelled = (_encoded(self._later, letter).ids for letter in letters)
        return [index for ids in spelled for index in ids if index not in self._control_ids]


def _token_at(encoding: Encoding, place: int, end: int) -> int:
    """Index of the token with the letter at `place`, or of the first behind it."""
    for at in range(place, min(place + _MOST_LOST, end)):
        token = encoding.char_to_token(at)
        if token is not None:
            return int(token)
    return len(encoding.ids)


def _encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    """Plain text as tokens.

    Raises:
        RequestError: the model's files make the tokenisers' library fail on it.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise RequestError(
            f"The model's tokeniser fails on this text ({shown(str(error))}); "
            "take another copy of the model"
        ) from error


def _control_tokens(vocabulary: Vocabulary) -> dict[int, AddedToken]:
    """Id -> control token. Added tokens that look like one are made special on the way."""
    tokenizer = vocabulary.tokenizer
    added = tokenizer.get_added_tokens_decoder()
    for token in added.values():
        if not token.special and _CONTROL_LOOK.fullmatch(token.content):
            token.special = True
            tokenizer.add_special_tokens([token])
    return {i: t for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}


def _byte_ids(vocabulary: Vocabulary) -> frozenset[int]:
    if vocabulary.piece_kind != "sentencepiece":
        return frozenset()
    found = (vocabulary.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(index for index in found if index is not None)


def _pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """Finds the leftmost control token; of several that begin there, the longest."""
    ordered = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _after_spaces(text: str, at: int) -> int:
    found = _NO_SPACE.search(text, at)
    return found.start() if found else len(text)


def _without(text: str, guard: str) -> str:
    return text.replace(guard, "") if guard else text


def _encodable(text: str) -> str:
    """The text with lone surrogates, which no tokeniser takes, made replacement characters."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
