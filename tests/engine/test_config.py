"""Settings and sampling parameters are checked where they come in."""

from __future__ import annotations

import math

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, SamplingError
from engine.messages import SamplingParams


@pytest.mark.parametrize(
    "bad",
    [
        {"block_tokens": 0},
        {"block_tokens": 257},
        {"num_blocks": 0},
        {"chunk_tokens": 0},
        {"memory_fraction": 1.5},
        {"memory_fraction": math.nan},
        {"precision": "sloppy"},
        {"backend": "abacus"},
        {"device": "tpu"},
        {"num_threads": 100_000},
    ],
)
def test_a_bad_setting_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        EngineConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "hot"},
        {"top_p": 1.01},
        {"min_p": -1},
        {"top_k": 0.01},
        {"top_k": True},
        {"seed": -1},
        {"max_tokens": 0},
        {"stop": ("",)},
    ],
)
def test_a_bad_sampling_parameter_is_named(bad: dict[str, object]) -> None:
    with pytest.raises(SamplingError, match=next(iter(bad))):
        SamplingParams(**bad)  # type: ignore[arg-type]
