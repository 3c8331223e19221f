"""Sampling against transformers' own logits processors, and its promises about rows and seeds."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.errors import SamplingError
from engine.messages import SamplingParams
from engine.sampling import SampleRow, distribution, philox4x32, sample, uniform


def some_logits(num_rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab, generator=generator) * spread


def reference_probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """[vocab] as transformers' generate would sample from."""
    warpers = [TemperatureLogitsWarper(params.temperature)]
    if params.top_k:
        warpers.append(TopKLogitsWarper(top_k=params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p=params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(min_p=params.min_p))
    scores = logits[None].double()
    for warper in warpers:
        scores = warper(None, scores)
    return scores.softmax(dim=-1)[0]


FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 7, "top_p": 0.8, "min_p": 0.1},
    {"top_k": 50, "top_p": 0.95},
    {"top_p": 0.999, "min_p": 1e-7},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_keeps_what_transformers_keeps(temperature: float, filters: dict) -> None:
    params = SamplingParams(temperature=temperature, **filters)
    for row in some_logits(4, 997):
        wanted = reference_probabilities(row, params)
        ids, probabilities = distribution(row, params)
        got = torch.zeros(997, dtype=torch.float64).index_put((ids,), probabilities)
        assert set(ids.tolist()) == set(wanted.nonzero()[:, 0].tolist())
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)
        assert all(a >= b for a, b in pairwise(probabilities.tolist()))


def test_a_tie_at_the_last_place_keeps_both() -> None:
    row = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    ids, _ = distribution(row, SamplingParams(temperature=1.0, top_k=2))
    assert ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "filters", [{}, {"top_k": 6}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.9}]
)
@pytest.mark.parametrize("spread", [0.01, 2.0])
def test_draws_follow_the_distribution(filters: dict, spread: float) -> None:
    """Chi-square over 4,000 positions of one seed; the bound is the 99.99 % point, roughly."""
    params = SamplingParams(temperature=1.0, **filters)
    row = some_logits(1, 23, spread=spread, seed=5)[0]
    ids, probabilities = distribution(row, params)
    num = 4000
    drawn = sample(row.expand(num, -1), [SampleRow(params, 42, i) for i in range(num)])
    assert set(drawn) <= set(ids.tolist())
    expected = probabilities * num
    counts = torch.tensor([drawn.count(i) for i in ids.tolist()], dtype=torch.float64)
    likely = expected >= 5
    statistic = float((((counts - expected) ** 2) / expected)[likely].sum())
    freedom = int(likely.sum())
    assert statistic < freedom + 4.5 * (2 * freedom) ** 0.5 + 6


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("spread", [0.001, 3.0, 8.0])
def test_head_of_the_candidates_decides_as_all_of_them_do(filters: dict, spread: float) -> None:
    params = SamplingParams(temperature=0.9, **filters)
    logits = some_logits(6, 5003, spread=spread, seed=3)
    rows = [SampleRow(params, seed, 17) for seed in range(6)]
    for row, token, what in zip(logits, sample(logits, rows), rows, strict=True):
        ids, probabilities = distribution(row, params)
        cumulative = probabilities.cumsum(0)
        place = ids.tolist().index(token)
        u = uniform(what.seed, what.position)
        low = float(cumulative[place - 1]) if place else 0.0
        assert low - 1e-5 <= u <= float(cumulative[place]) + 1e-5


def test_a_row_does_not_depend_on_its_company() -> None:
    params = [
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.2, top_p=0.9),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=20, min_p=0.02),
    ]
    logits = some_logits(12, 4099)
    rows = [SampleRow(params[i % 4], seed=100 + i, position=3 * i) for i in range(12)]
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [rows[i]])[0] for i in range(12)]
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).tolist()
    mixed = sample(logits[order], [rows[i] for i in order])
    assert together == alone
    assert mixed == [together[i] for i in order]


def test_seed_and_position_both_matter() -> None:
    logits = torch.zeros(1, 1 << 14)
    params = SamplingParams(temperature=1.0)
    places = [(1, 0), (1, 1), (2, 0), (1 << 40, 0), (1, 1 << 33)]
    drawn = [sample(logits, [SampleRow(params, *place)])[0] for place in places]
    assert len(set(drawn)) == len(places)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9.9e-6, 1e-5, 1e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = some_logits(3, 501, spread=20.0)
    rows = [SampleRow(SamplingParams(temperature=temperature), 7, i) for i in range(3)]
    assert sample(logits, rows) == logits.argmax(-1).tolist()


def test_huge_values_do_not_overflow() -> None:
    logits = torch.tensor([[3.0e38, -3.0e38, 0.0], [-3.0e38, -3.0e38, -3.0e38]])
    rows = [SampleRow(SamplingParams(temperature=t), 1, 1) for t in (2e-5, 100.0)]
    first, second = sample(logits, rows)
    assert first == 0
    assert second in (0, 1, 2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_no_number_fails_alone(bad: float, temperature: float) -> None:
    logits = some_logits(3, 50)
    logits[1, 11] = bad
    rows = [SampleRow(SamplingParams(temperature=temperature), 5, 2)] * 3
    first, second, third = sample(logits, rows)
    assert isinstance(second, SamplingError)
    assert [first, third] == sample(logits[[0, 2]], rows[:2])


def test_a_row_without_any_possible_token_fails() -> None:
    (only,) = sample(torch.full((1, 9), -torch.inf), [SampleRow(SamplingParams(), 0, 0)])
    assert isinstance(only, SamplingError)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 31), -torch.inf)
    logits[0, [3, 30]] = 0.0
    params = SamplingParams(temperature=5.0, top_k=10)
    drawn = {sample(logits, [SampleRow(params, 9, i)])[0] for i in range(50)}
    assert drawn == {3, 30}


def test_top_k_above_the_vocabulary_is_no_limit() -> None:
    logits = some_logits(1, 13)
    for position in range(20):
        with_k = [SampleRow(SamplingParams(temperature=1.0, top_k=14), 3, position)]
        without = [SampleRow(SamplingParams(temperature=1.0), 3, position)]
        assert sample(logits, with_k) == sample(logits, without)


def test_rows_and_logits_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows"):
        sample(torch.zeros(3, 5), [SampleRow(SamplingParams(), 0, 0)] * 2)
    assert sample(torch.zeros(0, 5), []) == []


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # the known answers that the authors of Philox publish
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple, key: tuple, words: tuple) -> None:
    assert philox4x32(counter, key) == words


def test_uniform_numbers_are_even() -> None:
    numbers = [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert all(0.0 <= u < 1.0 for u in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.02
    tenths = [sum(int(u * 10) == i for u in numbers) for i in range(10)]
    assert max(abs(count - 200) for count in tenths) < 60
