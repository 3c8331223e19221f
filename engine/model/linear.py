"""Weight storage behind one call: fp32 (exact), bf16, bf16 packed for oneDNN, or a GGUF's codes."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
import torch.nn.functional as F

from engine.model.codes import Codes

if TYPE_CHECKING:
    from kernels.cpu.layer_parts import Matrix

Storage = Literal["fp32", "bf16", "bf16 packed"]

# The batch that oneDNN lays the weights out for. Measured on 576 -> 3072 with cold weights, 2 Zen 4
# cores: a layout for 32 rows is the best or equal at 1 to 512 rows (143 us at 1, 204 us at 16; laid
# out for 512 rows: 185 and 277), and is made four times faster than one for a single row.
_PACKED_ROWS = 32


class Linear(Protocol):
    """x [M, columns] -> [M, rows], in x's dtype."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


def activation_dtype(storage: Storage, keeps_codes: bool = False) -> torch.dtype:
    """Codes are multiplied by bytes: a bf16 before them would round twice. The starter model then
    agrees with its fp32 self in 96.3 % of next tokens, with fp32 activations in 96.9 to 97.7 %."""
    return torch.float32 if storage == "fp32" or keeps_codes else torch.bfloat16


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


@functools.cache
def keeps_codes() -> bool:
    """Whether products with codes give right values on this CPU, and sooner than with floats."""
    try:
        from kernels.cpu.bytes import way
    except ImportError:  # no Numba
        return False
    return bool(way()) and _codes_are_right() and _codes_are_fast()


def _trial(rows: int, columns: int, bits: int) -> Codes:
    """Codes of every size, at scales such as weights have."""
    generator = torch.Generator().manual_seed(bits)
    groups = columns // 32
    codes = torch.randint(0, 256, (rows, groups, 4 * bits), generator=generator).to(torch.uint8)
    scale = (torch.rand(rows, groups, generator=generator) / 50).half()
    return Codes(bits, codes, scale, (-scale.float() * 2 ** (bits - 1)).half())


def _codes_are_right() -> bool:
    """Full-scale values too: instructions that saturate do so silently."""
    for bits in (4, 8):
        codes = _trial(50, 96, bits)
        codes.codes[:10] = 255
        product = CodesLinear(codes, None)
        for num_rows in (1, 7):
            x = torch.randn(num_rows, 96, generator=torch.Generator().manual_seed(num_rows))
            x[0] = 3.0
            right = F.linear(x, codes.floats())
            if not torch.allclose(
                product(x), right, rtol=0.02, atol=0.02 * float(right.abs().max())
            ):
                return False
    return True


def _codes_are_fast() -> bool:
    """At a batch of 4, of the matrix sizes of a small model. Half as much again is allowed: they
    take a third of the memory, and a busy machine must not tip the balance."""
    codes = _trial(2048, 768, 4)
    floats = choose_storage(torch.device("cpu"), "fast")
    x = torch.ones(4, 768, dtype=activation_dtype(floats))
    others = (CodesLinear(codes, None), make_linear(codes.floats(), None, floats, x.device))
    return _seconds(others[0], x) < 1.5 * _seconds(others[1], x)


def _seconds(product: Linear, x: torch.Tensor) -> float:
    """The shortest of some calls, after one that compiles or sets up."""
    product(x)
    times = []
    for _ in range(9):
        start = time.perf_counter()
        product(x)
        times.append(time.perf_counter() - start)
    return min(times)


def make_linear(
    weight: torch.Tensor,  # [rows, columns], any floating dtype, on the CPU
    bias: torch.Tensor | None,  # [rows]
    storage: Storage,
    device: torch.device,
) -> Linear:
    """A product of floats."""
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
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """[n] numbers of rows -> [n, columns] float32: an embedding's look-up."""
        return F.embedding(index, self.weight).float()


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
        num_rows, dtype = x.shape[0], x.dtype
        x = x.to(torch.bfloat16)
        padded = padded_rows(num_rows)
        if padded > num_rows:
            x = F.pad(x, (0, 0, 0, padded - num_rows))
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return y[:num_rows].to(dtype)


class CodesLinear:
    """Codes as a GGUF holds them, multiplied by 8-bit activations; see `kernels.cpu.products`."""

    __slots__ = ("_bias", "_fine", "_num_rows", "bits", "num_bytes", "packed")

    def __init__(self, codes: Codes, bias: torch.Tensor | None, fine: bool = False) -> None:
        """`fine`: with 16 bits of an activation."""
        from kernels.cpu.products import pack

        self.bits = codes.bits
        self.packed = pack(codes.codes, codes.scale, codes.least, codes.bits)
        self._num_rows, self._fine = codes.num_rows, fine
        self._bias = None if bias is None else bias.float().contiguous()
        self.num_bytes = self.packed.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from kernels.cpu.products import multiply

        return multiply(x, self.packed, self.bits, self._num_rows, self._bias, fine=self._fine)

    def after_silu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[M, 2 * columns]: silu(gate) * up is computed on the way."""
        from kernels.cpu.products import multiply

        return multiply(gate_up, self.packed, self.bits, self._num_rows, self._bias, gated=True)

    def matrix(self) -> Matrix:
        """The same memory, for `kernels.cpu.layers`."""
        from kernels.cpu.layer_parts import Matrix

        return Matrix(self.packed, self.bits, self._num_rows, self._bias, self._fine)

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """[n] numbers of rows -> [n, columns] float32: a tied embedding's look-up."""
        from kernels.cpu.products import unpack_rows

        return unpack_rows(self.packed, index, self.bits)


def padded_rows(num_rows: int) -> int:
    """Rows that a packed product is computed with: up to 8 as they are, then four sizes for each
    doubling. oneDNN keeps something for every number of rows, shape and matrix that it once saw:
    prompts come in all lengths, and 300 lengths took 306 MiB for three matrices."""
    if num_rows <= 8:
        return num_rows
    step = 1 << (num_rows - 1).bit_length() - 3
    return -(-num_rows // step) * step
