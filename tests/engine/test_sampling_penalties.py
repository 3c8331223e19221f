"""Bias, penalties and min_tokens against transformers' processors and plain arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import SamplingError
from engine.messages import SamplingParams
from engine.sampling import SampleRow, adjusted, check_bias, distribution, sample

VOCAB = 211


def random_row(seed: int, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


def random_tokens(seed: int, num: int, vocab: int = VOCAB) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (num,), generator=generator).tolist()


def row_of(
    params: SamplingParams,
    token_ids: Sequence[int] = (),
    num_prompt: int = 0,
    seed: int = 0,
    end_ids: Sequence[int] = (),
) -> SampleRow:
    return SampleRow(params, seed, len(token_ids), token_ids, num_prompt, end_ids)


# --- against transformers -----------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.01, 0.5, 0.999, 1.1, 2.0, 100.0])
@pytest.mark.parametrize("num_tokens", [1, 7, 400])
def test_repetition_penalty_is_that_of_transformers(penalty: float, num_tokens: int) -> None:
    logits = random_row(1)
    logits[:20] = 0.0
    tokens = random_tokens(2, num_tokens)
    wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([tokens]), logits[None])[0]
    for num_prompt in (0, num_tokens // 2, num_tokens):  # prompt and output count alike
        row = row_of(SamplingParams(repetition_penalty=penalty), tokens, num_prompt)
        assert torch.equal(adjusted(logits, row), wanted)


@pytest.mark.parametrize("num_new", range(5))
def test_min_tokens_is_min_new_tokens_of_transformers(num_new: int) -> None:
    logits = random_row(3)
    tokens = random_tokens(4, 6 + num_new)
    processor = MinNewTokensLengthLogitsProcessor(6, 3, [5, 77])
    wanted = processor(torch.tensor([tokens]), logits[None])[0]
    row = row_of(SamplingParams(min_tokens=3), tokens, 6, end_ids=(5, 77))
    assert torch.equal(adjusted(logits, row), wanted)
    assert bool(wanted[5] == -math.inf) == (num_new < 3)


CHAINS = [
    {"repetition_penalty": 1.3, "temperature": 0.7},
    {"repetition_penalty": 0.7, "temperature": 1.5, "top_k": 9},
    {"min_tokens": 50, "temperature": 1.0, "top_p": 0.8},
    {"repetition_penalty": 2.0, "min_tokens": 50, "temperature": 0.4, "min_p": 0.05},
    {"repetition_penalty": 1.1, "min_tokens": 50, "temperature": 2.0, "top_k": 30, "top_p": 0.9},
    {"repetition_penalty": 5.0, "temperature": 1.0, "top_k": 500, "top_p": 0.999, "min_p": 1e-4},
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_whole_chain_keeps_what_transformers_keeps(chain: dict, seed: int) -> None:
    params = SamplingParams(**chain)
    logits, tokens, end_ids = random_row(seed), random_tokens(seed + 9, 30), [3, 19]
    logits[3] = 20.0
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(params.repetition_penalty)])
    if params.min_tokens:
        processors.append(MinNewTokensLengthLogitsProcessor(10, params.min_tokens, end_ids))
    processors.append(TemperatureLogitsWarper(params.temperature))
    processors.append(TopKLogitsWarper(top_k=params.top_k or VOCAB))
    processors.append(TopPLogitsWarper(top_p=params.top_p))
    processors.append(MinPLogitsWarper(min_p=params.min_p))
    wanted = processors(torch.tensor([tokens]), logits[None].double()).softmax(-1)[0]

    row = row_of(params, tokens, 10, end_ids=end_ids)
    ids, probabilities = distribution(adjusted(logits, row), params)
    got = torch.zeros(VOCAB, dtype=torch.float64).index_put((ids,), probabilities)
    assert set(ids.tolist()) >= set(wanted.nonzero()[:, 0].tolist())
    assert set(ids[probabilities > 0].tolist()) == set(wanted.nonzero()[:, 0].tolist())
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


# --- against plain arithmetic -------------------------------------------------------------------


@pytest.mark.parametrize("presence", [-2.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("frequency", [-2.0, 0.0, 0.3, 2.0])
def test_presence_and_frequency_count_the_output_only(presence: float, frequency: float) -> None:
    logits = random_row(5, vocab=40)
    tokens = random_tokens(6, 100, vocab=30)
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    counts = Counter(tokens[60:])
    wanted = [
        float(value) - frequency * counts[i] - presence * (counts[i] > 0)
        for i, value in enumerate(logits)
    ]
    got = adjusted(logits, row_of(params, tokens, 60))
    torch.testing.assert_close(got, torch.tensor(wanted), rtol=1e-6, atol=1e-6)
    assert torch.equal(adjusted(logits, row_of(params, tokens, 100)), logits)


def test_bias_comes_before_the_penalties() -> None:
    logits = torch.tensor([1.0, -1.0, 3.0, 0.5])
    params = SamplingParams(
        logit_bias=((0, -3.0), (2, 100.0)),
        repetition_penalty=2.0,
        presence_penalty=0.25,
        frequency_penalty=0.5,
    )
    got = adjusted(logits, row_of(params, [0, 1, 0, 2, 2], 2))
    assert got.tolist() == [
        (1.0 - 3.0) * 2.0 - 0.5 - 0.25,
        -1.0 * 2.0,  # in the prompt only
        (3.0 + 100.0) / 2.0 - 2 * 0.5 - 0.25,
        0.5,
    ]


def test_a_strong_bias_forces_and_forbids() -> None:
    logits = random_row(7)[None]
    best = int(logits.argmax())
    for temperature in (0.0, 1.0):
        force = SamplingParams(temperature=temperature, logit_bias=((11, 100.0),))
        forbid = SamplingParams(temperature=temperature, logit_bias=((best, -100.0),))
        for position in range(10):
            assert sample(logits, [SampleRow(force, 1, position)]) == [11]
            assert sample(logits, [SampleRow(forbid, 1, position)]) != [best]


def test_a_bias_for_a_token_beyond_the_vocabulary_is_refused() -> None:
    params = SamplingParams(logit_bias=((VOCAB - 1, 1.0),))
    check_bias(params, VOCAB)
    with pytest.raises(SamplingError, match=rf"token {VOCAB - 1} .* 0 to {VOCAB - 2}"):
        check_bias(params, VOCAB - 1)


# --- extremes -----------------------------------------------------------------------------------


def test_end_tokens_wider_than_the_logits_are_no_matter() -> None:
    row = row_of(SamplingParams(min_tokens=1), end_ids=(2, 500))
    assert sample(torch.tensor([[0.0, 1.0, 9.0]]), [row]) == [1]


def test_ignore_eos_leaves_min_tokens_nothing_to_hold_back() -> None:
    row = row_of(SamplingParams(min_tokens=1, ignore_eos=True), end_ids=(2,))
    assert sample(torch.tensor([[0.0, 1.0, 9.0]]), [row]) == [2]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_where_only_the_end_is_possible_fails_alone(temperature: float) -> None:
    logits = torch.full((2, 9), -math.inf)
    logits[:, 4] = 1.0
    params = SamplingParams(temperature=temperature, min_tokens=2)
    held, free = sample(logits, [row_of(params, [1], 1, end_ids=(4,)), row_of(params, [1], 1)])
    assert isinstance(held, SamplingError)
    assert "min_tokens" in str(held)
    assert free == 4


PENALTIES = {
    "repetition_penalty": 1.2,
    "presence_penalty": 1.5,
    "frequency_penalty": 0.1,
    "logit_bias": ((1, -5.0),),
}


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.8])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_fail_alone_with_penalties(
    bad: float, temperature: float
) -> None:
    logits = torch.stack([random_row(8), random_row(9)])
    logits[0, 17] = bad
    row = row_of(SamplingParams(temperature=temperature, **PENALTIES), [17, 3, 17], 1)
    broken, whole = sample(logits, [row, row])
    assert isinstance(broken, SamplingError)
    assert [whole] == sample(logits[1:], [row])


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1.0, 100.0])
def test_the_only_possible_token_is_chosen_whatever_the_penalties(temperature: float) -> None:
    logits = torch.full((1, 31), -math.inf)
    logits[0, 30] = -3.0
    params = SamplingParams(
        temperature=temperature,
        repetition_penalty=100.0,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        logit_bias=((30, -100.0), (0, 100.0)),
    )
    assert sample(logits, [row_of(params, [30, 1] * 50, 3)]) == [30]


@pytest.mark.parametrize("penalty", [0.01, 100.0])
def test_penalties_do_not_overflow(penalty: float) -> None:
    logits = torch.tensor([[3.0e38, -3.0e38, 2.0e38, 1.0]])
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, repetition_penalty=penalty)
        (token,) = sample(logits, [row_of(params, [0, 1], 0)])
        assert token == (0 if penalty < 1 else 2)


# --- promises -----------------------------------------------------------------------------------


class Untouchable(Sequence):
    """A history that must not be read, not even for its length."""

    def __getitem__(self, index: object) -> int:
        raise AssertionError("the history was read")

    def __len__(self) -> int:
        raise AssertionError("the history was measured")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_without_penalties_the_history_is_not_touched(temperature: float) -> None:
    logits = random_row(10)[None]
    values = {"temperature": temperature, "min_tokens": 3, "logprobs": 2, "stop": ("x",)}
    row = SampleRow(SamplingParams(**values), 5, 9, Untouchable(), 6, Untouchable())
    assert not row.is_adjusted
    assert sample(logits, [row]) == sample(logits, [SampleRow(SamplingParams(**values), 5, 9)])
    penalised = SampleRow(SamplingParams(presence_penalty=0.1), 5, 9, Untouchable(), 6)
    with pytest.raises(AssertionError, match="history"):
        sample(logits, [penalised])


def some_rows(num: int) -> list[SampleRow]:
    kinds = [
        {"temperature": 0.9},
        {"temperature": 0.9, "repetition_penalty": 1.4},
        {"presence_penalty": 2.0},
        {"temperature": 1.1, "frequency_penalty": 0.4, "top_p": 0.9, "logprobs": 3},
        {"temperature": 0.8, "min_tokens": 90, "logit_bias": ((4, 6.0),), "top_k": 20},
    ]
    return [
        row_of(SamplingParams(**kinds[i % 5]), random_tokens(i, 8 * i + 1), 3 * i, i, (7, 8))
        for i in range(num)
    ]


def test_order_and_company_do_not_matter_and_logits_stay_as_they_are() -> None:
    logits = torch.stack([random_row(20 + i) for i in range(15)])
    kept, rows = logits.clone(), some_rows(15)
    together = sample(logits, rows)
    assert together == [sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(15)]
    order = torch.randperm(15, generator=torch.Generator().manual_seed(2)).tolist()
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]
    assert torch.equal(logits, kept)


def test_only_the_tokens_matter_not_what_kind_of_list_holds_them() -> None:
    """After preemption a row is made anew from the same tokens."""
    logits = torch.stack([random_row(40 + i) for i in range(10)])
    rows = some_rows(10)
    again = [
        SampleRow(r.params, r.seed, r.position, tuple(r.token_ids), r.num_prompt, set(r.end_ids))
        for r in rows
    ]
    assert sample(logits, again) == sample(logits, rows)


def chi_square_limit(freedom: int) -> float:
    """Its 99.99 % point, by the approximation of Wilson and Hilferty."""
    return freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 8}, {"top_p": 0.8}, {"min_p": 0.1}, {"min_tokens": 9000}], ids=str
)
def test_draws_with_penalties_follow_the_distribution(filters: dict) -> None:
    params = SamplingParams(
        temperature=1.3,
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=-0.2,
        logit_bias=((2, 3.0),),
        **filters,
    )
    logits, tokens, num = random_row(11, vocab=19, spread=1.5), random_tokens(12, 14, 19), 4000
    ids, probabilities = distribution(
        adjusted(logits, row_of(params, tokens, 4, end_ids=(6,))), params
    )
    rows = [SampleRow(params, 1234, i, tokens, 4, (6,)) for i in range(4, num + 4)]
    counts = Counter(sample(logits.expand(num, -1), rows))
    possible = [(i, p * num) for i, p in zip(ids.tolist(), probabilities.tolist(), strict=True)]
    assert set(counts) <= {i for i, expected in possible if expected > 0}
    likely = [(i, expected) for i, expected in possible if expected >= 5]
    statistic = sum((counts[i] - expected) ** 2 / expected for i, expected in likely)
    assert len(likely) > 3
    assert statistic < chi_square_limit(len(likely) - 1)
