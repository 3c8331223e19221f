"""Decoder: the fast path, one decoder-only transformer over the paged pool, driven by config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.batch import Batch
from engine.model.config import DecoderConfig
from engine.model.layout import EMBEDDING, FINAL_NORM, HEAD, WeightSource, layer_name
from engine.model.linear import Linear, Storage, activation_dtype, make_linear
from engine.model.rope import RopeTable, inverse_frequencies
from kernels.dispatch import Ops


class Cache(Protocol):
    """K and V of every layer, [num_blocks, block_tokens, Hkv, D] each."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # hidden -> (Hq + 2 * Hkv) * D
    q_norm: torch.Tensor | None  # [D]
    k_norm: torch.Tensor | None
    output: Linear  # Hq * D -> hidden
    mlp_norm: torch.Tensor
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden
    window: int
    rope: bool


@dataclass(frozen=True, slots=True)
class _Step:
    """What every layer of one step needs."""

    batch: Batch
    cos: torch.Tensor  # [T, rotary_dim]
    sin: torch.Tensor
    prefill_cu: torch.Tensor  # [num_prefills + 1] int32, of the rows after the decode rows


class Decoder:
    """Weights of one model and the forward pass over them. Holds no sequence, no cache."""

    def __init__(
        self,
        source: WeightSource,
        config: DecoderConfig,
        ops: Ops,
        storage: Storage,
        device: torch.device,
        rope_factors: torch.Tensor | None = None,
        progress: Callable[[float], None] = lambda fraction: None,
    ) -> None:
        """Read every weight of `source`, whose tensors were checked against `config`."""
        self.config = config
        self.ops = ops
        self.storage: Storage = storage
        self._dtype = activation_dtype(storage)
        self._device = device
        frequencies = inverse_frequencies(
            config.rotary_dim, config.rope_theta, config.rope_scaling, rope_factors
        )
        self._rope = RopeTable(frequencies, device)
        embedding = source.load(EMBEDDING)
        self._embedding = embedding.to(device=device, dtype=self._dtype)
        head = embedding if config.tied_head else source.load(HEAD)
        self._head = self._make_head(head)
        self._final_norm = self._vector(source, FINAL_NORM)
        self._layers = []
        for index in range(config.num_layers):
            progress((index + 1) / (config.num_layers + 1))
            self._layers.append(self._load_layer(source, index))

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors held; a tied head that is packed counts beside its embedding."""
        total = self._embedding.nbytes + self._final_norm.nbytes
        shared = getattr(self._head, "weight", None) is self._embedding
        total += 0 if shared else self._head.num_bytes
        for layer in self._layers:
            for part in (layer.qkv, layer.output, layer.gate_up, layer.down):
                total += part.num_bytes
            for norm in (layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm):
                total += 0 if norm is None else norm.nbytes
        return total

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        """Run one step: K and V of the new tokens go to their slots; logits [L, vocab] fp32."""
        step = self._step(batch)
        # The running sum stays fp32 in every mode: a bf16 sum loses what 60 parts add to it.
        residual = F.embedding(batch.token_ids, self._embedding).float()  # [T, hidden]
        first = self._layers[0].input_norm
        x = self.ops.rms_norm(residual, first, self.config.norm_eps).to(self._dtype)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            x = self._attention(layer, x, step, cache.k[index], cache.v[index])
            if index == last:  # only the rows whose logits are wanted go on
                x, residual = x[batch.logit_rows], residual[batch.logit_rows]
            next_norm = self._final_norm if index == last else self._layers[index + 1].input_norm
            x, residual = self._rest(layer, x, residual, next_norm)
        return self._logits(x)

    # --- the step -------------------------------------------------------------------------------

    def _step(self, batch: Batch) -> _Step:
        cos, sin = self._rope.at(batch.positions, batch.max_context)
        decodes = batch.num_decodes
        return _Step(batch, cos, sin, batch.cu_seqlens_q[decodes:] - decodes)

    def _attention(
        self,
        layer: _Layer,
        x: torch.Tensor,  # [T, hidden]
        step: _Step,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> torch.Tensor:  # [T, Hq * D]
        config, ops = self.config, self.ops
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        qkv = layer.qkv(x).unflatten(-1, (-1, config.head_dim))  # [T, Hq + 2 * Hkv, D]
        q, k, v = qkv.split(heads, 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = ops.rms_norm(q, layer.q_norm, config.norm_eps)
            k = ops.rms_norm(k, layer.k_norm, config.norm_eps)
        if layer.rope:
            ops.rotary(q, k, step.cos, step.sin)
        ops.store_kv(k, v, k_pool, v_pool, step.batch.slots)
        return self._read(layer, q, step, k_pool, v_pool).flatten(1)

    def _read(
        self,
        layer: _Layer,
        q: torch.Tensor,  # [T, Hq, D]
        step: _Step,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> torch.Tensor:  # [T, Hq, D]
        batch, scale, n = step.batch, self.config.scale, step.batch.num_decodes
        parts = []
        if n:
            tables, lens = batch.block_tables[:n], batch.context_lens[:n]
            out = self.ops.paged_decode(q[:n], k_pool, v_pool, tables, lens, scale, layer.window)
            parts.append(out)
        if n < batch.num_seqs:
            tables, lens = batch.block_tables[n:], batch.context_lens[n:]
            out = self.ops.paged_prefill(
                q[n:], k_pool, v_pool, tables, step.prefill_cu, lens, scale, layer.window
            )
            parts.append(out)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rest(
        self, layer: _Layer, x: torch.Tensor, residual: torch.Tensor, next_norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output projection and MLP; the result is normed for what comes next."""
        eps = self.config.norm_eps
        x, residual = self.ops.add_rms_norm(layer.output(x), residual, layer.mlp_norm, eps)
        x = layer.down(self.ops.silu_mul(layer.gate_up(x)))
        return self.ops.add_rms_norm(x, residual, next_norm, eps)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        if not x.shape[0]:  # no prompt of this step is read to its end
            return torch.empty(0, self.config.vocab_size, device=x.device)
        return self._head(x).float()

    # --- loading --------------------------------------------------------------------------------

    def _load_layer(self, source: WeightSource, index: int) -> _Layer:
        config = self.config

        def vector(part: str, wanted: bool = True) -> torch.Tensor | None:
            return self._vector(source, layer_name(index, f"{part}.weight")) if wanted else None

        def linear(parts: tuple[str, ...], bias: bool) -> Linear:
            return self._linear(source, [layer_name(index, part) for part in parts], bias)

        qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        input_norm, mlp_norm = vector("input_layernorm"), vector("post_attention_layernorm")
        assert input_norm is not None
        assert mlp_norm is not None
        return _Layer(
            input_norm=input_norm,
            qkv=linear(qkv, config.qkv_bias),
            q_norm=vector("self_attn.q_norm", config.qk_norm),
            k_norm=vector("self_attn.k_norm", config.qk_norm),
            output=linear(("self_attn.o_proj",), config.output_bias),
            mlp_norm=mlp_norm,
            gate_up=linear(("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias),
            down=linear(("mlp.down_proj",), config.mlp_bias),
            window=config.windows[index],
            rope=config.rope_layers[index],
        )

    def _linear(self, source: WeightSource, names: list[str], bias: bool) -> Linear:
        """One product for several matrices that multiply the same x, joined by rows."""
        weight = torch.cat([source.load(f"{name}.weight").to(self._dtype) for name in names])
        joined = torch.cat([source.load(f"{name}.bias") for name in names]) if bias else None
        return make_linear(weight, joined, self.storage, self._device)

    def _make_head(self, weight: torch.Tensor) -> Linear:
        if self.config.tied_head and self.storage != "bf16 packed":
            weight = self._embedding  # the same memory
        return make_linear(weight, None, self.storage, self._device)

    def _vector(self, source: WeightSource, name: str) -> torch.Tensor:
        return source.load(name).to(device=self._device, dtype=torch.float32)
