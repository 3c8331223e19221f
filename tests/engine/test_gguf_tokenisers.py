"""Tokenisers of GGUF families: Cohere's rule against transformers' own, and Gemma's spaces."""

from __future__ import annotations

from typing import Any

import pytest

from engine.text import Text
from engine.token_stream import byte_alphabet

MERGES = [("Ġ", "a"), ("1", "2"), ("Ã", "©"), ("e", "l"), ("l", "l"), ("el", "l"), ("Ġ", "Ġ")]
SAMPLES = ["", "hello 12 a12a", "e\u0301 é ell\u0301", "  a  12\n\n 3", "🦊 東京\u3099 1\u0301"]


@pytest.fixture(scope="module")
def vocab() -> list[str]:
    return ["<BOS_TOKEN>", *sorted(byte_alphabet()), *dict.fromkeys(a + b for a, b in MERGES)]


@pytest.fixture(scope="module")
def ours(vocab: list[str]) -> Text:
    return Text.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "command-r",
            "tokenizer.ggml.tokens": vocab,
            "tokenizer.ggml.token_type": [3] + [1] * (len(vocab) - 1),
            "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.add_bos_token": True,
        }
    )


@pytest.fixture(scope="module")
def theirs(vocab: list[str]) -> Any:
    from transformers.models.cohere.tokenization_cohere import CohereTokenizer

    return CohereTokenizer(
        vocab={token: i for i, token in enumerate(vocab)},
        merges=MERGES,
        bos_token="<BOS_TOKEN>",
        eos_token="<BOS_TOKEN>",
        unk_token="<BOS_TOKEN>",
        pad_token="<BOS_TOKEN>",
        cls_token="<BOS_TOKEN>",
        sep_token="<BOS_TOKEN>",
        mask_token="<BOS_TOKEN>",
    )


@pytest.mark.parametrize("sample", SAMPLES)
def test_ids_equal_transformers(sample: str, ours: Text, theirs: Any) -> None:
    assert ours.encode_raw(sample)[1:] == theirs(sample, add_special_tokens=False)["input_ids"]
    assert ours.encode_raw(sample)[0] == 0


@pytest.mark.parametrize("sample", ["\u2581\u2581 \u2581a", "    a", " \u2581  a"])
def test_gemma_reads_a_written_mark_as_a_space(sample: str) -> None:
    """Its runs of spaces are user-defined pieces, but no piece of them may cut a run in two."""
    runs = ["\u2581" * count for count in (1, 2, 3, 4)]
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<table>", *runs[1:], runs[0], "a"]
    gemma = Text.from_gguf(
        {
            "general.architecture": "gemma3",
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [-1000.0] * len(tokens),
            "tokenizer.ggml.token_type": [3, 3, 3, 2, 4, 4, 4, 4, 1, 1],
            "tokenizer.ggml.bos_token_id": 2,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    assert [tokens[i] for i in gemma.encode_raw(sample)] == ["<bos>", runs[3], "a"]
    assert [tokens[i] for i in gemma.encode_raw("<table> a")] == ["<bos>", "<table>", runs[0], "a"]
