"""GgufWeights: tensors of a checked GGUF file, unpacked to floats, under Hugging Face names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from engine.errors import BadFileError, UnsupportedModelError
from engine.gguf_header import GgufHeader, TensorInfo, read_header
from engine.model.codes import Codes, has_codes, read_codes
from engine.model.config import DecoderConfig
from engine.model.gguf_config import LONG_FACTORS, SHORT_FACTORS, from_gguf
from engine.model.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    Shapes,
    layer_name,
    norm_parts,
    own_name,
    qk_norm_parts,
)

ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd": EMBEDDING.removesuffix(".weight"),
    "output_norm": FINAL_NORM.removesuffix(".weight"),
    "output": HEAD.removesuffix(".weight"),
}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",  # of all heads alike; others: `_named`
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {  # and their places, see `norm_parts`
    "attn_norm": "input",
    "post_attention_norm": "attention_post",
    "ffn_norm": "mlp",
    "post_ffw_norm": "mlp_post",
}
_LAYER_TENSOR = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")
_HEAD_NORMS = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.attn_([qk])_norm\.weight")
_BY_LIBRARY = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS")


def hf_name(gguf_name: str, config: DecoderConfig) -> str:
    """Hugging Face's name of a tensor; a name we do not know stays, and fails the check later."""
    stem, _, kind = gguf_name.rpartition(".")
    if stem in _TOP_NAMES and kind in ("weight", "bias"):
        return own_name(config, f"{_TOP_NAMES[stem]}.{kind}")
    match = _LAYER_TENSOR.fullmatch(gguf_name)
    part = _part(match[2], config) if match else None
    if match is None or part is None:
        return gguf_name
    return own_name(config, layer_name(int(match[1]), f"{part}.{match[3]}"))


def _part(gguf_part: str, config: DecoderConfig) -> str | None:
    """Llama's name of a part of a layer."""
    if gguf_part in _NORMS:
        return norm_parts(config).get(_NORMS[gguf_part])
    if gguf_part == "ffn_up" and config.fused_gate_up:
        return "mlp.gate_up_proj"
    return _PARTS.get(gguf_part)


@dataclass(frozen=True, slots=True)
class GgufWeights:
    """A WeightSource. `factors` are the divisors of the rotary frequencies, if the file has any."""

    path: Path
    header: GgufHeader
    config: DecoderConfig
    shapes: Shapes
    infos: dict[str, TensorInfo]
    factors: torch.Tensor | None

    @property
    def name(self) -> str:
        return self.path.name

    def load(self, name: str) -> torch.Tensor:
        """The tensor in fp32, Q and K rows in Hugging Face's order.

        Raises:
            BadFileError: the file became shorter since it was checked.
        """
        values = unpack(_read(self.path, self.infos[name]), self.infos[name])
        order = self._order(name)
        return values if order is None else values[order]

    def load_codes(self, name: str) -> Codes | None:
        """As the protocol says; raises as `load`."""
        info = self.infos[name]
        if not has_codes(info.ggml_type, info.shape):
            return None
        data = torch.from_numpy(_read(self.path, info))
        codes, order = read_codes(data, info.ggml_type, info.shape), self._order(name)
        return codes if codes is None or order is None else codes.rows(order)

    def _order(self, name: str) -> torch.Tensor | None:
        """The file's rows in Hugging Face's order, where that is another."""
        config = self.config
        if not config.permuted_qk or not (".q_proj." in name or ".k_proj." in name):
            return None
        num_heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
        return _unpermuted(torch.arange(self.shapes[name][0]), num_heads, config.rotary_dim)


def open_gguf(path: Path) -> GgufWeights:
    """Check a GGUF file; no weight is read yet.

    Raises:
        BadFileError, UnsupportedModelError: as the sentence says.
    """
    header = read_header(path)
    if not header.tensors:
        raise BadFileError(f"{path.name} holds no weights, only a vocabulary: choose a whole model")
    shapes = {name: info.shape for name, info in header.tensors.items()}
    config = from_gguf(header.metadata, shapes, path.name)
    for info in header.tensors.values():
        if info.ggml_type not in _UNPACKERS and info.ggml_type not in _BY_LIBRARY:
            raise UnsupportedModelError(
                f"{path.name} stores {info.name} as {info.ggml_type}, which this version cannot "
                "unpack: choose another quantisation, such as Q4_K_M or Q8_0"
            )
    tensors = dict(header.tensors)
    factors = _rope_factors(path, tensors, config)
    infos: dict[str, TensorInfo] = {}
    for info in tensors.values():
        for name, part in _named(info, config):
            if infos.setdefault(name, part) is not part:
                raise BadFileError(f"{path.name} holds {name[:80]} under two names: fetch it again")
    shapes = {name: info.shape for name, info in infos.items()}
    return GgufWeights(path, header, config, shapes, infos, factors)


def _named(info: TensorInfo, config: DecoderConfig) -> list[tuple[str, TensorInfo]]:
    """The tensor under Hugging Face's name, or its rows where each head has a norm of its own."""
    match = _HEAD_NORMS.fullmatch(info.name)
    if match is None or config.qk_norm_over != "heads":
        return [(hf_name(info.name, config), info)]
    parts = qk_norm_parts(config, match[2])
    if len(info.shape) != 2 or info.shape[0] != len(parts):
        return [(info.name, info)]  # the check will say so
    row_bytes = info.num_bytes // len(parts)
    return [
        (
            layer_name(int(match[1]), f"{part}.weight"),
            replace(
                info,
                shape=info.shape[1:],
                offset=info.offset + row * row_bytes,
                num_bytes=row_bytes,
            ),
        )
        for row, part in enumerate(parts)
    ]


def _rope_factors(
    path: Path, tensors: dict[str, TensorInfo], config: DecoderConfig
) -> torch.Tensor | None:
    """Take the tensors that belong to the rotary positions out of `tensors`, and read ours."""
    names = [ROPE_FACTORS]
    if config.rope_scaling.kind == "longrope":  # the long ones are for contexts that we do not run
        names = [SHORT_FACTORS, LONG_FACTORS]
    found = {name: tensors.pop(name) for name in names if name in tensors}
    read = {name: _factors(path, info, config.rotary_dim) for name, info in found.items()}
    return read.get(names[0])


def _factors(path: Path, info: TensorInfo, rotary_dim: int) -> torch.Tensor:
    if info.shape == (rotary_dim // 2,):
        factors = unpack(_read(path, info), info)
        if bool((factors > 0).all()) and bool(factors.isfinite().all()):
            return factors
    raise BadFileError(f"{path.name} holds a damaged {info.name}: fetch it again")


def _read(path: Path, info: TensorInfo) -> np.ndarray:
    """The tensor's bytes. Read, not mapped: a file that shrinks meanwhile must not kill us."""
    data = np.empty(info.num_bytes, np.uint8)
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(info.offset)
            view = data.data
            while view:
                count = file.readinto(view)
                if not count:
                    raise BadFileError(f"{path.name} became shorter while it was read: try again")
                view = view[count:]
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadFileError(f"{path.name} cannot be read ({reason}): check the disk") from error
    return data


# --- unpacking ----------------------------------------------------------------------------------


def unpack(data: np.ndarray, info: TensorInfo) -> torch.Tensor:
    """[num_bytes] uint8 -> fp32 in the tensor's shape, equal to the gguf package bit for bit."""
    if info.ggml_type in _UNPACKERS:
        return _UNPACKERS[info.ggml_type](torch.from_numpy(data)).reshape(info.shape)
    # Imported here: rare types only, and the import takes a tenth of a second.
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    rows = data.reshape(info.shape[0] if len(info.shape) > 1 else 1, -1)
    values = dequantize(rows, GGMLQuantizationType[info.ggml_type])
    return torch.from_numpy(np.ascontiguousarray(values)).reshape(info.shape)


def _halves(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The fp16 number at byte `at` of every block, [num_blocks, 1] fp32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[num_blocks, 16] bytes -> [num_blocks, 32]: low halves first, then high halves."""
    return torch.cat((packed & 15, packed >> 4), 1).float()


def _q8_0(data: torch.Tensor) -> torch.Tensor:
    blocks = data.view(-1, 34)  # fp16 scale, 32 signed bytes
    return blocks[:, 2:].contiguous().view(torch.int8).float().mul_(_halves(blocks, 0))


def _q4_0(data: torch.Tensor) -> torch.Tensor:
    blocks = data.view(-1, 18)  # fp16 scale, 32 nibbles around 8
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(_halves(blocks, 0))


def _q4_1(data: torch.Tensor) -> torch.Tensor:
    blocks = data.view(-1, 20)  # fp16 scale, fp16 minimum, 32 nibbles
    return _nibbles(blocks[:, 4:]).mul_(_halves(blocks, 0)).add_(_halves(blocks, 2))


_UNPACKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F32": lambda data: data.view(torch.float32),
    "F16": lambda data: data.view(torch.float16).float(),
    "BF16": lambda data: data.view(torch.bfloat16).float(),
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
}


def _unpermuted(values: torch.Tensor, num_heads: int, rotary_dim: int) -> torch.Tensor:
    """GGUF pairs neighbours for rotary, Hugging Face the halves of the part that is turned."""
    heads = values.view(num_heads, -1, *values.shape[1:])  # [heads, D, ...]
    turned, rest = heads[:, :rotary_dim], heads[:, rotary_dim:]
    halves = torch.cat((turned[:, 0::2], turned[:, 1::2], rest), 1)
    return halves.reshape(values.shape)
