"""What the fuzzer found once stays mended; and three hundred new cases of it."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import charsmap
from engine.errors import BadFileError, RequestError, UnsupportedModelError
from engine.text import Text

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The fuzzer's modules `files` and `tiny_models`, which lie beside no package."""
    pytest.importorskip("resource", reason="limits of time and memory of a POSIX system")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FUZZ))
        yield importlib.import_module("files")


@pytest.mark.parametrize("reader", ["gguf", "safetensors"])
def test_three_hundred_cases(reader: str, fuzz: Any) -> None:
    counts, wrongs = fuzz.run(reader, seed=3, first=0, num_cases=300)
    assert wrongs == []
    assert counts.total() == 300
    assert counts["loads"] > 30  # else the damage is so great that nothing deep is reached
    assert counts["BadFileError"] > 100


def test_a_case_is_made_from_its_number_alone(fuzz: Any) -> None:
    whole, _ = fuzz.run("gguf", seed=5, first=0, num_cases=12)
    parts = [fuzz.run("gguf", seed=5, first=number, num_cases=1)[0] for number in range(12)]
    assert sum(parts, start=type(whole)()) == whole


# --- folders -----------------------------------------------------------------------------------


@pytest.fixture
def folder(fuzz: Any, tmp_path: Path) -> Callable[..., Path]:
    """folder(seed, file, content): a model folder with one file in place of its own."""

    def make(seed: str, name: str, content: object) -> Path:
        for file, data in fuzz.tiny_models.FOLDERS[seed]().items():
            (tmp_path / file).write_bytes(data)
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / name).write_bytes(raw)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("seed", "name", "content", "words"),
    [
        ("json", "tokenizer_config.json", {"bos_token": "\ud800"}, "bos_token"),
        ("json", "special_tokens_map.json", {"pad_token": {"content": "a\udfff"}}, "pad_token"),
        ("json", "tokenizer.json", b'{"version": ' + b"1" * 5000 + b"}", "tokenizer.json"),
        ("json", "tokenizer.json", b"\xff\x00", "tokenizer.json"),
        ("json", "tokenizer_config.json", b"[" * 100_000, "tokenizer_config.json"),
        ("json", "tokenizer_config.json", b'{"a": ' + b"1" * 5000 + b"}", "tokenizer_config.json"),
        ("json", "chat_template.jinja", b"{{ \xff }}", "chat_template.jinja"),
        ("json", "chat_template.jinja", b" " * (1 << 21), "too large"),
        ("bpe", "tokenizer.model", b"", "tokenizer.model"),
        ("bpe", "tokenizer.model", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "tokenizer.model"),
        (
            "bpe",
            "tokenizer_config.json",
            {"added_tokens_decoder": {"3": {"content": "\ud800"}}},
            "added_tokens_decoder",
        ),
        (
            "bpe",
            "tokenizer_config.json",
            {"added_tokens_decoder": {"9" * 6000: {"content": "<x>"}}},
            "<x>",
        ),
        ("bpe", "tokenizer_config.json", {"added_tokens_decoder": {"²": {"content": "<x>"}}}, "²"),
    ],
    ids=range(13),
)
def test_a_folder_ends_in_a_sentence(
    seed: str, name: str, content: object, words: str, folder: Callable[..., Path], fuzz: Any
) -> None:
    path = folder(seed, name, content)
    assert fuzz.judged(path) == ("BadFileError", "")
    with pytest.raises(BadFileError, match=words.replace("²", "\\\\xb2|²")):
        Text.from_folder(path)


def test_a_text_must_begin_with_a_token_that_is_there(
    folder: Callable[..., Path], fuzz: Any
) -> None:
    table = json.loads(fuzz.tiny_models.FOLDERS["json"]()["tokenizer.json"])
    table["post_processor"]["special_tokens"]["<s>"]["ids"] = [7]
    path = folder("json", "tokenizer.json", table)
    assert fuzz.judged(path) == ("BadFileError", "")
    with pytest.raises(BadFileError, match="token 7 before a text"):
        Text.from_folder(path)


def test_a_token_numbered_beyond_any_vocabulary(folder: Callable[..., Path], fuzz: Any) -> None:
    table = json.loads(fuzz.tiny_models.FOLDERS["json"]()["tokenizer.json"])
    table["model"]["vocab"]["b"] = (1 << 32) - 1
    path = folder("json", "tokenizer.json", table)
    assert fuzz.judged(path) == ("BadFileError", "")
    with pytest.raises(BadFileError, match="4,294,967,295"):
        Text.from_folder(path)


def test_ends_that_no_vocabulary_can_have_are_left_out(folder: Callable[..., Path]) -> None:
    ends = {"eos_token_id": [1 << 40, -1, "2", 1]}
    assert Text.from_folder(folder("json", "generation_config.json", ends)).eos_ids == {1, 2}


def test_added_tokens_that_are_no_texts_are_none(folder: Callable[..., Path]) -> None:
    rows = {"1": {"content": 7}, "2": 5, "3": {"content": ["a"]}}
    path = folder("bpe", "tokenizer_config.json", {"added_tokens_decoder": rows})
    assert Text.from_folder(path).encode_raw("a")


def test_an_added_token_counts_among_the_ids(folder: Callable[..., Path]) -> None:
    text = Text.from_folder(folder("bpe", "special_tokens_map.json", {}))
    assert text.special_tokens["<turn>"] == text.vocab_size - 1


def test_letters_that_a_tokeniser_fails_on_end_one_request(folder: Callable[..., Path]) -> None:
    """A word-level vocabulary without its word for unknown words loads, and then fails."""
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="nowhere"))
    tokenizer.decoder = decoders.ByteLevel()
    path = folder("json", "tokenizer.json", tokenizer.to_str().encode())
    (path / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    with pytest.raises(RequestError, match="another copy of the model"):
        Text.from_folder(path).encode_raw("zzz")


# --- maps of characters ------------------------------------------------------------------------


def character_map(units: np.ndarray, texts: bytes) -> bytes:
    return struct.pack("<I", 4 * len(units)) + units.astype("<u4").tobytes() + texts


def test_a_map_of_characters_that_nobody_hurt_is_good(fuzz: Any) -> None:
    from engine import sentencepiece_file

    data = fuzz.tiny_models.FOLDERS["unigram"]()["tokenizer.model"]
    [rules] = [value for number, value in sentencepiece_file._fields(data) if number == 3]
    found = dict(sentencepiece_file._fields(rules))[2]
    assert len(found) > 100_000
    charsmap.check(found)


LEAF_BIT = 1 << 8  # of a unit: the first unit of its children holds a value
VALUE = 1 << 31


@pytest.mark.parametrize(
    ("changes", "texts", "words"),
    [
        ({}, b"a\0", ""),
        ({0: 255 << 10}, b"a\0", ""),
        ({0: 256 << 10}, b"a\0", "outside"),
        ({77: 0x1FFFFF << 10}, b"a\0", "outside"),
        ({0: 1 << 10 | 1 << 9}, b"a\0", "outside"),  # counts in 256 units
        ({0: VALUE}, b"a\0", "outside"),
        ({5: LEAF_BIT | 4 << 10, 1: VALUE | 2}, b"a\0", ""),
        ({5: LEAF_BIT | 4 << 10, 1: VALUE | 3}, b"a\0", "behind its texts"),
        ({5: LEAF_BIT | 4 << 10, 1: VALUE | 1}, "é\0".encode(), "into a letter"),
        ({}, b"\xff", "utf-8"),
    ],
    ids=range(10),
)
def test_a_map_of_characters_must_not_lead_outside(
    changes: dict[int, int], texts: bytes, words: str
) -> None:
    units = np.zeros(256, np.uint32)
    for place, value in changes.items():
        units[place] = value
    raw = character_map(units, texts)
    if not words:
        charsmap.check(raw)
        return
    with pytest.raises(ValueError, match=words):
        charsmap.check(raw)


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\xff" * 12, struct.pack("<I", 6) + bytes(20)])
def test_a_map_of_characters_that_is_cut_short(raw: bytes) -> None:
    with pytest.raises(ValueError, match="cut short"):
        charsmap.check(raw)


def test_a_hostile_map_in_a_tokenizer_json(folder: Callable[..., Path], fuzz: Any) -> None:
    import base64

    hostile = character_map(np.full(256, 0x3FFFFF << 10, np.uint32), b"a\0")
    table = json.loads(fuzz.tiny_models.FOLDERS["json"]()["tokenizer.json"])
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(hostile).decode()}
    table["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, step]}
    path = folder("json", "tokenizer.json", table)
    with pytest.raises(BadFileError, match=r"tokenizer\.json is damaged .*outside"):
        Text.from_folder(path)


# --- GGUF --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("model", "\n\x07" * 500, UnsupportedModelError),
        ("model", 8, UnsupportedModelError),
        ("pre", "x" * 3000, UnsupportedModelError),
        ("bos_token_id", "x" * 100_000, BadFileError),
        ("eos_token_id", -5, BadFileError),
        ("bos_token_id", 1 << 40, BadFileError),
        ("scores", [float("nan")] * 3, BadFileError),
    ],
)
def test_a_gguf_tokeniser_ends_in_a_short_sentence(
    key: str, value: object, error: type[Exception], fuzz: Any
) -> None:
    metadata = fuzz.tiny_models.GGUFS["qwen2" if key == "pre" else "llama"]().metadata
    with pytest.raises(error) as caught:
        Text.from_gguf(metadata | {f"tokenizer.ggml.{key}": value})
    assert fuzz._unfit(str(caught.value)) == ""


@pytest.mark.parametrize("merge", ["x" * 100_000, "a b c", "\n", " a"])
def test_a_broken_merge_is_shown_shortly(merge: str, fuzz: Any) -> None:
    metadata = fuzz.tiny_models.GGUFS["qwen2"]().metadata
    with pytest.raises(BadFileError) as caught:
        Text.from_gguf(metadata | {"tokenizer.ggml.merges": [merge]})
    assert fuzz._unfit(str(caught.value)) == ""


@pytest.mark.parametrize(("num_tokens", "letters"), [(1, 4_000_000), (20_000, 900)])
def test_tokens_as_long_as_books_cost_no_time(
    num_tokens: int, letters: int, fuzz: Any, cheap: Callable[..., Any]
) -> None:
    """Every way to cut a token in two is looked at: a square of its length."""
    metadata = dict(fuzz.tiny_models.GGUFS["llama"]().metadata)
    tokens = [*metadata["tokenizer.ggml.tokens"]]
    tokens += [str(number) + "x" * letters for number in range(num_tokens)]
    metadata |= {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }
    with cheap(64 << 20), pytest.raises(BadFileError, match="letters"):
        Text.from_gguf(metadata)
