"""Arguments of `python -m engine`, with a sentence instead of a usage text when they are wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from engine.errors import ConfigError

Command = Callable[[argparse.Namespace], dict[str, object]]


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments as a ConfigError, so that it is one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"{message}; see `python -m engine COMMAND -h` (generate, bench, compare-slab)"
        )


def _bias(text: str) -> tuple[int, float]:
    """ID=VALUE of --logit-bias."""
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=VALUE, such as 42=-100") from None


def _count(text: str) -> int:
    """A number of replies."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 64")
    return int(text)


def command_parser(generate: Command, bench: Command, compare_slab: Command) -> Parser:
    """Arguments of the three commands; `args.command(args)` runs the one that was asked for."""
    shared = Parser(add_help=False)
    shared.add_argument("--model", required=True, help="a .gguf file, a model folder, or starter")
    shared.add_argument("--data-dir", help="where the starter model lies")
    shared.add_argument(
        "--block-tokens", type=int, default=16, help="tokens in a block of the pool (16)"
    )
    shared.add_argument(
        "--num-blocks", type=int, help="size of the pool; without it, a share of the free memory"
    )
    shared.add_argument("--memory-fraction", type=float, help="that share, above 0 to 0.95")
    shared.add_argument(
        "--chunk-tokens", type=int, default=512, help="tokens of one step, prompts in chunks (512)"
    )
    shared.add_argument("--context-tokens", type=int, help="a limit below the model's own context")
    shared.add_argument(
        "--precision",
        choices=["exact", "fast"],
        default="fast",
        help="exact: fp32 throughout; fast: weights as the file stores them, or bf16 (the default)",
    )
    shared.add_argument(
        "--backend",
        choices=["gpu", "cpu", "reference"],
        help="which kernels run; without it, the best for the device",
    )
    shared.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="where the model runs (auto)",
    )
    shared.add_argument("--threads", type=int, help="of the CPU; without it, one for each core")
    shared.add_argument("--json", action="store_true", help="no running text on stderr")

    parser = Parser(prog="python -m engine")
    commands = parser.add_subparsers(required=True, parser_class=Parser)
    write = commands.add_parser("generate", parents=[shared], help="write replies")
    write.add_argument(
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="one message, a chat of its own; may be given several times",
    )
    write.add_argument(
        "--messages",
        type=Path,
        metavar="FILE.json",
        help="a list of chats, each a list of {role, content}",
    )
    write.add_argument(
        "--max-tokens", type=int, default=256, help="length of a reply at most (256)"
    )
    write.add_argument(
        "--temperature", type=float, default=0.0, help="0 takes the likeliest token (0)"
    )
    write.add_argument("--top-k", type=int, default=0, help="only the k likeliest tokens; 0 is off")
    write.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        help="only the likeliest that make up this share; 1 is off",
    )
    write.add_argument(
        "--min-p",
        type=float,
        default=0.0,
        help="only those this likely beside the likeliest; 0 is off",
    )
    write.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        help="on tokens of prompt and reply; 1 is off",
    )
    write.add_argument(
        "--presence-penalty",
        type=float,
        default=0.0,
        help="on tokens of the reply, once each; 0 is off",
    )
    write.add_argument(
        "--frequency-penalty",
        type=float,
        default=0.0,
        help="on tokens of the reply, each time; 0 is off",
    )
    write.add_argument(
        "--logit-bias", type=_bias, action="append", default=[], metavar="ID=VALUE",
        help="added to the logit of a token, -100 to 100; may be given several times",
    )  # fmt: skip
    write.add_argument(
        "--replies", type=_count, default=1, help="replies to each prompt, which is read once (1)"
    )
    write.add_argument("--min-tokens", type=int, default=0, help="no end before this many tokens")
    write.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="text at which a reply ends; may be given several times",
    )
    write.add_argument(
        "--logprobs", type=int, metavar="N", help="report N alternatives per token, 0 to 20"
    )
    write.add_argument("--seed", type=int, help="the same answer again at a temperature above 0")
    write.add_argument(
        "--no-prefix-cache", action="store_true", help="read every prompt from its first token"
    )
    write.set_defaults(command=generate)

    measure = commands.add_parser("bench", parents=[shared], help="measure speed")
    measure.add_argument("--sessions", type=int, required=True, help="how many chats write at once")
    measure.add_argument(
        "--prompts-file", type=Path, required=True, help="a JSON list of texts, one for each chat"
    )
    measure.add_argument("--max-tokens", type=int, required=True, help="new tokens for each chat")
    measure.add_argument(
        "--ignore-eos", action="store_true", help="write on past the end token, to the full length"
    )
    measure.add_argument("--prefix-cache", action="store_true", help="use it; off when measuring")
    measure.add_argument("--profile", action="store_true", help="say where a step spends its time")
    measure.set_defaults(command=bench)

    slab = commands.add_parser("compare-slab", parents=[shared], help="blocks against slabs")
    slab.add_argument("--pool-mib", type=int, help="memory to give out; without it, four slabs")
    slab.add_argument(
        "--slab-tokens", type=int, default=2048, help="the maximum that a slab holds (2048)"
    )
    slab.add_argument("--requests", type=int, default=1000, help="how many are counted (1000)")
    slab.add_argument(
        "--sweep", action="store_true", help="count for memory of 2, 4, 8 and 16 slabs"
    )
    slab.set_defaults(command=compare_slab)
    return parser
