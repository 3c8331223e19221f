"""Weight storage behind one call: fp32 (exact), bf16, and bf16 packed for oneDNN (on a CPU)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F

Storage = Literal["fp32", "bf16", "bf16 packed"]

# The batch that oneDNN lays the weights out for. Measured on 576 -> 3072 with cold weights, 2 Zen 4
# cores: a layout for 32 rows is the best or equal at 1 to 512 rows (143 us at 1, 204 us at 16; laid
# out for 512 rows: 185 and 277), and is made four times faster than one for a single row.
_PACKED_ROWS = 32


class Linear(Protocol):
    """x [M, columns] -> [M, rows], in x's dtype, which is `activation_dtype(storage)`."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def activation_dtype(storage: Storage) -> torch.dtype:
    return torch.float32 if storage == "fp32" else torch.bfloat16


def choose_storage(device: torch.device, precision: str) -> Storage:
    """The storage for a device: fp32 in exact mode, else the fastest that computes rightly here."""
    if precision == "exact":
        return "fp32"
    if device.type != "cpu":
        return "bf16"
    # Without the machine's own bf16 instructions those products run element by element.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "fp32"
    return "bf16 packed" if can_run_packed() else "bf16"


@functools.cache
def can_run_packed() -> bool:
    """Whether torch's internal packed product exists here and gives right values (a few ms)."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 80, generator=generator).bfloat16()
    bias = torch.randn(96, generator=generator).bfloat16()
    try:
        packed = PackedLinear(weight, bias)
        for num_rows in (1, 3, 65):
            x = torch.randn(num_rows, 80, generator=generator).bfloat16()
            right = F.linear(x.float(), weight.float(), bias.float())
            if not torch.allclose(packed(x).float(), right, rtol=0.02, atol=0.05):
                return False
    except (AttributeError, NotImplementedError, RuntimeError):  # not in this build of torch
        return False
    return True


def make_linear(
    weight: torch.Tensor,  # [rows, columns], any floating dtype, on the CPU
    bias: torch.Tensor | None,  # [rows]
    storage: Storage,
    device: torch.device,
) -> Linear:
    dtype = activation_dtype(storage)
    weight = weight.to(device=device, dtype=dtype)
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    return PackedLinear(weight, bias) if storage == "bf16 packed" else PlainLinear(weight, bias)


@dataclass(slots=True)
class PlainLinear:
    """Rows as they are, multiplied by `F.linear`."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    """bf16 rows in oneDNN's blocked layout: half the time of `F.linear` at few rows of x."""

    __slots__ = ("_bias", "_packed", "num_bytes")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACKED_ROWS)
        self._bias = bias
        # Its own size, odd rows and columns filled up to whole blocks.
        packed_bytes = int(torch.ops.mkldnn._nbytes(self._packed))
        self.num_bytes = packed_bytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        padded = padded_rows(num_rows)
        if padded > num_rows:
            x = F.pad(x, (0, 0, 0, padded - num_rows))
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return y[:num_rows]


def padded_rows(num_rows: int) -> int:
    """Rows that a packed product is computed with: up to 8 as they are, then four sizes for each
    doubling. oneDNN keeps something for every number of rows, shape and matrix that it once saw:
    prompts come in all lengths, and 300 lengths took 306 MiB for three matrices."""
    if num_rows <= 8:
        return num_rows
    step = 1 << (num_rows - 1).bit_length() - 3
    return -(-num_rows // step) * step
