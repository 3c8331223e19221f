"""`python -m engine`: one JSON line last on stdout, every key, one sentence for bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.__main__ import main
from engine.plan import STEP_PARTS

ROOT = Path(__file__).resolve().parents[2]
ENGINE_KEYS = {"device", "backend", "path", "precision", "storage", "weights_bytes", "version"}


@pytest.fixture
def call(data_folder):
    """Runs a command on the starter model; returns its report."""

    def run(*arguments: str) -> dict:
        done = subprocess.run(
            [sys.executable, "-m", "engine", *arguments, "--model", "starter",
             "--data-dir", str(data_folder), "--json"],
            cwd=ROOT, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == 1
        return json.loads(lines[0])

    return run


def test_generate_answers_prompts_then_chats_together(call, tmp_path):
    chats = tmp_path / "chats.json"
    chats.write_text(
        json.dumps(
            [
                [
                    {"role": "system", "content": "You answer briefly."},
                    {"role": "user", "content": "Name a colour."},
                    {"role": "assistant", "content": "Blue."},
                    {"role": "user", "content": "Another one?"},
                ]
            ]
        )
    )
    report = call(
        "generate", "--prompt", "Say hello.", "--prompt", "Say hello.", "--messages", str(chats),
        "--max-tokens", "12", "--num-blocks", "64", "--precision", "exact",
    )  # fmt: skip
    requests, pool = report["requests"], report["pool"]
    assert [one["id"] for one in requests] == [0, 1, 2]
    for one in requests:
        assert set(one) == {
            "id", "text", "token_ids", "finish_reason", "prompt_tokens", "cached_tokens",
            "ttft_ms", "decode_tokens_per_s", "preemptions", "prefix_ends_at", "waste_ratio",
        }  # fmt: skip
        assert one["finish_reason"] in ("stop", "length")
        assert 1 <= len(one["token_ids"]) <= 12
        assert one["text"]
    assert requests[0]["token_ids"] == requests[1]["token_ids"]
    assert set(pool) == {
        "num_blocks", "block_tokens", "block_bytes", "peak_used_blocks", "peak_waste_ratio",
        "mean_waste_ratio", "preemptions", "free_blocks_after", "cached_blocks_after",
        "copied_blocks",
    }  # fmt: skip
    assert pool["free_blocks_after"] + pool["cached_blocks_after"] == pool["num_blocks"] == 64
    assert 0 < pool["peak_used_blocks"] <= 64
    assert set(report["engine"]) >= ENGINE_KEYS


def test_a_pool_too_small_for_all_at_once_still_answers_all(call):
    prompts = [word for n in range(6) for word in ("--prompt", f"Tell me about the number {n}.")]
    report = call("generate", *prompts, "--max-tokens", "40", "--num-blocks", "8")
    assert {one["finish_reason"] for one in report["requests"]} <= {"stop", "length"}
    assert report["pool"]["peak_used_blocks"] <= 8


def test_several_replies_to_one_prompt(call):
    report = call(
        "generate", "--prompt", "Name a colour.", "--replies", "3", "--max-tokens", "6",
        "--temperature", "1", "--seed", "5", "--num-blocks", "32",
    )  # fmt: skip
    requests = report["requests"]
    assert [one["id"] for one in requests] == [0, 1, 2]
    assert [one["cached_tokens"] for one in requests[1:]] == [requests[0]["prompt_tokens"] - 1] * 2
    assert len({tuple(one["token_ids"]) for one in requests}) > 1
    assert report["pool"]["copied_blocks"] >= 1


def test_one_prompt_that_does_not_fit_leaves_the_others_alone(call):
    report = call(
        "generate", "--prompt", "word " * 3000, "--prompt", "Hello.", "--max-tokens", "5",
        "--num-blocks", "32",
    )  # fmt: skip
    too_long, fine = report["requests"]
    assert too_long["finish_reason"] == "error"
    assert "tokens" in too_long["error"]
    assert fine["finish_reason"] in ("stop", "length")
    assert fine["token_ids"]


def test_bench_measures_what_it_says(call, tmp_path):
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(["Once upon a time", "The sea is", "never taken"]))
    report = call(
        "bench", "--sessions", "2", "--prompts-file", str(prompts), "--max-tokens", "20",
        "--ignore-eos", "--profile",
    )  # fmt: skip
    profile = report.pop("profile")
    assert profile.pop("chats") == 2
    assert profile.pop("steps") > 10
    assert 0 < profile.pop("share_without_model") < 0.9
    assert set(profile) == {f"{part}_ms" for part in STEP_PARTS if part != "prompts"}
    assert sum(profile.values()) == pytest.approx(report["decode_ms_per_step"], rel=0.7)
    assert set(report) == {
        "sessions", "tokens", "seconds", "aggregate_tokens_per_s", "decode_ms_per_step",
        "ttft_ms_p50", "prompt_tokens_per_s", "mean_waste_ratio", "peak_rss_bytes", "engine",
    }  # fmt: skip
    assert (report["sessions"], report["tokens"]) == (2, 40)
    assert report["aggregate_tokens_per_s"] == pytest.approx(40 / report["seconds"], rel=0.01)
    assert 0 < report["decode_ms_per_step"] * 19 < report["seconds"] * 1500
    assert report["peak_rss_bytes"] > 100 * 2**20


def test_compare_slab_reports_three_ways_over_one_pool(call):
    report = call("compare-slab", "--slab-tokens", "512", "--requests", "60")
    assert set(report) >= {
        "pool_bytes", "slab_tokens", "distribution", "paged", "slab", "slab_own_limit", "ratio",
    }  # fmt: skip
    for way in ("slab", "slab_own_limit"):
        assert set(report[way]) >= {
            "waste_ratio", "reserved_unused_ratio", "fragmentation_ratio", "max_running",
            "tokens_per_s",
        }  # fmt: skip
    assert report["paged"]["waste_ratio"] < 0.04
    assert report["slab"]["max_running"] == 4
    assert report["ratio"]["max_running"] == report["paged"]["max_running"] / 4
    assert min(report[way]["tokens_per_s"] for way in ("paged", "slab", "slab_own_limit")) > 0


def bad_inputs() -> dict[str, list[str]]:
    model = ["--model", "starter"]
    bench = ["bench", *model, "--max-tokens", "5", "--sessions"]
    return {
        "no command": [],
        "unknown option": ["generate", *model, "--prompt", "a", "--loud"],
        "no prompt": ["generate", *model],
        "empty prompt": ["generate", *model, "--prompt", " \n"],
        "temperature": ["generate", *model, "--prompt", "a", "--temperature", "-1"],
        "max tokens": ["generate", *model, "--prompt", "a", "--max-tokens", "0"],
        "block tokens": ["generate", *model, "--prompt", "a", "--block-tokens", "0"],
        "num blocks": ["generate", *model, "--prompt", "a", "--num-blocks", "-3"],
        "no such model": ["generate", "--model", "nowhere.gguf", "--prompt", "a"],
        "no starter": ["generate", *model, "--data-dir", "nowhere", "--prompt", "a"],
        "no messages": ["generate", *model, "--messages", "nowhere.json"],
        "messages broken": ["generate", *model, "--messages", "broken.json"],
        "messages of another shape": ["generate", *model, "--messages", "shape.json"],
        "messages nested": ["generate", *model, "--messages", "nested.json"],
        "messages not UTF-8": ["generate", *model, "--messages", "latin.json"],
        "messages with a role of their own": ["generate", *model, "--messages", "role.json"],
        "an empty chat": ["generate", *model, "--messages", "empty.json"],
        "no prompts file": [*bench, "1", "--prompts-file", "nowhere.json"],
        "prompts of another shape": [*bench, "1", "--prompts-file", "role.json"],
        "more sessions than prompts": [*bench, "9", "--prompts-file", "two.json"],
        "no session": [*bench, "0", "--prompts-file", "two.json"],
        "slab tokens": ["compare-slab", *model, "--slab-tokens", "1"],
    }


@pytest.mark.parametrize("case", bad_inputs())
def test_bad_input_is_one_sentence_and_status_2(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text('[[{"role": "user"')
    Path("shape.json").write_text('{"role": "user"}')
    Path("nested.json").write_text("[" * 100_000)
    Path("latin.json").write_bytes('[["é"]]'.encode("latin-1"))
    Path("role.json").write_text('[[{"role": "robot", "content": "a"}]]')
    Path("empty.json").write_text("[[]]")
    Path("two.json").write_text('["a", "b"]')
    assert main(bad_inputs()[case]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert "Errno" not in err


def test_an_interrupt_is_one_sentence(data_folder):
    command = [sys.executable, "-m", "engine", "generate", "--model", "starter", "--data-dir"]
    command += [str(data_folder), "--prompt", "Tell me a story.", "--max-tokens", "4000"]
    # A shell lets what it runs in the background ignore interrupts, and that is inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    while psutil.Process(running.pid).num_threads() < 2:  # the engine's: then it may be ended
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    out, said = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert said == "Interrupted; nothing was written.\n"
