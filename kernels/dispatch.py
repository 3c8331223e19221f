"""choose(device, dtype, backend) -> Ops. Imports triton or numba only inside, holds no state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    return REFERENCE
