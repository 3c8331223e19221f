"""Codes: a matrix as a GGUF file quantises it, so that it need not be turned into floats.

A weight is scale * code + minimum, 32 codes of a row with one scale and one minimum in float16.
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL are held exactly. K-quants have scales of their own
scales; the products are rounded to float16 (2**-11). Q6_K has a scale for 16 weights: those of 32
are joined in bytes, which rounds at a quarter of its own steps or less.

Layouts: the format's reference, ggml-common.h and the `gguf` package of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.footprint import CODE_GROUP

_BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "IQ4_NL": 18,
    "Q4_K": 144, "Q5_K": 176, "Q6_K": 210,
}  # fmt: skip
_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of a matrix.

    Attributes:
        bits: 4 or 8, of a code.
        codes: [rows, groups, 4 * bits] uint8; of 4 bits two to a byte, i and i + 16.
        scale, least: [rows, groups] float16.
    """

    bits: int
    codes: torch.Tensor
    scale: torch.Tensor
    least: torch.Tensor

    @property
    def num_rows(self) -> int:
        return len(self.codes)

    def rows(self, index: torch.Tensor) -> Codes:
        """Some rows, or all in another order."""
        return Codes(self.bits, self.codes[index], self.scale[index], self.least[index])

    def wide(self) -> Codes:
        """The same in 8 bits."""
        if self.bits == 8:
            return self
        return Codes(8, torch.cat((self.codes & 15, self.codes >> 4), 2), self.scale, self.least)

    def floats(self) -> torch.Tensor:
        """[rows, columns] float32."""
        values = self.wide().codes.float()
        scale, least = (x.float().unsqueeze(-1) for x in (self.scale, self.least))
        return torch.addcmul(least, values, scale).flatten(1)


def join(parts: list[Codes]) -> Codes:
    """All rows of several matrices; in 8 bits where they differ."""
    if len({part.bits for part in parts}) > 1:
        parts = [part.wide() for part in parts]
    names = ("codes", "scale", "least")
    return Codes(parts[0].bits, *(torch.cat([getattr(p, name) for p in parts]) for name in names))


def has_codes(ggml_type: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor can be held as codes."""
    return ggml_type in _READERS and len(shape) == 2 and shape[1] % CODE_GROUP == 0


def read_codes(data: torch.Tensor, ggml_type: str, shape: tuple[int, ...]) -> Codes | None:
    """A tensor's bytes [num_bytes] uint8 -> codes; None where float16 cannot hold its scales."""
    blocks = data.view(-1, _BLOCK_BYTES[ggml_type])
    bits, codes, scale, least = _READERS[ggml_type](blocks)
    rows = shape[0]
    halves = [x.reshape(rows, -1).half() for x in (scale, least)]
    if not all(bool(x.isfinite().all()) for x in halves):
        return None
    return Codes(bits, codes.reshape(rows, -1, 4 * bits), *halves)


# --- formats --------------------------------------------------------------------------------------

_Parts = tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]  # bits, codes, scale, least


def _half(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 number at byte `at` of every block, [num_blocks, 1] fp32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes -> [..., 2 n]: low halves first, then high halves."""
    return torch.cat((packed & 15, packed >> 4), -1)


def _fifth_bits(packed: torch.Tensor) -> torch.Tensor:
    """[n, 4] bytes -> [n, 32], 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1) << 4


def _q4_0(blocks: torch.Tensor) -> _Parts:
    scale = _half(blocks, 0)
    return 4, blocks[:, 2:], scale, scale * -8


def _q4_1(blocks: torch.Tensor) -> _Parts:
    return 4, blocks[:, 4:], _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> _Parts:
    scale = _half(blocks, 0)
    return 8, _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), scale, scale * -16


def _q5_1(blocks: torch.Tensor) -> _Parts:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return 8, codes, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> _Parts:
    scale = _half(blocks, 0)
    return 8, blocks[:, 2:] ^ 128, scale, scale * -128


def _iq4_nl(blocks: torch.Tensor) -> _Parts:
    table = torch.tensor([value + 128 for value in _IQ4_NL], dtype=torch.uint8)
    scale = _half(blocks, 0)
    return 8, table[_nibbles(blocks[:, 2:]).int()], scale, scale * -128


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minima of the 8 groups of a super-block, [num_blocks, 8] fp32 each."""
    packed = blocks[:, 4:16].int()
    low, high, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = torch.cat((low & 63, (rest & 15) | (low >> 6) << 4), 1)
    least = torch.cat((high & 63, (rest >> 4) | (high >> 6) << 4), 1)
    return _half(blocks, 0) * scale, _half(blocks, 2) * least


def _q4_k(blocks: torch.Tensor) -> _Parts:
    scale, least = _k_scales(blocks)
    pairs = blocks[:, 16:].view(-1, 4, 32)  # two groups in the halves of 32 bytes
    codes = torch.stack((pairs & 15, pairs >> 4), 2).view(-1, 32)
    return 4, codes[:, :16] | codes[:, 16:] << 4, scale, -least


def _q5_k(blocks: torch.Tensor) -> _Parts:
    scale, least = _k_scales(blocks)
    pairs = blocks[:, 48:].view(-1, 4, 32)
    codes = torch.stack((pairs & 15, pairs >> 4), 2).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    fifth = (blocks[:, 16:48].unsqueeze(1) >> shifts) & 1
    return 8, codes | fifth << 4, scale, -least


def _q6_k(blocks: torch.Tensor) -> _Parts:
    low, high = blocks[:, :128].view(-1, 2, 64), blocks[:, 128:192].view(-1, 2, 1, 32)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    low = torch.cat((low & 15, low >> 4), -1).view(-1, 2, 4, 32)
    codes = (low | (high >> shifts & 3) << 4).view(-1, 8, 2, 16).int() - 32
    factors = blocks[:, 192:208].contiguous().view(torch.int8).view(-1, 8, 2, 1).int()
    values = (codes * factors).view(-1, 8, 32).float()  # -4,096 to 4,096
    step = values.abs().amax(-1, keepdim=True).clamp(min=1) / 127
    codes = (values / step).round_().add_(128).to(torch.uint8)
    scale = _half(blocks, 208) * step.squeeze(-1)
    return 8, codes, scale, scale * -128


_READERS: dict[str, Callable[[torch.Tensor], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
