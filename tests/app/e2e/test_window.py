"""The real application under Xvfb, with the real model: demo, quit, crash, second start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from PySide6.QtGui import QImage

from app.export.importer import read_export

ROOT = Path(__file__).resolve().parents[3]
SCENES = Path(__file__).with_name("scenes.py")


@pytest.fixture
def play(window_env, tmp_path):
    """Starts a scene in a process of its own; whatever is left is killed at the end."""
    processes = []

    def start(name: str, folder: Path, *more: str) -> subprocess.Popen[str]:
        log = open(tmp_path / f"{name}.stderr", "w")  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, str(SCENES), name, "--data-dir", str(folder), *more],
            cwd=ROOT,
            env=window_env | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def said(process: subprocess.Popen[str]) -> dict:
    """The next line of a scene."""
    line = process.stdout.readline()
    assert line, f"the scene ended with status {process.wait(30)}"
    return json.loads(line)


def test_the_demo_runs_three_chats_and_leaves_pictures_and_transcripts(
    window_env, data_folder, tmp_path
):
    shots = tmp_path / "shots"
    done = subprocess.run(
        [sys.executable, "-m", "app", "--model", "starter", "--data-dir", str(data_folder),
         "--demo", "three-chats", "--shots", str(shots)],
        cwd=ROOT, env=window_env, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1])
    assert len(lines) == 1
    assert len(result["sessions"]) == 3
    assert len({one["title"] for one in result["sessions"]}) == 3
    assert all(one["tokens"] > 0 for one in result["sessions"])
    assert {one["finish_reason"] for one in result["sessions"]} <= {"stop", "length"}
    assert result["max_generating_at_once"] == 3
    pool = result["pool"]
    assert pool["free"] + pool["cached"] + pool["active"] + pool["shared"] == pool["num_blocks"]
    for number in (1, 2):
        check_pictures(shots, number)
    for one in result["sessions"]:
        check_transcripts(shots, one)
    assert not (data_folder / "history.db").exists()  # the user's own chats are not touched


def check_pictures(shots: Path, number: int) -> None:
    light, dark = (QImage(str(shots / f"{number}-{name}.png")) for name in ("light", "dark"))
    panel = QImage(str(shots / f"{number}-panel.png"))
    assert light.width() >= 1000
    assert light.pixelColor(5, 5).lightness() > 200
    assert dark.pixelColor(5, 5).lightness() < 60
    colours = {panel.pixel(x, y) for x in range(0, panel.width(), 2) for y in range(panel.height())}
    vivid = [one for one in colours if (one >> 16 & 255) - (one & 255) not in range(-40, 41)]
    assert len(vivid) >= 2, "the grid shows no chat's blocks"


def check_transcripts(shots: Path, session: dict) -> None:
    stem = shots / session["title"]
    record = read_export(stem.with_name(stem.name + ".json"))
    reply = record.turns[0].reply
    assert reply is not None
    assert reply.new_tokens == session["tokens"]
    assert reply.text in stem.with_name(stem.name + ".md").read_text(encoding="utf-8")
    html = stem.with_name(stem.name + ".html").read_text(encoding="utf-8")
    assert "<script" not in html
    assert "http://" not in html
    assert stem.with_name(stem.name + ".pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("scene", ["quit_midstream", "quit_while_loading"])
def test_quitting_ends_within_three_seconds_and_leaves_nothing(play, data_folder, scene):
    process = play(scene, data_folder, "--model", "starter")
    facts = said(process)
    start_s = time.monotonic()
    family = psutil.Process(process.pid).children(recursive=True)
    assert process.wait(timeout=20) == 0
    assert time.monotonic() - start_s < 3.0
    _, alive = psutil.wait_procs(family, timeout=1.0)
    assert alive == []
    assert facts in ({"streaming": 2}, {"phase": "loading"})


def test_what_streams_when_the_window_quits_is_kept_unfinished(play, data_folder):
    process = play("quit_midstream", data_folder, "--model", "starter")
    said(process)
    assert process.wait(timeout=20) == 0
    again = said(play("reopen", data_folder))
    assert again["states"] == ["unfinished", "unfinished"]
    assert all(len(text) > 30 for text in again["texts"])


def test_kill_9_loses_no_more_than_the_last_half_second(play, data_folder):
    process = play("stream_until_killed", data_folder, "--model", "starter")
    seen: list[tuple[float, list[str]]] = []
    for _ in range(40):
        seen.append((time.monotonic(), said(process)["texts"]))
    os.kill(process.pid, signal.SIGKILL)
    killed_s = time.monotonic()
    process.wait()
    before = [texts for at_s, texts in seen if at_s < killed_s - 0.5][-1]
    again = said(play("reopen", data_folder))
    assert again["states"] == ["unfinished", "unfinished"]
    assert again["tabs"] >= 2
    for kept, earlier in zip(again["texts"], before, strict=True):
        assert kept.startswith(earlier)


def test_a_second_start_raises_the_first_window_and_ends(play, window_env, data_folder):
    first = play("stay", data_folder)
    assert said(first) == {"up": True}
    second = subprocess.run(
        [sys.executable, "-m", "app", "--data-dir", str(data_folder), "--model", "other.gguf"],
        cwd=ROOT, env=window_env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert second.returncode == 0, second.stderr
    assert "--model was not used" in second.stderr
    assert said(first) == {"raised": True}
    assert first.wait(timeout=20) == 0


def test_prompts_that_do_not_fit_are_sentences_and_the_other_chat_goes_on(play, data_folder):
    process = play("too_long", data_folder, "--model", "starter")
    facts = said(process)
    assert facts["states"] == ["failed", "failed", "complete"]
    assert facts["kept"][:2] == [1_000_000, 30_000]
    for sentence in facts["errors"][:2]:
        assert "tokens" in sentence
        assert "Traceback" not in sentence
    assert process.wait(timeout=20) == 0


def test_without_a_display_a_sentence_says_so(window_env, tmp_path):
    names = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    env = {name: value for name, value in window_env.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-m", "app", "--data-dir", str(tmp_path)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("There is no display")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("content", [b"<!DOCTYPE html><html></html>", b"GGUF\3\0\0\0", b""])
def test_a_file_that_is_no_model_is_a_sentence_in_the_window(play, tmp_path, content):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(content)
    process = play("bad_model", tmp_path / "data", "--model", str(bad))
    facts = said(process)
    assert facts["visible"]
    assert "bad.gguf" in facts["message"]
    assert "Traceback" not in facts["message"]
    assert process.wait(timeout=20) == 0
