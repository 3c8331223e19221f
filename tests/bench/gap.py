"""Does a long prompt hold up a chat that is being written? Gaps between its tokens, on the starter.

    python tests/bench/gap.py --prompt-tokens 4000

One chat writes; after 200 tokens another with the long prompt comes, and when that was read and
answered the first one writes 150 more. Printed are the gaps between two of its tokens while the
prompt is read, in milliseconds (median, 99 of 100, longest) and in steps: of the median before, and
of a normal step where the gap was. The chat's own context grows by thousands of tokens meanwhile,
and its step with it, so the latter lies between the medians before and after, by the token. The
longest before and after is what the machine alone has to answer for. The last line on stdout is
JSON, medians of all runs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.headless import Headless
from engine.messages import (
    EngineStopped,
    Failed,
    Finished,
    SamplingParams,
    StepEvents,
    Submit,
    TextDelta,
)
from engine.places import data_dir, starter_path

NUM_BEFORE = 200
NUM_AFTER = 150
NUM_WARM_UP = 20  # steps at the start of either that do not count


def run(prompt_tokens: int, num_chats: int) -> dict[str, float]:
    """One run in an engine of its own."""
    inbox: SimpleQueue[tuple[float, StepEvents]] = SimpleQueue()
    with Headless(EngineConfig(), starter_path(data_dir(None))) as engine:
        # As the window does: a full collection takes 100 ms, in which no step runs.
        gc.collect()
        gc.freeze()
        engine.listen(lambda step: inbox.put((time.perf_counter(), step)))
        return _measure(engine.client, inbox, prompt_tokens, num_chats)


def _measure(
    client: EngineClient,
    inbox: SimpleQueue[tuple[float, StepEvents]],
    prompt_tokens: int,
    num_chats: int,
) -> dict[str, float]:
    chat = SamplingParams(max_tokens=7_000, ignore_eos=True)
    for owner in range(num_chats):
        client.send(Submit(1 + owner, chat, prompt="Once upon a time", owner=owner))
    times: list[float] = []
    long_id, sent_s, first_s = 1000, 0.0, 0.0
    num_left, is_answered = NUM_AFTER, False
    while num_left:
        at_s, step = inbox.get()
        for event in step.events:
            if isinstance(event, Finished) and event.request_id == long_id:
                is_answered = True
            elif isinstance(event, Failed | Finished | EngineStopped):
                raise SystemExit(str(event))
            if isinstance(event, TextDelta) and event.request_id == 1:
                times.append(at_s)
                num_left -= is_answered
                if len(times) == NUM_BEFORE:
                    sent_s = time.perf_counter()
                    prompt = "word " * prompt_tokens
                    params = SamplingParams(max_tokens=4, ignore_eos=True)
                    client.send(Submit(long_id, params, prompt=prompt, owner=99))
            if isinstance(event, TextDelta) and event.request_id == long_id:
                first_s = first_s or at_s
    return _figures(times, sent_s, first_s)


def _figures(times: list[float], sent_s: float, first_s: float) -> dict[str, float]:
    gaps = [(b - a) * 1000 for a, b in itertools.pairwise(times)]
    before = gaps[NUM_WARM_UP : NUM_BEFORE - 1]
    after = gaps[-(NUM_AFTER - NUM_WARM_UP) :]
    first_ms, last_ms = statistics.median(before), statistics.median(after)
    first = (NUM_WARM_UP + NUM_BEFORE) / 2  # the tokens those medians stand for
    last = len(gaps) - (NUM_AFTER - NUM_WARM_UP) / 2

    during: list[float] = []
    in_normal: list[float] = []
    for token, (gap, at_s) in enumerate(zip(gaps, times[1:], strict=True)):
        if sent_s <= at_s <= first_s:
            during.append(gap)
            done = (token - first) / (last - first)
            in_normal.append(gap / (first_ms + done * (last_ms - first_ms)))
    return {
        "normal_before_ms": round(first_ms, 1),
        "normal_after_ms": round(last_ms, 1),
        "longest_without_ms": round(max(max(before), max(after)), 1),
        "median_ms": round(statistics.median(during), 1),
        "p99_ms": round(statistics.quantiles(during, n=100)[98], 1),
        "longest_ms": round(max(during), 1),
        "longest_in_steps_before": round(max(during) / first_ms, 2),
        "p99_in_normal_steps": round(statistics.quantiles(in_normal, n=100)[98], 2),
        "longest_in_normal_steps": round(max(in_normal), 2),
        "prompt_s": round(first_s - sent_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--chats", type=int, default=1, help="chats that write meanwhile")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    runs = [run(args.prompt_tokens, args.chats) for _ in range(args.runs)]
    for row in runs:
        print(row)
    print(json.dumps({key: statistics.median(row[key] for row in runs) for key in runs[0]}))


if __name__ == "__main__":
    main()
