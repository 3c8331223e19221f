"""Text: one model's way between text and token ids. Owns which ids may stand for control tokens.

A control token (`<|im_end|>`) is only ever made from what the chat template wrote. The same
letters inside a message are encoded as the plain text they are: the template worker puts a guard
character into them, and `encode_rendered` takes it out again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken

from engine.token_stream import Pieces, TokenStream
from engine.tokeniser_folder import from_folder
from engine.vocabulary import Vocabulary, from_gguf, tokeniser_after_control

_CONTROL_LOOK = re.compile(r"<[|\uff5c].+[|\uff5c]>")  # `<|tool|>`, also in DeepSeek's wide bars
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
        self._later = tokeniser_after_control(vocabulary)
        self._tokens = {token.content: token for token in tokens.values()}
        self._control = _pattern(self._tokens)
        self.special_tokens = {token.content: index for index, token in tokens.items()}
        self._control_ids = frozenset(tokens)
        if vocabulary.piece_kind == "sentencepiece":  # unknown letters may truly become <unk>
            self._control_ids -= {self.token_id(vocabulary.names.get("unk_token"))}
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
        return self._prefix_ids + self._plain(text, at_start=True)

    def encode_rendered(self, text: str, guard: str) -> list[int]:
        """Ids of a rendered chat template.

        `guard` is the character that the template worker put behind the first letter of whatever
        looked like a control token in a message; it leaves no trace in the ids. No BOS is added:
        templates write their own.
        """
        ids: list[int] = []
        for part, is_control in self._parts(text, guard):
            if is_control:
                ids.append(self.special_tokens[part])
            else:
                ids += self._plain(part, at_start=not ids)
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of a whole reply, without its control tokens."""
        return self._pieces.decode(token_ids)

    def bytes_of(self, token_id: int) -> bytes:
        """What one token adds to a text, often part of a character; a control token adds none."""
        return self._pieces.bytes_of(token_id)

    def stream(self, stop: Sequence[str] = ()) -> TokenStream:
        """A new reply's incremental decoder; all its pieces joined are `decode` of all its ids."""
        return TokenStream(self._pieces, stop)

    def _parts(self, text: str, guard: str) -> Iterator[tuple[str, bool]]:
        """(stretch, whether it is a control token), the guard removed from plain stretches."""
        at = 0
        for match in self._control.finditer(text) if self._control else ():
            if guard and text.startswith(guard, match.end()):
                continue  # a one-letter control token of a message
            token = self._tokens[match[0]]
            before = text[at : match.start()]
            before = _without(before.rstrip() if token.lstrip else before, guard)
            if before:
                yield before, False
            yield match[0], True
            at = match.end()
            if token.rstrip:  # this token swallows the spaces that follow it
                at = _after_spaces(text, at)
        if at < len(text):
            yield _without(text[at:], guard), False

    def _plain(self, text: str, at_start: bool) -> list[int]:
        """Ids of plain text. Only at the start of a text does the first word get its space."""
        if not text:
            return []
        text = _encodable(text)
        tokenizer = self._tokenizer if at_start else self._later
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if self._control_ids.isdisjoint(ids):
            return ids
        return [part for index in ids for part in self._broken_up(index)]

    def _broken_up(self, token_id: int) -> list[int]:
        """A vocabulary may merge plain letters into a control token; spell that one out."""
        if token_id not in self._control_ids:
            return [token_id]
        letters = self._tokenizer.id_to_token(token_id) or ""
        spelled = (self._later.encode(a, add_special_tokens=False).ids for a in letters)
        return [index for ids in spelled for index in ids if index not in self._control_ids]


def _control_tokens(vocabulary: Vocabulary) -> dict[int, AddedToken]:
    """Id -> control token. Added tokens that look like one are made special on the way."""
    tokenizer = vocabulary.tokenizer
    added = tokenizer.get_added_tokens_decoder()
    for token in added.values():
        if not token.special and _CONTROL_LOOK.fullmatch(token.content):
            token.special = True
            tokenizer.add_special_tokens([token])
    return {i: t for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}


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
