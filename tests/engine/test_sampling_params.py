"""Sampling parameters are checked where they come in: type and range, one sentence each."""

from __future__ import annotations

import math

import pytest

from engine.errors import SamplingError
from engine.messages import SamplingParams


@pytest.mark.parametrize(
    "bad",
    [
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"repetition_penalty": 100.5},
        {"repetition_penalty": math.nan},
        {"repetition_penalty": True},
        {"presence_penalty": 2.01},
        {"presence_penalty": "much"},
        {"frequency_penalty": -2.01},
        {"frequency_penalty": math.inf},
        {"frequency_penalty": 10**400},
        {"min_p": math.nan},
        {"min_tokens": -1},
        {"min_tokens": 1.0},
        {"min_tokens": 11, "max_tokens": 10},
        {"logprobs": -1},
        {"logprobs": 21},
        {"logprobs": True},
        {"ignore_eos": 1},
        {"stop": "END"},
        {"stop": ("a", 3)},
        {"stop": None},
        {"logit_bias": {1: 2.0}},
        {"logit_bias": ((1, 2.0, 3.0),)},
        {"logit_bias": (1, 2.0)},
        {"logit_bias": ((-1, 2.0),)},
        {"logit_bias": (("1", 2.0),)},
        {"logit_bias": ((True, 2.0),)},
        {"logit_bias": ((1, 100.1),)},
        {"logit_bias": ((1, math.nan),)},
        {"logit_bias": ((1, 1.0), (1, 2.0))},
        {"temperature": "x" * 10_000},
    ],
    ids=lambda bad: repr(bad)[:40],
)
def test_a_bad_parameter_is_named_in_one_sentence(bad: dict[str, object]) -> None:
    with pytest.raises(SamplingError, match=next(iter(bad))) as caught:
        SamplingParams(**bad)  # type: ignore[arg-type]
    sentence = str(caught.value)
    assert len(sentence) < 150
    assert sentence.isprintable()
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    "good",
    [
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"presence_penalty": -2, "frequency_penalty": 2.0},
        {"min_tokens": 10, "max_tokens": 10},
        {"min_tokens": 10**6},
        {"logprobs": 0},
        {"logprobs": 20},
        {"logit_bias": ((0, -100), (1, 100.0))},
    ],
    ids=str,
)
def test_the_limits_themselves_are_allowed(good: dict[str, object]) -> None:
    assert hash(SamplingParams(**good)) == hash(SamplingParams(**good))  # type: ignore[arg-type]
