"""What share of the tokens each chat gets, in windows of ten seconds, on the starter model.

    python tests/bench/fairness.py --chats 12 --num-blocks 80

All chats start together and write on. Printed is the smallest share that a chat had in a window, of
an equal one, over all windows in which every chat was there. The last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

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

WINDOW_S = 10.0


def watch(engine: Headless, num_chats: int, seconds: float) -> list[tuple[float, int]]:
    """(when, whose) of every token, until one chat is at its end."""
    inbox: SimpleQueue[StepEvents] = SimpleQueue()
    engine.listen(inbox.put)
    params = SamplingParams(max_tokens=4_000, ignore_eos=True)
    for chat in range(num_chats):
        prompt = f"The story of number {chat}. Once upon a time"
        engine.client.send(Submit(chat + 1, params, prompt=prompt, owner=chat))
    start_s = time.monotonic()
    tokens: list[tuple[float, int]] = []
    while time.monotonic() - start_s < seconds:
        for event in inbox.get().events:
            if isinstance(event, TextDelta):
                tokens.append((time.monotonic() - start_s, event.request_id))
            elif isinstance(event, Finished | Failed | EngineStopped):
                return tokens
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=12)
    parser.add_argument("--num-blocks", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    config = EngineConfig(num_blocks=args.num_blocks)
    with Headless(config, starter_path(data_dir(None))) as engine:
        tokens = watch(engine, args.chats, args.seconds)
    end_s = tokens[-1][0]
    shares = []
    for window in range(max(0, int(end_s - WINDOW_S)) + 1):
        written = Counter(chat for at_s, chat in tokens if window <= at_s < window + WINDOW_S)
        equal = sum(written.values()) / args.chats
        shares.append(min(written[chat + 1] for chat in range(args.chats)) / equal)
    report = {
        "chats": args.chats,
        "seconds": round(end_s, 1),
        "windows": len(shares),
        "smallest_share": round(min(shares), 3),
        "tokens_per_s": round(len(tokens) / end_s, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
