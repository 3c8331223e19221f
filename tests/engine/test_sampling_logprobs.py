"""Logprobs are the model's own, whatever was done to choose the token."""

from __future__ import annotations

import math

import pytest
import torch

from engine.errors import SamplingError
from engine.messages import Logprobs, SamplingParams, TokenLogprob
from engine.sampling import SampleRow, sample, top_logprobs


def some_logits(num_rows: int, vocab: int = 307, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4


def one(logits: torch.Tensor, token: int, num: int, **params: object) -> Logprobs:
    row = SampleRow(SamplingParams(logprobs=num, **params), 0, 0)
    ((said,),) = top_logprobs(logits[None], [row], [token])
    return said


@pytest.mark.parametrize("num", [0, 1, 5, 20])
def test_they_are_the_log_of_the_softmax(num: int) -> None:
    for row in some_logits(3):
        wanted = row.double().log_softmax(-1)
        for token in (0, int(row.argmin()), int(row.argmax())):
            said = one(row, token, num)
            assert said.chosen.token_id == token
            assert said.chosen.logprob == pytest.approx(float(wanted[token]), abs=1e-9)
            assert [top.token_id for top in said.top] == wanted.topk(num).indices.tolist()
            assert [top.logprob for top in said.top] == pytest.approx(wanted.topk(num).values)


def test_temperature_filters_and_penalties_change_nothing() -> None:
    logits = some_logits(1)
    plain = SamplingParams(logprobs=4)
    bent = SamplingParams(
        temperature=3.0, top_k=2, top_p=0.5, min_p=0.3, repetition_penalty=2.0,
        presence_penalty=1.0, frequency_penalty=1.0, logit_bias=((8, 50.0),), min_tokens=9,
        logprobs=4,
    )  # fmt: skip
    rows = [SampleRow(params, 1, 5, [3, 9, 9, 3, 1], 2, (3,)) for params in (plain, bent)]
    both = torch.cat([logits, logits])
    tokens = sample(both, rows)
    assert isinstance(tokens[1], int)
    assert tokens[0] != tokens[1]
    first, second = top_logprobs(both, rows, [tokens[1]] * 2)
    assert first == second


def test_only_who_asks_gets_them_and_who_failed_does_not() -> None:
    logits = some_logits(4)
    logits[2, 5] = math.nan
    asked = [None, 0, 2, 2]
    rows = [SampleRow(SamplingParams(logprobs=num), 0, i) for i, num in enumerate(asked)]
    tokens = sample(logits, rows)
    assert isinstance(tokens[2], SamplingError)
    assert [len(said) for said in top_logprobs(logits, rows, tokens)] == [0, 1, 0, 1]


def test_a_row_does_not_depend_on_its_company() -> None:
    logits = some_logits(9, vocab=5003, seed=4)
    rows = [SampleRow(SamplingParams(logprobs=i, temperature=0.9), i, i) for i in range(9)]
    tokens = sample(logits, rows)
    together = top_logprobs(logits, rows, tokens)
    alone = [
        top_logprobs(logits[i : i + 1], rows[i : i + 1], tokens[i : i + 1])[0] for i in range(9)
    ]
    assert together == alone


def test_equal_ones_come_in_the_order_of_their_ids() -> None:
    said = one(torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0, 0.0]), 5, 3)
    assert [top.token_id for top in said.top] == [1, 4, 0]


def test_impossible_tokens_are_no_alternatives() -> None:
    logits = torch.full((40,), -math.inf)
    logits[[7, 30]] = torch.tensor([0.0, 1.0])
    said = one(logits, 7, 20)
    assert [top.token_id for top in said.top] == [30, 7]
    assert sum(math.exp(top.logprob) for top in said.top) == pytest.approx(1)


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    assert len(one(torch.tensor([0.0, 3.0e38, -3.0e38]), 1, 20).top) == 3


def test_the_bytes_of_a_token_go_along() -> None:
    row = SampleRow(SamplingParams(logprobs=1), 0, 0)
    logits = torch.tensor([[0.0, 1.0]])
    ((said,),) = top_logprobs(logits, [row], [0], lambda i: bytes([65 + i]))
    assert (said.chosen.data, said.top[0].data) == (b"A", b"B")
    assert TokenLogprob(1, 0.0).data == b""
