"""Options: what the command line asks of the window, checked. No Qt, nothing heavy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from engine.config import Backend, EngineConfig, Precision
from engine.errors import ConfigError
from engine.places import data_dir, starter_path

VERSION = "2026.12.0"
DEMOS = ("three-chats",)
NO_STARTER = (
    "The starter model is not in {folder}; fetch it with `python3 packaging/bootstrap.py run`, or "
    "give another model with --model PATH."
)


@dataclass(frozen=True, slots=True)
class Options:
    """`model` is a path, or "" when none was named."""

    data_dir: Path
    model: str = ""
    theme: Literal["", "system", "light", "dark"] = ""  # "" = what the settings say
    demo: str = ""
    shots: Path | None = None
    config: EngineConfig = field(default_factory=EngineConfig)
    has_memory_fraction: bool = False  # given here: it wins over the settings


def parse(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line. Bad input ends the process: status 2, one sentence on stderr."""
    parser = _parser()
    given = parser.parse_args(arguments)
    folder = data_dir(given.data_dir)
    if bool(given.demo) != bool(given.shots):
        parser.error("--demo and --shots belong together: --demo three-chats --shots DIR")
    model = given.model or ""
    if model == "starter":
        model = str(starter_path(folder))
        if given.demo and not Path(model).exists():
            parser.error(NO_STARTER.format(folder=folder))
    elif model:
        model = str(Path(model).expanduser().absolute())
    try:
        config = EngineConfig(
            num_blocks=given.num_blocks,
            memory_fraction=given.memory_fraction,
            precision=given.precision,
            backend=given.backend,
        )
    except ConfigError as error:
        parser.error(str(error))
    return Options(
        data_dir=folder,
        model=model,
        theme=given.theme or "",
        demo=given.demo or "",
        shots=Path(given.shots).absolute() if given.shots else None,
        config=config,
        has_memory_fraction=given.memory_fraction is not None,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """One sentence and no usage: what to do, not what could be done."""
        sys.stderr.write(f"{message}\n")
        sys.exit(2)


def _parser() -> _Parser:
    parser = _Parser(prog="tessera", description="Several chats at once over one paged KV pool.")
    add = parser.add_argument
    add("--model", metavar="PATH|starter", help="a .gguf file, a model folder, or the starter")
    add("--data-dir", metavar="DIR", help="where chats, settings and the starter model lie")
    add("--theme", choices=("system", "light", "dark"), help="for this run")
    add("--memory-fraction", type=float, metavar="X", help="of free memory, for the pool")
    add("--num-blocks", type=int, metavar="N", help="size of the pool in blocks")
    add("--backend", choices=get_args(Backend), help="which kernels run")
    add("--precision", choices=get_args(Precision), default="fast", help="exact or fast")
    add("--demo", choices=DEMOS, help="play a scripted demo and quit; needs --shots")
    add("--shots", metavar="DIR", help="where the demo puts pictures and transcripts")
    add("--version", action="version", version=f"Tessera {VERSION}")
    return parser


def model_to_load(given: str, last: str, folder: Path) -> str:
    """The model a window starts with: the one named, else the last one, else the starter when it
    is there, else none ("")."""
    if given:
        return given
    if last and Path(last).exists():
        return last
    path = starter_path(folder)
    return str(path) if path.exists() else ""
