"""The work of side-by-side runs, and what every peer's script is told and prints.

N chats at once, prompts of about 70 tokens that differ from their first token on, greedy, exactly
so many new tokens each.
"""

from __future__ import annotations

import argparse
import json

TEXT = "Tell me a long story about a fox and a crow and the moon. "


def prompts(num_sessions: int, repeat: int = 5) -> list[str]:
    """One prompt per session, about 14 tokens for each `repeat`."""
    return [f"{number} " + TEXT * repeat for number in range(num_sessions)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-repeat", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2, help="runs after one to warm up")
    return parser.parse_args()


def report(num_tokens: int, seconds: float) -> None:
    rate = round(num_tokens / seconds, 4)  # of a prompt's first token, too
    print(json.dumps({"seconds": round(seconds, 4), "aggregate_tokens_per_s": rate}), flush=True)
