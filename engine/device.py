"""Which device the engine runs on, and its name for people."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.memory import num_cores


def choose_device(config: EngineConfig) -> torch.device:
    """The device asked for; with "auto" a CUDA device that works, else the CPU.

    Raises:
        ConfigError: "cuda" was asked for and there is none that works.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    problem = _cuda_problem()
    if problem is None:
        return torch.device("cuda", 0)
    if config.device == "cuda":
        raise ConfigError(f"no CUDA device can be used ({problem}); choose --device cpu")
    return torch.device("cpu")


def _cuda_problem() -> str | None:
    if not torch.cuda.is_available():
        return "PyTorch sees none"
    try:
        torch.ones(1, device="cuda").item()
    except RuntimeError as error:  # a driver that is there but does not work
        return str(error).splitlines()[0]
    return None


def device_name(device: torch.device, num_threads: int) -> str:
    if device.type == "cuda":
        return f"CUDA {device.index}, {torch.cuda.get_device_name(device)}"
    return f"CPU, {num_threads} {'core' if num_threads == 1 else 'cores'}"


def num_threads(config: EngineConfig) -> int:
    return config.num_threads or num_cores()
