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

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.messages import (
    EngineStopped,
    Failed,
    Finished,
    LoadModel,
    ModelLoaded,
    SamplingParams,
    Shutdown,
    StepEvents,
    Submit,
    TextDelta,
)
from engine.places import data_dir, starter_path

WINDOW_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=12)
    parser.add_argument("--num-blocks", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    inbox: SimpleQueue[StepEvents] = SimpleQueue()
    client = EngineClient(EngineConfig(num_blocks=args.num_blocks))
    client.subscribe(inbox.put)
    client.start()
    client.send(LoadModel(str(starter_path(data_dir(None)))))
    while not any(isinstance(event, ModelLoaded) for event in inbox.get().events):
        pass
    params = SamplingParams(max_tokens=4_000, ignore_eos=True)
    for chat in range(args.chats):
        prompt = f"The story of number {chat}. Once upon a time"
        client.send(Submit(chat + 1, params, prompt=prompt, owner=chat))
    start_s = time.monotonic()
    tokens: list[tuple[float, int]] = []
    is_whole = True  # every chat is still there
    while is_whole and time.monotonic() - start_s < args.seconds:
        for event in inbox.get().events:
            if isinstance(event, TextDelta):
                tokens.append((time.monotonic() - start_s, event.request_id))
            elif isinstance(event, Finished | Failed | EngineStopped):
                is_whole = False
    client.send(Shutdown())
    client.join(20)
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
