"""Text from SentencePiece files, GGUF vocabularies with scores, and model folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from engine.errors import BadFileError, UnsupportedModelError
from engine.text import Text

LINES = [
    "the quick brown fox jumps over the lazy dog and then the dog sleeps",
    "a chat application shows the memory of the engine while it answers",
    "Grüße aus dem Süden, ďakujem, and café au lait for everyone here",
    "東京は日本の首都です and the answer is in the morning of the day",
    "def function(value): return value + 1 if value else None",
] * 40

SAMPLES = [
    "the quick answer",
    " leading and  double   spaces ",
    "Grüße! 東京 🦊 \t tabs\nand lines\n\n",
    "<s> </s> <unk> <0x0A> [INST]",
    "",
    " ",
    "\u2581marks\u2581",
    "x" * 50,
]


def train(path: Path, kind: str, **settings: Any) -> sentencepiece.SentencePieceProcessor:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_prefix=str(path / "tokenizer"),
        model_type=kind,
        vocab_size=340 if kind == "unigram" else 500,
        byte_fallback=True,
        character_coverage=1.0,
        minloglevel=2,
        **{"remove_extra_whitespaces": False, "normalization_rule_name": "identity", **settings},
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("bpe")
    return path, train(path, "bpe", user_defined_symbols=["<turn>"])


@pytest.fixture(scope="module")
def bpe_text(bpe: tuple[Path, Any]) -> Text:
    return Text.from_folder(bpe[0])


def gguf_metadata(processor: Any) -> dict[str, object]:
    size = processor.get_piece_size()
    kinds = [
        2 if processor.is_unknown(i)
        else 3 if processor.is_control(i)
        else 6 if processor.is_byte(i)
        else 4 if processor.id_to_piece(i) == "<turn>"
        else 1
        for i in range(size)
    ]  # fmt: skip
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="module")
def gguf_text(bpe: tuple[Path, Any]) -> Text:
    return Text.from_gguf(gguf_metadata(bpe[1]))


@pytest.mark.parametrize("sample", SAMPLES)
def test_bpe_ids_equal_sentencepiece(
    sample: str, bpe: tuple[Path, Any], bpe_text: Text, gguf_text: Text
) -> None:
    wanted = bpe[1].encode(sample)
    if not sample:
        wanted = []
    for text in (bpe_text, gguf_text):
        ids = text.encode_raw(sample)
        assert ids[0] == 1
        assert ids[1:] == wanted
        assert text.decode(ids) == sample.replace("\u2581", " ")


@settings(max_examples=200, deadline=None)
@given(sample=st.text(max_size=30))
def test_sentencepiece_text_streams_to_the_whole(sample: str, bpe_text: Text) -> None:
    ids = bpe_text.encode_raw(sample)
    stream = bpe_text.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == bpe_text.decode(ids)
    assert bpe_text.decode(ids) == sample.replace("\u2581", " ")


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(-1, 520), max_size=30))
def test_random_sentencepiece_ids_stream_to_the_whole(ids: list[int], gguf_text: Text) -> None:
    stream = gguf_text.stream()
    assert "".join(map(stream.push, ids)) + stream.finish() == gguf_text.decode(ids)


def test_after_a_control_token_no_space_is_added(bpe_text: Text) -> None:
    the = bpe_text.encode_raw("the")[1:]
    ids = bpe_text.encode_rendered("<s>the", "")
    assert ids[0] == 1
    assert ids[1:] != the
    assert bpe_text.decode([*the, *ids[1:]]) == "thethe"
    assert bpe_text.encode_rendered("the</s>the", "") == [*the, 2, *ids[1:]]


def test_typed_control_and_byte_pieces_stay_text(bpe_text: Text) -> None:
    typed = "a<s>b</s>c<0x0A>"
    ids = bpe_text.encode_raw(typed)[1:]
    assert not {1, 2} & set(ids)
    assert bpe_text.decode(ids) == typed
    guarded = "<s>" + typed.replace("<s", "<\ufdd0s").replace("</", "<\ufdd0/")
    assert bpe_text.decode(bpe_text.encode_rendered(guarded, "\ufdd0")[1:]) == typed


def test_gguf_without_space_before_the_text(bpe: tuple[Path, Any]) -> None:
    metadata = {**gguf_metadata(bpe[1]), "tokenizer.ggml.add_space_prefix": False}
    text = Text.from_gguf({**metadata, "tokenizer.ggml.add_bos_token": False})
    for sample in ("the fox", " the fox"):
        assert text.decode(text.encode_raw(sample)) == sample
    assert text.encode_raw("the") != text.encode_raw(" the")


def test_unigram_ids_equal_sentencepiece(tmp_path: Path) -> None:
    processor = train(
        tmp_path, "unigram", normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=True
    )
    text = Text.from_folder(tmp_path)
    for sample in [*SAMPLES[:3], "x" * 50, "ﬁ ½ \uff37\uff49"]:
        assert text.encode_raw(sample)[1:] == processor.encode(sample)


@pytest.mark.parametrize("cut", [0, 1, 7, 500, -3])
def test_a_damaged_sentencepiece_file_ends_in_a_sentence(
    cut: int, bpe: tuple[Path, Any], tmp_path: Path
) -> None:
    data = (bpe[0] / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(data[:cut])
    with pytest.raises(BadFileError, match=r"tokenizer\.model|vocabulary"):
        Text.from_folder(tmp_path)


def test_html_instead_of_a_sentencepiece_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"<!doctype html><html>not found</html>")
    with pytest.raises(BadFileError, match=r"tokenizer\.model"):
        Text.from_folder(tmp_path)


# --- tokenizer.json -----------------------------------------------------------------------------

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


END = {
    "content": "<|end|>",
    "lstrip": False,
    "rstrip": True,
    "normalized": False,
    "single_word": False,
    "special": True,
}


def write_folder(path: Path, kind: str) -> None:
    """A small model's tokeniser files, with control tokens that swallow spaces."""
    letters = sorted({letter for line in LINES for letter in line} | set("<>|[]/\u2581"))
    added = [
        AddedToken("<s>", normalized=False, special=True),
        AddedToken("<|end|>", normalized=False, special=True, rstrip=True),
        AddedToken("<|user|>", normalized=False, special=True, rstrip=True),
        AddedToken("<|assistant|>", normalized=False, special=True, lstrip=True),
    ]
    if kind == "byte_level":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {letter: i for i, letter in enumerate(alphabet)}
        vocab["the"[:2]] = len(vocab)
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *letters, "\u2581t", "th"]
        vocab = {piece: i for i, piece in enumerate(pieces)}
        merges = [("\u2581", "t"), ("t", "h")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first", split=False)]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    tokenizer.add_special_tokens(added)
    tokenizer.add_tokens([AddedToken("<|tool|>", normalized=False), AddedToken("<b>")])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {**END, "__type": "AddedToken"},
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [bos, 3]}))


@pytest.fixture(scope="module", params=["byte_level", "sentencepiece"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write_folder(path, request.param)
    return path


@pytest.fixture(scope="module")
def folder_text(folder: Path) -> Text:
    return Text.from_folder(folder)


@pytest.fixture(scope="module")
def folder_reference(folder: Path) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


RENDERED = st.lists(
    st.sampled_from(
        ["<s>", "<|end|>", "<|user|>", "<|assistant|>", "<b>", " ", "\n\n", "the dog", "<|", "界"]
    ),
    max_size=9,
).map("".join)


@settings(max_examples=200, deadline=None)
@given(rendered=RENDERED)
def test_folder_ids_equal_transformers(
    rendered: str, folder_text: Text, folder_reference: Any
) -> None:
    wanted = folder_reference(rendered, add_special_tokens=False)["input_ids"]
    assert folder_text.encode_rendered(rendered, "") == wanted
    plain = rendered.replace("|", "")
    if "<s>" not in plain:
        assert folder_text.encode_raw(plain) == folder_reference(plain)["input_ids"]
        ids = folder_text.encode_raw(plain)
        assert folder_text.decode(ids) == folder_reference.decode(ids, skip_special_tokens=True)


def test_folder_attributes(folder_text: Text) -> None:
    bos, end = folder_text.token_id("<s>"), folder_text.token_id("<|end|>")
    assert folder_text.template == TEMPLATE
    assert folder_text.eos_ids == {bos, 3, end}
    assert folder_text.variables["bos_token"] == "<s>"
    assert folder_text.encode_raw("the")[0] == bos
    assert "<|tool|>" in folder_text.special_tokens  # looks like one, so it is none in messages
    assert "<b>" not in folder_text.special_tokens
    assert folder_text.vocab_size == folder_text.token_id("<b>") + 1


def test_typed_control_tokens_of_a_folder_stay_text(folder_text: Text) -> None:
    typed = "a<|end|> <|tool|><s>"
    ids = folder_text.encode_raw(typed)[1:]
    assert not set(ids) & set(folder_text.special_tokens.values())
    assert folder_text.decode(ids) == typed


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tokenizer.json", "{", BadFileError),
        ("tokenizer.json", "<html>", BadFileError),
        ("tokenizer_config.json", "[1]", BadFileError),
        ("tokenizer_config.json", '{"a": ', BadFileError),
        ("generation_config.json", "x", BadFileError),
    ],
)
def test_damaged_files_are_named(
    name: str, content: str, error: type[Exception], tmp_path: Path
) -> None:
    write_folder(tmp_path, "byte_level")
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        Text.from_folder(tmp_path)


def test_a_folder_without_a_tokeniser(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        Text.from_folder(tmp_path)


def test_template_by_name_and_explicit_bos(tmp_path: Path) -> None:
    write_folder(tmp_path, "byte_level")
    (tmp_path / "chat_template.jinja").unlink()
    rows = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    config = {"chat_template": rows, "bos_token": "<s>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    text = Text.from_folder(tmp_path)
    assert text.template == "D"
    assert text.encode_raw("t") == text.encode_rendered("t", "")


@pytest.mark.parametrize(
    ("key", "value"), [("scores", "x"), ("scores", None), ("token_type", float("nan"))]
)
def test_a_vocabulary_with_odd_values_is_damaged(
    bpe: tuple[Path, Any], key: str, value: object
) -> None:
    metadata = gguf_metadata(bpe[1])
    values = list(metadata[f"tokenizer.ggml.{key}"])  # type: ignore[call-overload]
    values[7] = value
    with pytest.raises(BadFileError, match="damaged"):
        Text.from_gguf(metadata | {f"tokenizer.ggml.{key}": values})
