"""Every kind of tokeniser: text in, ids, text out, and the same text when it comes token by token.

Emoji with joiners, CJK, Thai, combining marks, bytes that no piece has, and leading spaces.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.text import Text

EMOJI = ("👨\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "🇩🇪🇯🇵", "👍🏽", "1\ufe0f\u20e3", "🧿")
CJK = ("東京", "天气很好\uff0c", "서울", "\U00020000", "\u3000")
OTHERS = ("น้ำใจ", "สวัสดี", "ก\u0e49\u0e33", "हिन्दी", "עִבְרִית", "e\u0301\u0323", "a\u0308", "\u0301")
SPACES = (" ", "  ", "   a", "\n", "\n\n ", "\t", "the", " the", "\u00a0", "\u2028")
ODD = ("\x00", "\x7f", "ﬁ", "½", "\ufffd", "\ufeff", "<0x41>", "\u2581", "</s>", "<s>")
SNIPPETS = (*EMOJI, *CJK, *OTHERS, *SPACES, *ODD)
TEXTS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=5)), max_size=12).map(
    "".join
)
LINES = ["the dog and the fox 東京 is", " e\u0301 สวัสดี", "👍🏽 yes 👨\u200d👩", "a  b   c"] * 30


def trained(kind: str, **more: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, model_type=kind, vocab_size=330,
        character_coverage=0.98, hard_vocab_limit=False, byte_fallback=True, minloglevel=2,
        normalization_rule_name="identity", remove_extra_whitespaces=False, **more,
    )  # fmt: skip
    return model.getvalue()


def from_sentencepiece(tmp: Path, kind: str, **more: Any) -> Text:
    (tmp / "tokenizer.model").write_bytes(trained(kind, **more))
    return Text.from_folder(tmp)


def from_gguf_scores(tmp: Path, prefix: bool) -> Text:
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained("bpe"))
    ids = range(processor.get_piece_size())
    return Text.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
            "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
            "tokenizer.ggml.token_type": [
                2 if processor.is_unknown(i) else 3 if processor.is_control(i)
                else 6 if processor.is_byte(i) else 1 for i in ids
            ],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_space_prefix": prefix,
        }
    )  # fmt: skip


def whole_alphabet() -> dict[str, int]:
    return {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


def from_gguf_bytes(tmp: Path) -> Text:
    tokens = [*whole_alphabet(), "th", "\u0120th", "\u00e6\u013f", "<s>", "</s>"]
    return Text.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
            "tokenizer.ggml.merges": ["t h", "\u0120 th", "\u00e6 \u013f"],
        }
    )


def from_json_bytes(tmp: Path) -> Text:
    vocab = whole_alphabet()
    vocab |= {"th": len(vocab), "\u0120th": len(vocab) + 1}
    tokenizer = Tokenizer(models.BPE(vocab, [("t", "h"), ("\u0120", "th")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp / "tokenizer.json"))
    return Text.from_folder(tmp)


def from_json_metaspace(tmp: Path) -> Text:
    pieces = [*(f"<0x{i:02X}>" for i in range(256)), "\u2581", "t", "h", "th", "\u2581th", "東"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("t", "h"), ("\u2581", "th")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp / "tokenizer.json"))
    return Text.from_folder(tmp)


KINDS: dict[str, Callable[[Path], Text]] = {
    "tokenizer.model bpe": lambda tmp: from_sentencepiece(tmp, "bpe"),
    "tokenizer.model bpe, no first space": lambda tmp: from_sentencepiece(
        tmp, "bpe", add_dummy_prefix=False
    ),
    "tokenizer.model unigram": lambda tmp: from_sentencepiece(tmp, "unigram"),
    "GGUF with scores": lambda tmp: from_gguf_scores(tmp, prefix=True),
    "GGUF with scores, no first space": lambda tmp: from_gguf_scores(tmp, prefix=False),
    "GGUF of bytes": from_gguf_bytes,
    "tokenizer.json of bytes": from_json_bytes,
    "tokenizer.json of pieces": from_json_metaspace,
}


@pytest.fixture(scope="module", params=KINDS)
def text(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Text:
    return KINDS[request.param](tmp_path_factory.mktemp("kind"))


def check_stream(text: Text, ids: list[int]) -> str:
    """The joined stream is the decode of all ids; each piece is final, and as early as can be."""
    stream = text.stream()
    shown = ""
    whole = text.decode(ids)
    for number, index in enumerate(ids, 1):
        shown += stream.push(index)
        assert whole.startswith(shown)
        # Held back is at most the beginning of one letter: three bytes.
        held = text.decode(ids[:number])[len(shown) :]
        assert held in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)
    shown += stream.finish()
    assert shown.encode() == whole.encode()
    return whole


@settings(max_examples=150, deadline=None)
@given(sample=TEXTS)
def test_text_comes_back_whole_and_token_by_token(sample: str, text: Text) -> None:
    ids = text.encode_raw(sample)
    # SentencePiece writes a space as U+2581, so it cannot tell the two apart.
    wanted = [sample, sample.replace("\u2581", " ")]
    if text.encode_raw(" x") == text.encode_raw("x"):  # files that say so
        wanted.append(wanted[1].removeprefix(" "))
    assert check_stream(text, ids) in wanted


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_come_token_by_token_as_they_come_whole(data: st.DataObject, text: Text) -> None:
    ids = data.draw(st.lists(st.integers(-1, text.vocab_size + 1), max_size=40))
    check_stream(text, ids)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(TEXTS, max_size=4))
def test_a_reply_after_a_prompt_keeps_its_first_space(parts: list[str], text: Text) -> None:
    """Ids of a rendered prompt, cut anywhere, stream as they decode."""
    ids = text.encode_rendered("</s>".join(parts), "")
    for cut in {0, len(ids) // 2, len(ids)}:
        check_stream(text, ids[cut:])


@settings(max_examples=150, deadline=None)
@given(sample=TEXTS.filter(bool), data=st.data())
def test_stop_strings_hold_back_exactly_the_longest_tail(
    sample: str, data: st.DataObject, text: Text
) -> None:
    """Stop strings cut out of the text itself, across tokens and inside characters' bytes."""
    ids = text.encode_raw(sample)
    whole = text.decode(ids)
    begin = data.draw(st.integers(0, len(whole)))
    stop = whole[begin : begin + data.draw(st.integers(1, 6))] or "\x01"
    other = data.draw(st.sampled_from(["zz", "\u0301x", "   ", "\n\n\n"]))
    stream, plain = text.stream((stop, other)), text.stream()
    shown, seen = "", ""
    for index in ids:
        shown += stream.push(index)
        seen += plain.push(index)
        if stream.stopped:
            break
        tails = range(min(len(seen), 6), 0, -1)
        hope = next((n for n in tails if (stop[:n], other[:n]).count(seen[-n:]) > 0), 0)
        assert shown == seen[: len(seen) - hope]
    shown += stream.finish()
    ends = [at + len(one) for one in (stop, other) if (at := whole.find(one)) >= 0]
    if ends:
        end = min(ends)
        longest = max(len(one) for one in (stop, other) if whole[:end].endswith(one))
        assert shown == whole[: end - longest]
    else:
        assert shown == whole
