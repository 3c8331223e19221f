"""Decoder: the fast path, one decoder-only transformer over the paged pool, driven by config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from engine.batch import Batch
from engine.layer_groups import group_layers, layer_places
from engine.model.alibi import alibi_of
from engine.model.config import DecoderConfig
from engine.model.layers import Layer, LayerReader, Norm
from engine.model.layout import EMBEDDING, EMBEDDING_NORM, FINAL_NORM, HEAD, WeightSource
from engine.model.linear import (
    CodesLinear,
    Linear,
    PlainLinear,
    Storage,
    activation_dtype,
    make_linear,
)
from engine.model.program import make_program
from engine.model.rope import Rope, RopeScaling, inverse_frequencies
from kernels.dispatch import Ops

if TYPE_CHECKING:
    from kernels.cpu.layer_parts import Run
    from kernels.cpu.layers import LayerProgram


class Cache(Protocol):
    """K and V of as many layers as a block holds, [num_blocks, block_tokens, Hkv, D] each."""

    k: list[torch.Tensor]
    v: list[torch.Tensor]


class Embedding(Protocol):
    """Token ids [n] -> rows [n, hidden] fp32."""

    @property
    def num_bytes(self) -> int: ...

    def rows(self, index: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """What every layer of one step needs."""

    batch: Batch
    turns: list[tuple[torch.Tensor, torch.Tensor]]  # (cos, sin) of each rope, [T, rotary_dim]
    prefill_cu: torch.Tensor  # [num_prefills + 1] int32, of the rows after the decode rows


@dataclass(slots=True)
class Pass:
    """A forward pass that stands between two layers."""

    step: _Step
    x: torch.Tensor  # what the next layer reads, [T, hidden]
    residual: torch.Tensor  # [T, hidden] fp32
    next_layer: int = 0
    logits: torch.Tensor | None = None  # [L, vocab] fp32, after the last layer
    run: Run | None = None  # where the layers are one program, which has x for itself


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
        keeps_codes: bool = False,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        """Read every weight of `source`, whose tensors were checked against `config`.

        Args:
            storage: of matrices that are floats.
            keeps_codes: whether those that the file quantises stay as they are.
        """
        self.config = config
        self.ops = ops
        self.storage: Storage = storage
        self._dtype = activation_dtype(storage, keeps_codes)
        self._device = device
        places = layer_places(group_layers(config.windows))
        self._places = [places[index] for index in range(config.num_layers)]
        alibi = alibi_of(config, device)
        # Sinks, slopes and their scale, as the attention ops take them.
        self._biases = () if alibi is None else (None, alibi.slopes, alibi.scale)
        self._ropes: list[Rope] = []
        if alibi is None:
            self._ropes.append(self._rope(config.rope_theta, config.rope_scaling, rope_factors))
        if config.local_rope is not None:
            self._ropes.append(self._rope(*config.local_rope, None))
        reader = LayerReader(source, config, ops, storage, device, keeps_codes)
        self._embedding, self._head = self._read_ends(reader)
        self._embedding_norm: Norm | None = None
        if config.embedding_norm:
            self._embedding_norm = reader.norm(EMBEDDING_NORM.removesuffix(".weight"))
        self._final_norm = reader.norm(FINAL_NORM.removesuffix(".weight"))
        self._layers: list[Layer] = []
        for index in range(config.num_layers):
            self._layers.append(reader.layer(index))
        self._program: LayerProgram | None = None
        if keeps_codes and ops.backend == "cpu":
            self._program = make_program(config, self._layers, self._final_norm, kv_dtype)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors held; a tied head that is packed counts beside its embedding."""
        ends = {id(end): end.num_bytes for end in (self._embedding, self._head)}
        total = sum(ends.values()) + self._final_norm.num_bytes
        total += 0 if self._embedding_norm is None else self._embedding_norm.num_bytes
        return total + sum(layer.num_bytes for layer in self._layers)

    @property
    def stored_as(self) -> str:
        """How the products of a layer hold their weights, for people."""
        output = self._layers[0].output
        return f"{output.bits}-bit" if isinstance(output, CodesLinear) else self.storage

    @property
    def is_program(self) -> bool:
        """Whether the layers are one program of compiled operations."""
        return self._program is not None

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        """Run one step: K and V of the new tokens go to their slots; logits [L, vocab] fp32."""
        run = self.begin(batch)
        self._advance(run, cache, self.num_layers)
        assert run.logits is not None
        return run.logits

    @torch.inference_mode()
    def begin(self, batch: Batch) -> Pass:
        """A forward pass before its first layer."""
        # The running sum stays fp32 in every mode: a bf16 sum loses what 60 parts add to it.
        residual = self._embedding.rows(batch.token_ids)  # [T, hidden]
        if self.config.embedding_scale != 1.0:
            residual = residual * self.config.embedding_scale
        if self._embedding_norm is not None:
            residual = self._embedding_norm(residual)
        step = self._step(batch)
        if self._program is not None:
            starts, contexts = batch.cu_seqlens_q.tolist(), batch.context_lens.tolist()
            run = self._program.begin(
                residual, batch.num_decodes, starts, contexts, batch.slots, batch.block_tables,
                step.turns,
            )  # fmt: skip
            return Pass(step, residual, residual, run=run)
        x = self._normed(residual, self._layers[0].input_norm)
        return Pass(step, x, residual)

    def advance(self, run: Pass, cache: Cache) -> None:
        """Compute one layer; after the last one, the logits."""
        self._advance(run, cache, 1)

    @torch.inference_mode()
    def _advance(self, run: Pass, cache: Cache, num_layers: int) -> None:
        if self._program is None or run.run is None:
            for _ in range(num_layers):
                self._advance_one(run, cache)
            return
        places = [place for _, place in self._places]
        k_pools, v_pools = [cache.k[p] for p in places], [cache.v[p] for p in places]
        wanted: torch.Tensor | None = run.step.batch.logit_rows
        if wanted is not None and len(wanted) == run.step.batch.num_tokens:
            wanted = None  # every row is one
        first, run.next_layer = run.next_layer, run.next_layer + num_layers
        normed = self._program.advance(run.run, k_pools, v_pools, first, run.next_layer, wanted)
        if normed is not None:
            run.logits = self._logits(normed)

    def _advance_one(self, run: Pass, cache: Cache) -> None:
        index, last = run.next_layer, len(self._layers) - 1
        layer, batch = self._layers[index], run.step.batch
        place = self._places[index][1]
        x, residual = run.x, run.residual
        attended = self._attention(layer, x, run.step, index, cache.k[place], cache.v[place])
        if index == last:  # only the rows whose logits are wanted go on
            attended, residual = attended[batch.logit_rows], residual[batch.logit_rows]
            x = x[batch.logit_rows] if self.config.parallel else x
        next_norm = self._final_norm if index == last else self._layers[index + 1].input_norm
        run.x, run.residual = self._rest(layer, attended, x, residual, next_norm)
        run.next_layer += 1
        if index == last:
            run.logits = self._logits(run.x)

    # --- the step -------------------------------------------------------------------------------

    def _step(self, batch: Batch) -> _Step:
        turns = [rope.at(batch.positions) for rope in self._ropes]
        decodes = batch.num_decodes
        return _Step(batch, turns, batch.cu_seqlens_q[decodes:] - decodes)

    def _attention(
        self,
        layer: Layer,
        x: torch.Tensor,  # [T, hidden]
        step: _Step,
        index: int,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> torch.Tensor:  # [T, Hq * D]
        config, ops = self.config, self.ops
        heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        qkv = layer.qkv(x).unflatten(-1, (-1, config.head_dim))  # [T, Hq + 2 * Hkv, D]
        q, k, v = qkv.split(heads, 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = layer.q_norm(q), layer.k_norm(k)
        group = self._places[index][0]
        slots = step.batch.slots[group]
        if layer.rope is not None:
            ops.turn_and_store(q, k, v, *step.turns[layer.rope], k_pool, v_pool, slots)
        else:
            ops.store_kv(k, v, k_pool, v_pool, slots)
        tables = step.batch.block_tables[group]
        return self._read(layer, q, step, tables, k_pool, v_pool).flatten(1)

    def _read(
        self,
        layer: Layer,
        q: torch.Tensor,  # [T, Hq, D]
        step: _Step,
        block_tables: torch.Tensor,  # [S, max_blocks]
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> torch.Tensor:  # [T, Hq, D]
        batch, n = step.batch, step.batch.num_decodes
        how = (self.config.scale, layer.window, self.config.attention_softcap, *self._biases)
        parts = []
        if n:
            tables, lens = block_tables[:n], batch.context_lens[:n]
            parts.append(self.ops.paged_decode(q[:n], k_pool, v_pool, tables, lens, *how))
        if n < batch.num_seqs:
            tables, lens = block_tables[n:], batch.context_lens[n:]
            cu = step.prefill_cu
            parts.append(self.ops.paged_prefill(q[n:], k_pool, v_pool, tables, cu, lens, *how))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rest(
        self,
        layer: Layer,
        attended: torch.Tensor,  # [T, Hq * D]
        x: torch.Tensor,  # what attention read, [T, hidden]
        residual: torch.Tensor,
        next_norm: Norm | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output projection and MLP; the result is normed for what comes next."""
        out = layer.output(attended)
        if self.config.parallel:
            x = x if layer.mlp_norm is None else self._normed(residual, layer.mlp_norm)
            return self._add(layer.mlp(x) + out, residual, next_norm, None)
        x, residual = self._add(out, residual, layer.mlp_norm, layer.attention_post_norm)
        return self._add(layer.mlp(x), residual, next_norm, layer.mlp_post_norm)

    def _add(
        self, x: torch.Tensor, residual: torch.Tensor, next_norm: Norm | None, post: Norm | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(what the next part reads, x + residual)"""
        if post is not None:
            x = post(x)
        if self.config.residual_scale != 1.0:
            x = x * self.config.residual_scale
        if next_norm is not None:
            return next_norm.add(x, residual)
        residual = residual + x
        return residual.to(self._dtype), residual

    def _normed(self, residual: torch.Tensor, norm: Norm | None) -> torch.Tensor:
        return (residual if norm is None else norm(residual)).to(self._dtype)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        if not x.shape[0]:  # no prompt of this step is read to its end
            return torch.empty(0, config.vocab_size, device=x.device)
        logits = self._head(x).float()
        if config.logit_scale != 1.0:
            logits = logits * config.logit_scale
        if config.logit_softcap:
            logits = torch.tanh(logits / config.logit_softcap) * config.logit_softcap
        return logits

    # --- loading --------------------------------------------------------------------------------

    def _rope(self, theta: float, scaling: RopeScaling, factors: torch.Tensor | None) -> Rope:
        frequencies = inverse_frequencies(self.config.rotary_dim, theta, scaling, factors)
        return Rope(frequencies, self._device, scaling.magnitude)

    def _read_ends(self, reader: LayerReader) -> tuple[Embedding, Linear]:
        """The embedding and the output matrix: the same object where they are the same memory."""
        tied = self.config.tied_head
        codes = reader.codes([EMBEDDING])
        if codes is not None:
            embedding = CodesLinear(codes, None)
            return embedding, embedding if tied else self._read_head(reader)
        weight = reader.load(EMBEDDING)
        dtype = activation_dtype(self.storage)
        plain = PlainLinear(weight.to(device=self._device, dtype=dtype), None)
        if not tied:
            return plain, self._read_head(reader)
        if self.storage != "bf16 packed":
            return plain, plain
        return plain, make_linear(weight, None, self.storage, self._device)

    def _read_head(self, reader: LayerReader) -> Linear:
        codes = reader.codes([HEAD])
        if codes is not None:
            return CodesLinear(codes, None)
        return make_linear(reader.load(HEAD), None, self.storage, self._device)
