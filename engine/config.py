"""EngineConfig: every setting of the engine, checked on construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from engine.errors import ConfigError

Precision = Literal["exact", "fast"]
Backend = Literal["gpu", "cpu", "reference"]
Device = Literal["auto", "cpu", "cuda"]


MAX_THREADS = 512  # of the CPU; asked for 100,000, the pool of threads ends the process


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    Raises:
        ConfigError: a value is out of range; the sentence names it and what is allowed.
    """

    block_tokens: int = 16
    num_blocks: int | None = None  # None: sized from free memory
    memory_fraction: float | None = None  # of the memory measured free; None: a default per device
    chunk_tokens: int = 512  # tokens of one step, decode first, prompts with the rest
    max_running: int = 256  # sequences in one step
    prefix_cache: bool = True
    precision: Precision = "fast"
    backend: Backend | None = None  # None: the best one for the device
    device: Device = "auto"
    context_tokens: int | None = None  # a limit below the model's own
    num_threads: int | None = None  # CPU threads; None: physical cores

    def __post_init__(self) -> None:
        _between("block_tokens", self.block_tokens, 1, 256)
        _between("chunk_tokens", self.chunk_tokens, 1, 65536)
        _between("max_running", self.max_running, 1, 4096)
        if self.num_threads is not None:
            _between("num_threads", self.num_threads, 1, MAX_THREADS)
        for name in ("num_blocks", "context_tokens"):
            value = getattr(self, name)
            if value is not None:
                _between(name, value, 1, 2**31 - 1)
        fraction = self.memory_fraction
        if fraction is not None and not 0.0 < fraction <= 0.95:
            raise ConfigError(f"memory_fraction is {fraction}, allowed above 0 to 0.95")
        for name, kind in (("precision", Precision), ("device", Device)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigError(f"{name} is {getattr(self, name)!r}, allowed {get_args(kind)}")
        if self.backend is not None and self.backend not in get_args(Backend):
            raise ConfigError(f"backend is {self.backend!r}, allowed {get_args(Backend)}")


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} is {value}, allowed {low} to {high}")
