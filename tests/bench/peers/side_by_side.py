"""Tessera beside its peers on the same work, in one sitting: medians, and ours to theirs.

    STARTER_GGUF=... tests/bench/peers/set_up.sh DIR
    STARTER_GGUF=... python tests/bench/peers/side_by_side.py --dir DIR

For each number of chats ours and each peer run in turn, twice, so that a machine that drifts hits
all alike; each run has one to warm up before it. Prefix caches are off. `--prompt-repeat 140
--max-tokens 1 --sessions 1` compares the reading of a prompt of 2,000 tokens. Run nothing else
meanwhile. One JSON object for each number of chats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from work import prompts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def rates(command: list[str], folder: Path) -> list[float]:
    """Tokens per second that a command prints, one for each run."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=900)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [float(row["aggregate_tokens_per_s"]) for row in rows]
    if not found:
        raise SystemExit(f"no figure from {command}:\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
    return found


def commands(top: Path, gguf: str, sessions: int, tokens: int, repeat: int) -> dict[str, list[str]]:
    work = ["--sessions", str(sessions), "--max-tokens", str(tokens)]
    work += ["--prompt-repeat", str(repeat)]
    openvino, vllm = top / "ve-openvino/bin/python", top / "ve-vllm/bin/python"
    numbers = [str(number) for number in (sessions, tokens, repeat)]
    return {
        "openvino": [
            str(openvino), "openvino_peer.py", "--model", str(top / "starter-ov-int4"), *work
        ],
        "vllm": [str(vllm), "vllm_peer.py", "--model", str(top / "starter-hf"), *work],
        "llamacpp": ["node", str(top / "node/llamacpp_peer.mjs"), gguf, *numbers],
    }  # fmt: skip


def compare(args: argparse.Namespace, sessions: int) -> dict[str, object]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(prompts(sessions, args.prompt_repeat), file)
        file.flush()
        our_command = [
            sys.executable, "-m", "engine", "bench", "--model", "starter", "--sessions",
            str(sessions), "--prompts-file", file.name, "--max-tokens", str(args.max_tokens),
            "--ignore-eos", "--json",
        ]  # fmt: skip
        gguf = os.environ.get("STARTER_GGUF", "")
        theirs = commands(args.dir.resolve(), gguf, sessions, args.max_tokens, args.prompt_repeat)
        ours: list[float] = []
        peers: dict[str, list[float]] = {}
        for _ in range(2):
            ours += rates(our_command, ROOT)
            for name in args.peers.split(","):
                peers.setdefault(name, []).extend(rates(theirs[name], HERE))
    mine = statistics.median(ours)
    medians = {name: statistics.median(values) for name, values in peers.items()}
    ratios = {name: round(mine / median, 2) for name, median in medians.items()}
    return {
        "sessions": sessions,
        "ours": round(mine, 3),
        "peers": medians,
        "ratio": ratios,
        "ratio_to_best": min(ratios.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", required=True, type=Path, help="where set_up.sh put the peers")
    parser.add_argument("--sessions", default="1,4,8,16,32")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--prompt-repeat", type=int, default=5)
    parser.add_argument("--peers", default="openvino,vllm,llamacpp")
    args = parser.parse_args()
    if "llamacpp" in args.peers and not os.environ.get("STARTER_GGUF"):
        raise SystemExit("llama.cpp needs the path of the starter model in STARTER_GGUF")
    for sessions in map(int, args.sessions.split(",")):
        print(json.dumps(compare(args, sessions)), flush=True)


if __name__ == "__main__":
    main()
