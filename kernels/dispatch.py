"""choose(device, dtype, backend) -> Ops. Imports triton or numba only inside, holds no state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels import reference


@dataclass(frozen=True, slots=True)
class Ops:
    """One function per op; signatures and shapes are documented in `kernels.reference`."""

    backend: str
    store_kv: Callable[..., None]
    paged_decode: Callable[..., torch.Tensor]
    paged_prefill: Callable[..., torch.Tensor]
    copy_blocks: Callable[..., None]
    rms_norm: Callable[..., torch.Tensor]
    add_rms_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rotary: Callable[..., None]
    silu_mul: Callable[..., torch.Tensor]
    # What torch does well on every device: a backend may bring its own.
    layer_norm: Callable[..., torch.Tensor] = reference.layer_norm
    add_layer_norm: Callable[..., tuple[torch.Tensor, torch.Tensor]] = reference.add_layer_norm
    act: Callable[..., torch.Tensor] = reference.act
    act_mul: Callable[..., torch.Tensor] = reference.act_mul
    turn_and_store: Callable[..., None] = reference.turn_and_store


REFERENCE = Ops(
    backend="reference",
    store_kv=reference.store_kv,
    paged_decode=reference.paged_decode,
    paged_prefill=reference.paged_prefill,
    copy_blocks=reference.copy_blocks,
    rms_norm=reference.rms_norm,
    add_rms_norm=reference.add_rms_norm,
    rotary=reference.rotary,
    silu_mul=reference.silu_mul,
)


class BackendError(ValueError):
    """The backend cannot run on this device; the sentence says why and names one that can."""


def choose(device: torch.device, dtype: torch.dtype, backend: str | None = None) -> Ops:
    """The ops for a device. `dtype` is that of K and V in the pool.

    Raises:
        BackendError: `backend` is not available there.
    """
    if backend == "gpu":
        raise BackendError("the gpu backend is not part of this version; use --backend reference")
    if backend == "reference" or (backend is None and device.type != "cpu"):
        return REFERENCE
    if device.type != "cpu":
        raise BackendError(f"the cpu backend cannot run on {device}; use --backend reference")
    reason = _cpu_hindrance(dtype)
    if not reason:
        return _cpu_ops()
    if backend == "cpu":
        raise BackendError(f"the cpu backend cannot run ({reason}); use --backend reference")
    return REFERENCE


def set_num_threads(number: int, own_kernels: bool) -> None:
    """How many threads compute on the CPU for the calling one.

    Args:
        own_kernels: most is computed by our own; torch then has one thread. Its pool waits for work
            in a loop, on the core that ours needs: 4 rows took 13 ms instead of 9.
    """
    torch.set_num_threads(1 if own_kernels else number)
    if not _cpu_hindrance(torch.float32):
        from kernels.cpu.crew import set_num_workers

        set_num_workers(number)


def _cpu_hindrance(dtype: torch.dtype) -> str:
    """Why the compiled CPU kernels cannot run; empty when they can."""
    if dtype not in (torch.float32, torch.bfloat16):
        return f"it holds no {str(dtype).removeprefix('torch.')}"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba is missing: {error}"
    return ""


def _cpu_ops() -> Ops:
    from kernels.cpu.ops import OPS

    functions: dict[str, Any] = OPS
    return Ops(backend="cpu", **functions)
