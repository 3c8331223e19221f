"""Reader of a model folder's tokeniser. Owns which file says what.

`tokenizer.json` (else `tokenizer.model`) is the vocabulary; `tokenizer_config.json`,
`special_tokens_map.json`, `generation_config.json`, `config.json` and `chat_template.jinja`
add the names of special tokens, the ends of a turn and the chat template.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine import charsmap, sentencepiece_file
from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.token_stream import PieceKind
from engine.vocabulary import TURN_ENDS, Vocabulary, library_errors

_MAX_BYTES = 256 << 20  # the largest tokenizer.json in use is about 35 MB
_MAX_TOKENS = 1 << 22  # as many as a model may have rows for
_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
_MAX_TEMPLATE_BYTES = 1 << 20  # the longest in use is below 30 kB


def from_folder(path: Path) -> Vocabulary:
    """The tokeniser of the model in the folder `path`.

    Raises:
        UnsupportedModelError: there is none, or its kind is not one we can run.
        BadFileError: a file is damaged.
    """
    config = _json(path / "tokenizer_config.json")
    if (path / "tokenizer.json").is_file():
        vocabulary = _from_json(path / "tokenizer.json")
    elif (path / "tokenizer.model").is_file():
        vocabulary = sentencepiece_file.read(path / "tokenizer.model")
        _add_config_tokens(vocabulary.tokenizer, config)
        added = vocabulary.tokenizer.get_added_tokens_decoder()
        vocabulary.size = max(vocabulary.size, max(added, default=-1) + 1)
    else:
        raise UnsupportedModelError(
            f"The folder {shown(path.name)} has neither tokenizer.json nor tokenizer.model. "
            "Add the model's tokeniser files to it."
        )
    _set_names(vocabulary, config, _json(path / "special_tokens_map.json"))
    _set_prefix(vocabulary, config)
    _set_ends(vocabulary, _json(path / "generation_config.json"), _json(path / "config.json"))
    vocabulary.template = _template(path, config) or vocabulary.template
    return vocabulary


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError("too large")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        reason = shown(str(error), 160)
        raise BadFileError(f"{path.name} is damaged ({reason}). Download it again.") from error
    if not isinstance(value, dict):
        raise BadFileError(f"{path.name} is damaged (no object). Download it again.")
    return value


# --- tokenizer.json ---------------------------------------------------------------------------


def _from_json(path: Path) -> Vocabulary:
    if path.stat().st_size > _MAX_BYTES:
        raise BadFileError(f"{path.name} is far too long to be a vocabulary. Download it again.")
    with library_errors(path.name):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
    _check_charsmaps(tokenizer, path)
    steps = list(_decoder_steps(tokenizer, path))
    kinds = {step["type"] for step in steps}
    kind: PieceKind
    if "ByteLevel" in kinds:
        kind, strip = "byte_level", False
    elif kinds & {"Metaspace", "ByteFallback", "Replace"}:
        kind, strip = "sentencepiece", any(map(_strips_space, steps))
    else:
        raise UnsupportedModelError(
            f"{path.name} turns tokens into text by {sorted(kinds) or 'nothing'}, "
            "which Tessera does not know. Choose another model."
        )
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    if size > _MAX_TOKENS:
        raise BadFileError(
            f"{path.name} numbers its tokens up to {size - 1:,}, which cannot be. "
            "Download it again."
        )
    return Vocabulary(tokenizer, kind, size, strip_first_space=strip)


def _check_charsmaps(tokenizer: Tokenizer, path: Path) -> None:
    if tokenizer.normalizer is None:
        return
    waiting = [json.loads(tokenizer.normalizer.__getstate__())]
    while waiting:
        step = waiting.pop()
        waiting += step.get("normalizers", [])
        if step["type"] == "Precompiled":
            try:
                charsmap.check(base64.b64decode(step["precompiled_charsmap"] or ""))
            except ValueError as error:
                raise BadFileError(
                    f"{path.name} is damaged ({error}). Download it again."
                ) from error


def _decoder_steps(tokenizer: Tokenizer, path: Path) -> Iterator[Mapping[str, Any]]:
    decoder = tokenizer.decoder
    if decoder is None:
        return
    state = json.loads(decoder.__getstate__())
    yield from state.get("decoders", [state])


def _strips_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step.get("content") == " " and step.get("start"))


# --- the other files --------------------------------------------------------------------------


def _add_config_tokens(tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """Tokens that a folder with tokenizer.model adds to it in tokenizer_config.json."""
    added = config.get("added_tokens_decoder", {})
    rows = added.items() if isinstance(added, dict) else ()
    for index, row in sorted(rows, key=lambda item: _number(item[0])):
        text = row.get("content") if isinstance(row, dict) else None
        if not isinstance(text, str) or not text:
            continue
        _check_encodable("tokenizer_config.json", "added_tokens_decoder", text)
        special = bool(row.get("special"))
        token = AddedToken(
            text,
            lstrip=bool(row.get("lstrip")),
            rstrip=bool(row.get("rstrip")),
            normalized=bool(row.get("normalized", not special)),
        )
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
        if str(tokenizer.token_to_id(text)) != index:
            raise BadFileError(
                f"tokenizer_config.json gives {shown(text)} the number {shown(index)}, but the "
                f"vocabulary gives it {tokenizer.token_to_id(text)}. Download the model's files "
                "again."
            )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _check_encodable(where: str, key: str, text: str) -> None:
    """JSON can spell half of a surrogate pair, which no tokeniser takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadFileError(
            f"{where} gives {key} as {shown(text)}, which is no text. Download it again."
        ) from None


def _set_names(
    vocabulary: Vocabulary, config: Mapping[str, Any], special_map: Mapping[str, Any]
) -> None:
    for name in _NAMES:
        for source in (config, special_map):
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str) and text:
                _check_encodable("The tokeniser's configuration", name, text)
                vocabulary.names[name] = text
                break


def _set_prefix(vocabulary: Vocabulary, config: Mapping[str, Any]) -> None:
    """BOS before raw text: as tokenizer_config.json says, else as tokenizer.json does."""
    tokenizer, wanted = vocabulary.tokenizer, config.get("add_bos_token")
    bos = tokenizer.token_to_id(vocabulary.names.get("bos_token", ""))
    if isinstance(wanted, bool):
        vocabulary.prefix_ids = (bos,) if wanted and bos is not None else ()
        return
    with library_errors("The folder's vocabulary"):
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        full = tokenizer.encode("a").ids
    if not vocabulary.prefix_ids and plain:
        vocabulary.prefix_ids = tuple(full[: full.index(plain[0])]) if plain[0] in full else ()
    if max(vocabulary.prefix_ids, default=0) >= vocabulary.size:
        raise BadFileError(
            f"tokenizer.json puts token {max(vocabulary.prefix_ids):,} before a text, and has only "
            f"{vocabulary.size:,} tokens. Download it again."
        )


def _set_ends(
    vocabulary: Vocabulary, generation: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    ends = set(vocabulary.eos_ids)
    for source in (generation, config):
        value = source.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        ends |= {index for index in values if isinstance(index, int) and 0 <= index < 1 << 31}
        if value is not None:
            break
    added = vocabulary.tokenizer.get_added_tokens_decoder()
    ends |= {i for i, token in added.items() if token.special and token.content in TURN_ENDS}
    eos = vocabulary.tokenizer.token_to_id(vocabulary.names.get("eos_token", ""))
    vocabulary.eos_ids = frozenset(ends if eos is None else ends | {eos})


def _template(path: Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            if file.stat().st_size > _MAX_TEMPLATE_BYTES:
                raise ValueError("too large")
            return file.read_text(encoding="utf-8")
        except (ValueError, OSError) as error:
            raise BadFileError(
                f"{file.name} cannot be read ({shown(str(error), 160)}). Download it again."
            ) from error
    value = config.get("chat_template")
    if isinstance(value, list):  # several by name
        named = {row.get("name"): row.get("template") for row in value if isinstance(row, dict)}
        value = named.get("default", next(iter(named.values()), None))
    return value if isinstance(value, str) and value.strip() else None
