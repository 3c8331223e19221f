"""Ten minutes of sessions that come, stop, edit, branch and leave, on the starter model.

    python tests/soak.py --minutes 10 --sessions 32

Ends with 1 when a block is not free at the end, when memory grew by 2 % or more after the first
tenth of the time, or when a reply failed. The last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.config import EngineConfig
from engine.headless import Headless
from engine.messages import (
    BACKGROUND,
    FRONT,
    NORMAL,
    BlockState,
    Cancel,
    ChatMessage,
    EngineStopped,
    Event,
    Failed,
    Finished,
    Fork,
    Pin,
    PoolSnapshot,
    ReleaseOwner,
    SamplingParams,
    SetPriority,
    StateChanged,
    StepEvents,
    Submit,
    TextDelta,
    Unpin,
)
from engine.places import data_dir, starter_path

SYSTEM = "You are a helpful assistant who answers in a few plain sentences. " * 3
WORDS = ("river", "stone", "letter", "garden", "number", "window", "music", "bridge", "winter")
MAX_GROWTH = 0.02


@dataclass
class Session:
    """One chat: its messages, and what it is doing."""

    owner: int
    messages: list[ChatMessage] = field(default_factory=list)
    request: int = 0  # 0 = idle
    text: str = ""
    stop_after: int = 0  # tokens; 0 = to the end
    num_tokens: int = 0
    wakes_s: float = 0.0


class Soak:
    """Drives the engine through its client, as the window does."""

    def __init__(self, num_sessions: int, seed: int, num_blocks: int) -> None:
        self.random = random.Random(seed)
        self.inbox: SimpleQueue[StepEvents] = SimpleQueue()
        config = EngineConfig(num_blocks=num_blocks)
        self.engine = Headless(config, starter_path(data_dir(None)))
        self.client = self.engine.client
        self.engine.listen(self.inbox.put)
        self.sessions = [Session(owner) for owner in range(num_sessions)]
        self.by_request: dict[int, Session] = {}
        self.counts: Counter[str] = Counter()
        self.pool: PoolSnapshot | None = None
        self.failures: list[str] = []
        self.rss: list[tuple[float, int]] = []

    def run(self, seconds: float) -> None:
        process, start_s = psutil.Process(), time.monotonic()
        next_rss_s = 0.0
        while (now_s := time.monotonic() - start_s) < seconds:
            if now_s >= next_rss_s:
                self.rss.append((now_s, process.memory_info().rss))
                next_rss_s = now_s + seconds / 60
            for session in self.sessions:
                if not session.request and session.wakes_s <= now_s:
                    self.begin(session)
                elif session.request and self.random.random() < 0.002:
                    self.disturb(session)
            self.take(0.02, now_s)
        for request in list(self.by_request):
            self.client.send(Cancel(request))
        deadline_s = time.monotonic() + 60
        while self.by_request and time.monotonic() < deadline_s:
            self.take(0.1, now_s)
        self.rss.append((seconds, process.memory_info().rss))

    # --- what people do ---------------------------------------------------------------------------

    def begin(self, session: Session) -> None:
        """A new turn, an edit of an old one, another answer to the last, or a new chat."""
        action = self.random.random()
        if not session.messages or len(session.messages) > 11 or action < 0.1:
            session.messages = [ChatMessage("system", SYSTEM)] if action < 0.6 else []
            self.counts["new chats"] += 1
        elif action < 0.3:
            turns = [i for i, m in enumerate(session.messages) if m.role == "user"]
            del session.messages[self.random.choice(turns) :]
            self.counts["edits"] += 1
        elif action < 0.4 and session.messages[-1].role == "assistant":
            del session.messages[-2:]
            self.counts["regenerated"] += 1
        session.messages.append(ChatMessage("user", self.question()))
        session.text, session.num_tokens = "", 0
        session.stop_after = self.random.choice([0, 0, self.random.randint(1, 60)])
        session.request = self.client.next_request_id()
        self.by_request[session.request] = session
        params = SamplingParams(
            temperature=self.random.choice([0.0, 0.8]), max_tokens=self.random.randint(5, 160)
        )
        self.client.send(
            Submit(
                session.request,
                params,
                tuple(session.messages),
                owner=session.owner,
                priority=self.random.choice([FRONT, NORMAL, NORMAL, BACKGROUND]),
            )
        )
        self.counts["requests"] += 1

    def question(self) -> str:
        length = self.random.choice([3, 8, 20, 20, 120])
        return " ".join(self.random.choice(WORDS) for _ in range(length)) + "?"

    def disturb(self, session: Session) -> None:
        """Something else than waiting for the end."""
        what = self.random.choice(["front", "pin", "branch", "stop", "delete"])
        self.counts[what] += 1
        if what == "front":
            self.client.send(SetPriority(session.request, self.random.choice([FRONT, NORMAL])))
        elif what == "pin":
            self.client.send(self.random.choice([Pin, Unpin])(session.owner))
        elif what == "branch":
            number = self.client.next_request_id()
            self.by_request[number] = Session(session.owner)
            self.client.send(
                Fork(number, session.request, SamplingParams(max_tokens=20), session.owner)
            )
        elif what == "stop":
            self.client.send(Cancel(session.request))
        else:
            self.client.send(Cancel(session.request))
            self.client.send(ReleaseOwner(session.owner))

    # --- what the engine says ---------------------------------------------------------------------

    def take(self, wait_s: float, now_s: float) -> None:
        try:
            steps = [self.inbox.get(timeout=wait_s)]
        except Empty:
            return
        while not self.inbox.empty():
            steps.append(self.inbox.get())
        for step in steps:
            self.pool = step.pool or self.pool
            self.counts["steps"] += step.stats is not None
            for event in step.events:
                self.hear(event, now_s)

    def hear(self, event: Event, now_s: float) -> None:
        if isinstance(event, EngineStopped):
            raise SystemExit(f"the engine ended: {event.reason}")
        session = self.by_request.get(getattr(event, "request_id", 0))
        if session is None:
            return
        if isinstance(event, TextDelta):
            session.text += event.text
            session.num_tokens += len(event.token_ids)
            self.counts["tokens"] += len(event.token_ids)
            if session.stop_after and session.num_tokens >= session.stop_after:
                session.stop_after = 0
                self.client.send(Cancel(event.request_id))
        elif isinstance(event, StateChanged):
            self.counts[event.state.value] += 1
        elif isinstance(event, Finished | Failed):
            self.end(event, session, now_s)

    def end(self, event: Finished | Failed, session: Session, now_s: float) -> None:
        del self.by_request[event.request_id]
        if isinstance(event, Failed):
            # To branch from a reply that has just ended is a race that people lose, too.
            if "has ended" not in event.message:
                self.failures.append(event.message)
        else:
            self.counts[f"ended by {event.reason}"] += 1
        if session.request == event.request_id:
            session.messages.append(ChatMessage("assistant", session.text or "…"))
            session.request = 0
            session.wakes_s = now_s + self.random.expovariate(1.0)

    def free_everything(self) -> None:
        """Every chat is deleted: nothing may be left in the pool."""
        for session in self.sessions:
            self.client.send(Unpin(session.owner))
            self.client.send(ReleaseOwner(session.owner))
        deadline_s = time.monotonic() + 10
        while time.monotonic() < deadline_s and self.num_not_free:
            self.take(0.2, 0.0)
        self.engine.close()

    @property
    def num_not_free(self) -> int:
        return sum(state != BlockState.FREE for state in self.pool.states) if self.pool else -1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--num-blocks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    soak = Soak(args.sessions, args.seed, args.num_blocks)
    seconds = args.minutes * 60
    soak.run(seconds)
    left = len(soak.by_request)
    soak.free_everything()
    # Memory that is taken once (pages of the pool, the allocator's own) is there by now.
    settled = next(rss for at_s, rss in soak.rss if at_s >= seconds / 10)
    growth = soak.rss[-1][1] / settled - 1
    report = {
        "seconds": seconds,
        "sessions": args.sessions,
        "num_blocks": args.num_blocks,
        **dict(sorted(soak.counts.items())),
        "requests_left": left,
        "blocks_not_free": soak.num_not_free,
        "failures": soak.failures[:5],
        "rss_mib": [round(rss / 2**20) for _, rss in soak.rss[:: len(soak.rss) // 6]],
        "rss_growth": round(growth, 4),
    }
    print(json.dumps(report))
    is_bad = left or soak.num_not_free or soak.failures or growth >= MAX_GROWTH
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
