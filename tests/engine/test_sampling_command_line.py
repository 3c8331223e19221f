"""`python -m engine generate` hands every sampling option on, and says what is wrong with one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.__main__ import main


@pytest.fixture
def generate(data_folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """Runs `generate` on the starter model in this process; returns its first request."""

    def run(*options: str) -> dict:
        common = ["--model", "starter", "--data-dir", str(data_folder), "--json"]
        prompt = ["--prompt", "Count from one to ten.", "--num-blocks", "32", "--threads", "1"]
        assert main(["generate", *common, *prompt, *options]) == 0
        return json.loads(capsys.readouterr().out)["requests"][0]

    return run


def test_options_of_sampling_arrive(generate: Callable[..., dict]) -> None:
    """One run that only comes out like this if every option does its part."""
    plain = generate("--max-tokens", "12")
    assert "logprobs" not in plain
    early, late = plain["text"][:4], plain["text"][-5:]
    cut = generate("--max-tokens", "12", "--min-tokens", "8", "--stop", early, "--stop", late)
    assert cut["text"] == plain["text"][:-5]
    assert cut["finish_reason"] == "stop"

    narrow = generate("--max-tokens", "12", "--temperature", "2", "--min-p", "1.0")
    assert narrow["token_ids"] == plain["token_ids"]  # only the best passes min-p of 1

    options = ["--repetition-penalty", "1.5", "--presence-penalty", "1", "--frequency-penalty", "1"]
    varied = generate("--max-tokens", "12", *options)
    assert len(set(varied["token_ids"])) > len(set(plain["token_ids"]))


def test_bias_and_logprobs_in_the_report(generate: Callable[..., dict]) -> None:
    options = ["--logit-bias", "1000=100", "--logit-bias", "1001=-100", "--logprobs", "2"]
    request = generate("--max-tokens", "3", *options)
    assert request["token_ids"] == [1000] * 3
    assert len(request["logprobs"]) == 3
    for one in request["logprobs"]:
        assert set(one) == {"token_id", "text", "logprob", "top"}
        assert one["token_id"] == 1000
        assert one["text"] in request["text"]
        assert [set(top) for top in one["top"]] == [{"token_id", "text", "logprob"}] * 2
        assert one["top"][0]["logprob"] >= max(one["top"][1]["logprob"], one["logprob"])
    assert all(
        one["top"] == [] for one in generate("--max-tokens", "2", "--logprobs", "0")["logprobs"]
    )


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--presence-penalty", "3"], "presence_penalty is 3.0"),
        (["--frequency-penalty", "nan"], "frequency_penalty is nan"),
        (["--min-p", "1.5"], "min_p is 1.5"),
        (["--min-tokens", "300"], "min_tokens is 300"),
        (["--logprobs", "21"], "logprobs is 21"),
        (["--stop", ""], "stop strings"),
        (["--logit-bias", "7"], "'7' is not ID=VALUE"),
        (["--logit-bias", "7=x"], "'7=x' is not ID=VALUE"),
        (["--logit-bias", "7=101"], "logit_bias of token 7 is 101"),
        (["--logit-bias", "7=1", "--logit-bias", "7=2"], "logit_bias names a token twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_option_is_one_sentence(
    options: list[str], names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", "starter", "--prompt", "a", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert names in err
    assert len(err.strip().splitlines()) == 1
