"""Sampling in the whole engine: penalties after a pause, min_tokens, stop strings, logprobs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.headless import Headless, Outcome
from engine.messages import SamplingParams, StepEvents, Submit, TextDelta
from engine.token_stream import Pieces, TokenStream

PROMPTS = ("Once upon a time", "The three birds are")
END_ID = 2  # <|im_end|> of the starter model


@pytest.fixture(scope="module")
def engine(starter_model: Path) -> Iterator[Headless]:
    """A pool of 6 blocks (48 tokens): two replies of 28 tokens do not fit at once."""
    config = EngineConfig(num_blocks=6, block_tokens=8, precision="exact")
    with Headless(config, starter_model) as running:
        yield running


def ask(engine: Headless, prompt: str = PROMPTS[0], **params: object) -> Submit:
    values = {"max_tokens": 12, **params}
    sampling = SamplingParams(**values)  # type: ignore[arg-type]
    return Submit(engine.client.next_request_id(), sampling, prompt=prompt)


def answers(engine: Headless, *requests: dict[str, object]) -> list[Outcome]:
    return engine.run([ask(engine, **params) for params in requests]).outcomes  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain(engine: Headless) -> Outcome:
    """Twelve tokens of the first prompt, chosen greedily."""
    return answers(engine, {})[0]


def test_a_pause_changes_nothing_for_penalties_and_logprobs(engine: Headless) -> None:
    common = {"max_tokens": 28, "ignore_eos": True, "logprobs": 2, "temperature": 0.8}
    requests: list[dict[str, object]] = [
        {"prompt": PROMPTS[0], "seed": 3, "repetition_penalty": 1.3, **common},
        {"prompt": PROMPTS[1], "seed": 5, "presence_penalty": 1.0, "frequency_penalty": 0.2}
        | common,
    ]
    crowded = answers(engine, *requests)[1]
    (alone,) = answers(engine, requests[1])
    assert crowded.usage is not None
    assert crowded.usage.preemptions > 0
    assert crowded.token_ids == alone.token_ids
    for one, other in zip(crowded.logprobs, alone.logprobs, strict=True):
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-3)


def test_penalties_count_what_was_written(engine: Headless) -> None:
    prompt = "one one one one one one one one"
    strict: dict[str, object] = {"presence_penalty": 2.0, "frequency_penalty": 2.0}
    strict["repetition_penalty"] = 100.0
    free, varied = answers(engine, {"prompt": prompt}, {"prompt": prompt, **strict})
    assert max(Counter(free.token_ids).values()) > 3
    assert max(Counter(varied.token_ids).values()) == 1


def test_min_tokens_holds_the_end_back(engine: Headless, plain: Outcome) -> None:
    forced: dict[str, object] = {"logit_bias": ((END_ID, 100.0),)}
    at_once, later, never = answers(
        engine, forced, {**forced, "min_tokens": 3}, {**forced, "min_tokens": 5, "max_tokens": 5}
    )
    assert (at_once.token_ids, at_once.finish_reason) == ([END_ID], "stop")
    assert (later.token_ids, later.finish_reason) == ([*plain.token_ids[:3], END_ID], "stop")
    assert (never.token_ids, never.finish_reason) == (plain.token_ids[:5], "length")


def test_min_tokens_holds_stop_strings_back(engine: Headless, plain: Outcome) -> None:
    early, late = plain.text[2:5], plain.text[-6:]
    cut, held, until = answers(
        engine,
        {"stop": (early,)},
        {"stop": (early, late), "min_tokens": 12},
        {"stop": (early, late), "min_tokens": 8},
    )
    assert (cut.text, cut.finish_reason) == (plain.text[:2], "stop")
    assert (held.text, held.finish_reason) == (plain.text, "length")
    assert held.token_ids == plain.token_ids
    assert (until.text, until.finish_reason) == (plain.text[:-6], "stop")


def test_bias_forces_a_token_and_one_beyond_the_vocabulary_is_refused(engine: Headless) -> None:
    last, beyond = (49_151, 100.0), (49_152, 1.0)
    forced, refused = answers(
        engine,
        {"logit_bias": (last,), "max_tokens": 2},
        {"logit_bias": (last, beyond), "max_tokens": 1},
    )
    assert forced.token_ids == [49_151] * 2
    assert "token 49152" in refused.error
    assert "49151" in refused.error


def test_logprobs_come_with_their_token_and_only_when_asked(
    engine: Headless, plain: Outcome
) -> None:
    deltas: list[TextDelta] = []

    def watch(step: StepEvents) -> None:
        deltas.extend(event for event in step.events if isinstance(event, TextDelta))

    engine.client.subscribe(watch)
    asked, other = answers(engine, {"logprobs": 5}, {})
    assert asked.token_ids == other.token_ids == plain.token_ids
    assert other.logprobs == []
    assert [one.chosen.token_id for one in asked.logprobs] == asked.token_ids
    for one in asked.logprobs:
        assert one.chosen == one.top[0], "greedy takes the most likely"
        values = [top.logprob for top in one.top]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-9
    assert b"".join(one.chosen.data for one in asked.logprobs).decode() == asked.text
    assert {len(delta.logprobs) for delta in deltas} == {0, 1}


# --- stop strings that may not stop yet -----------------------------------------------------------

LETTERS = Pieces("abé".__getitem__, "sentencepiece", hidden=())


def plain_answer(text: str, stops: list[str], num_held: int) -> str:
    """The same by looking at every end: the first stop string that ends beyond `num_held`."""
    for end in range(num_held + 1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)]
    return text


@given(
    tokens=st.lists(st.integers(0, 2), max_size=30),
    stops=st.lists(st.text("abé", min_size=1, max_size=5), max_size=3),
    num_held=st.integers(0, 20),
)
def test_held_back_stop_strings_are_text_like_any_other(
    tokens: list[int], stops: list[str], num_held: int
) -> None:
    stream = TokenStream(LETTERS, stops)
    said = ""
    for number, token in enumerate(tokens):
        piece = stream.push(token, may_stop=number >= num_held)
        assert not (number < num_held and stream.stopped)
        said += piece
        if stream.stopped:
            break
    said += stream.finish()
    whole = "".join("abé"[token] for token in tokens)
    assert said == plain_answer(whole, stops, num_held)


def test_a_stop_string_that_could_not_stop_is_shown_at_once() -> None:
    stream = TokenStream(LETTERS, ["ab"])
    assert [stream.push(token, may_stop=False) for token in (0, 1, 0, 0)] == ["", "ab", "", "a"]
    assert stream.push(1) == ""
    assert stream.stopped
