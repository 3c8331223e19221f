"""The gate before all speed: fast precision says what exact precision says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "quality.py"


@pytest.fixture(scope="module")
def quality():
    spec = importlib.util.spec_from_file_location("quality_of_text", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_fast_says_what_exact_says(quality, starter_model):
    """A context of 1,000 as one chunk, and one of 250 as decode rows; all of it is a command."""
    model = quality.load(starter_model, "exact")
    texts = [quality.contexts(model)[0], quality.contexts(model)[3][:250]]
    exact = [quality.read(model, ids, 1000) for ids in texts]
    fast = quality.load(starter_model, "fast")
    chunks = (1000, 1)
    said = (quality.read(fast, ids, n) for ids, n in zip(texts, chunks, strict=True))
    found = quality.compare(texts, exact, said)
    assert found["mean_kl"] <= quality.MOST_KL, found
    assert found["top1"] >= quality.LEAST_TOP1 - 0.01, found  # of a third of the text: +- 0.5 %
    assert abs(found["perplexity_change"]) <= 2 * quality.MOST_PERPLEXITY, found
