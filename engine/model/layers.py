"""Layer: the weights of one decoder layer as the forward pass wants them, and how they are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.model.codes import Codes, join
from engine.model.config import DecoderConfig
from engine.model.layout import (
    WeightSource,
    layer_name,
    norm_parts,
    qk_norm_parts,
    stored_name,
)
from engine.model.linear import CodesLinear, Linear, Storage, activation_dtype, make_linear
from engine.model.mixture import Mixture
from kernels.dispatch import Ops


class Norm(Protocol):
    """One norm with its weights."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Over the last axis, in x's dtype."""

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm(x + residual) in x's dtype, x + residual)"""


@dataclass(frozen=True, slots=True)
class RmsNorm:
    ops: Ops
    weight: torch.Tensor  # [width]
    eps: float

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class LayerNorm:
    ops: Ops
    weight: torch.Tensor  # [width], or [heads, width] over heads
    bias: torch.Tensor | None
    eps: float

    @property
    def num_bytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class RowNorm:
    """RMS norm over all heads of a row at once: x [T, heads, D]."""

    norm: RmsNorm

    @property
    def num_bytes(self) -> int:
        return self.norm.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.flatten(1)).unflatten(1, x.shape[1:])


class HeadNorm(Protocol):
    """A norm of Q or K, [T, heads, D]."""

    @property
    def num_bytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Mlp:
    up: Linear  # hidden -> intermediate, twice that where it is gated
    activate: Callable[[torch.Tensor], torch.Tensor] | None  # None = `down` does it
    down: Linear

    @property
    def num_bytes(self) -> int:
        return self.up.num_bytes + self.down.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.activate is None:
            assert isinstance(self.down, CodesLinear)
            return self.down.after_silu(self.up(x))
        return self.down(self.activate(self.up(x)))


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. A norm that is None is not part of this model."""

    input_norm: Norm | None
    qkv: Linear  # hidden -> (Hq + 2 * Hkv) * D
    q_norm: HeadNorm | None
    k_norm: HeadNorm | None
    output: Linear  # Hq * D -> hidden
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    mlp: Mlp | Mixture
    mlp_post_norm: Norm | None
    window: int
    rope: int | None  # which of the model's ropes; None = no positions

    @property
    def num_bytes(self) -> int:
        norms = (self.input_norm, self.attention_post_norm, self.mlp_norm, self.mlp_post_norm)
        parts = (*norms, self.q_norm, self.k_norm, self.qkv, self.output, self.mlp)
        return sum(part.num_bytes for part in parts if part is not None)


class LayerReader:
    """Reads norms, products and whole layers of one model by Llama's names."""

    def __init__(
        self,
        source: WeightSource,
        config: DecoderConfig,
        ops: Ops,
        storage: Storage,
        device: torch.device,
        keeps_codes: bool = False,
    ) -> None:
        self._source = source
        self._keeps_codes = keeps_codes
        self._config = config
        self._ops = ops
        self._storage: Storage = storage
        self._device = device

    def load(self, name: str) -> torch.Tensor:
        """The tensor by Llama's name."""
        return self._source.load(stored_name(self._config, name, self._source.shapes))

    def codes(self, names: list[str]) -> Codes | None:
        """Matrices by Llama's names, joined by rows, as codes; None where one has to be floats."""
        if not self._keeps_codes:
            return None
        parts = []
        for name in names:
            stored = stored_name(self._config, name, self._source.shapes)
            codes = self._source.load_codes(stored)
            if codes is None:
                return None
            parts.append(codes)
        return join(parts)

    def norm(self, stem: str) -> Norm:
        config = self._config
        weight = self._vector(f"{stem}.weight")
        if config.norm == "rms":
            return RmsNorm(self._ops, weight + config.norm_offset, config.norm_eps)
        bias = self._vector(f"{stem}.bias") if config.norm_bias else None
        return LayerNorm(self._ops, weight, bias, config.norm_eps)

    def layer(self, index: int) -> Layer:
        config = self._config
        places = norm_parts(config)

        def norm(place: str) -> Norm | None:
            return self.norm(layer_name(index, places[place])) if place in places else None

        rope = 1 if config.local_rope and config.windows[index] else 0
        return Layer(
            input_norm=norm("input"),
            qkv=self._qkv(index),
            q_norm=self._qk_norm(index, "q"),
            k_norm=self._qk_norm(index, "k"),
            output=self._linear(index, ["self_attn.o_proj"], config.output_bias),
            attention_post_norm=norm("attention_post"),
            mlp_norm=norm("mlp"),
            mlp=self._mixture(index) if self._is_mixed(index) else self._mlp(index, "mlp"),
            mlp_post_norm=norm("mlp_post"),
            window=config.windows[index],
            rope=rope if config.rope_layers[index] else None,
        )

    def _qk_norm(self, index: int, which: str) -> HeadNorm | None:
        config = self._config
        parts = qk_norm_parts(config, which)
        if not parts:
            return None
        weights = [self._vector(layer_name(index, f"{part}.weight")) for part in parts]
        if config.qk_norm_over == "heads":
            return LayerNorm(self._ops, torch.stack(weights), None, config.norm_eps)
        norm = RmsNorm(self._ops, weights[0] + config.norm_offset, config.norm_eps)
        return RowNorm(norm) if config.qk_norm_over == "row" else norm

    def _is_mixed(self, index: int) -> bool:
        experts = self._config.experts
        return experts is not None and experts.layers[index]

    def _mixture(self, index: int) -> Mixture:
        experts = self._config.experts
        assert experts is not None
        return Mixture(
            self._vector(layer_name(index, "mlp.gate.weight")),
            tuple(self._mlp(index, f"mlp.experts.{i}") for i in range(experts.num_experts)),
            experts.num_chosen,
            experts.normalised,
        )

    def _mlp(self, index: int, part: str) -> Mlp:
        config, ops = self._config, self._ops
        names = [f"{part}.gate_proj", f"{part}.up_proj"] if config.gated else [f"{part}.up_proj"]
        names = [f"{part}.gate_up_proj"] if config.fused_gate_up else names
        activate: Callable[[torch.Tensor], torch.Tensor] = ops.silu_mul
        if not config.gated:
            activate = functools.partial(ops.act, kind=config.activation)
        elif config.activation != "silu":
            activate = functools.partial(ops.act_mul, kind=config.activation)
        up = self._linear(index, names, config.mlp_bias)
        down = self._linear(index, [f"{part}.down_proj"], config.mlp_bias)
        if isinstance(down, CodesLinear) and activate == ops.silu_mul:
            return Mlp(up, None, down)
        return Mlp(up, activate, down)

    def _qkv(self, index: int) -> Linear:
        config = self._config
        names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
        names = ["self_attn.qkv_proj"] if config.fused_qkv else names
        reorder = None
        if config.fused_qkv == "groups":
            reorder = functools.partial(_ungrouped, config)
        elif config.interleaved_rope:
            reorder = functools.partial(_pairs_to_halves, config)
        return self._linear(index, names, config.qkv_bias, reorder, fine=True)

    def _linear(
        self,
        index: int,
        parts: list[str],
        bias: bool,
        reorder: Callable[[torch.Tensor], torch.Tensor] | None = None,
        fine: bool = False,
    ) -> Linear:
        """One product for several matrices that multiply the same x, joined by rows; where they are
        codes, with 16 bits of an activation if it is `fine`."""
        dtype = activation_dtype(self._storage)
        names = [layer_name(index, part) for part in parts]
        joined = torch.cat([self.load(f"{name}.bias") for name in names]) if bias else None
        if reorder is not None and joined is not None:
            joined = reorder(joined)
        codes = self.codes([f"{name}.weight" for name in names])
        if codes is not None:
            if reorder is not None:
                codes = codes.rows(reorder(torch.arange(codes.num_rows)))
            return CodesLinear(codes, joined, fine)
        weight = torch.cat([self.load(f"{name}.weight").to(dtype) for name in names])
        weight = weight if reorder is None else reorder(weight)
        return make_linear(weight, joined, self._storage, self._device)

    def _vector(self, name: str) -> torch.Tensor:
        return self.load(name).to(device=self._device, dtype=torch.float32)


def _ungrouped(config: DecoderConfig, rows: torch.Tensor) -> torch.Tensor:
    """Rows of Q, K and V that lie together for each KV head -> all of Q, then K, then V."""
    group = config.num_heads // config.num_kv_heads
    heads = rows.view(config.num_kv_heads, group + 2, config.head_dim, *rows.shape[1:])
    return torch.cat(
        [part.reshape(-1, *rows.shape[1:]) for part in heads.split((group, 1, 1), dim=1)]
    )


def _pairs_to_halves(config: DecoderConfig, rows: torch.Tensor) -> torch.Tensor:
    """Rows of Q and K such that turning halves equals turning neighbours: a dot product of heads
    does not hang on the order of their values."""
    turned = config.num_heads + config.num_kv_heads
    heads = rows.view(turned + config.num_kv_heads, config.head_dim, *rows.shape[1:]).clone()
    dim = config.rotary_dim
    pairs = heads[:turned, :dim].clone()
    heads[:turned, :dim] = torch.cat((pairs[:, 0::2], pairs[:, 1::2]), 1)
    return heads.reshape(rows.shape)
