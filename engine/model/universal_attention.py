"""PagedStep: what a transformers model's attention becomes when it runs over the pool.

One function stands in transformers' attention interface under `NAME`. It holds nothing: the step it
works for comes with the call, as the keyword argument `paged_step` of the model's forward, and the
same object is handed over as the model's cache, because multi-head latent attention shows its
latents to nobody else. Q, K and V arrive as [1, heads, T, D], all sequences of the step in one row.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from engine.batch import Batch
from engine.errors import shown
from engine.kv_cache import KVSpec
from engine.model.decoder import Cache
from kernels.dispatch import Ops

NAME = "tessera_paged"

# Keyword arguments of an attention call that change nothing here. A window is read off the mask.
_HARMLESS = frozenset(
    ("dropout", "sliding_window", "position_ids", "use_cache", "cache", "output_attentions")
)
# Keys and values that latents are expanded to at once: one sequence's, or several up to this.
_EXPANDED_BYTES = 256 << 20


class Unfit(ValueError):
    """Why a model cannot run over the pool, as the end of a sentence that begins with its name."""


class Attends(Protocol):
    """What the attention function hands its calls to."""

    def attend(self, call: Call) -> torch.Tensor:
        """[1, T, Hq, Dv]"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the attention interface."""

    module: torch.nn.Module
    query: torch.Tensor  # [1, Hq, T, Dk]
    key: torch.Tensor  # [1, Hkv, T, Dk]
    value: torch.Tensor  # [1, Hkv, T, Dv]
    mask: Any
    scale: float
    softcap: float
    sinks: torch.Tensor | None  # [Hq]


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer keeps of each token, and how far it sees."""

    num_kv_heads: int
    k_dim: int
    v_dim: int
    window: int  # 0 = all
    is_latent: bool = False  # K is the latent, V the turned part of the key; see `expand_kv`


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    paged_step: Attends | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The function registered as `NAME`.

    Raises:
        Unfit: the model does not hand the step through, or asks for what is not computed here.
    """
    if paged_step is None:
        raise Unfit(in_layer(module, "does not hand on what our attention needs"))
    strange = [
        k for k, v in others.items() if k not in _HARMLESS and v is not None and v is not False
    ]
    if is_causal is False:
        strange.append("both directions")
    if strange:
        what = f"asks for {shown(strange[0])} in its attention, which this version cannot compute"
        raise Unfit(in_layer(module, what))
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    call = Call(module, query, key, value, attention_mask, scale, softcap or 0.0, s_aux)
    return paged_step.attend(call), None


def in_layer(module: torch.nn.Module, what: str) -> str:
    return f"has a layer ({type(module).__name__}) that {what}"


def mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Any, **others: Any
) -> torch.Tensor | None:
    """The mask function registered as `NAME`: in a step nothing, since the ops see to it; for a
    probe, which claims a past, the true mask, [1, 1, q_length, kv_length] bool."""
    if kv_length == q_length:
        return None
    device = others.get("device")
    start = others.get("q_offset", 0)
    rows = torch.arange(start, start + q_length, device=device)[:, None]
    columns = torch.arange(kv_length, device=device)[None]
    first = torch.zeros((), dtype=torch.int64, device=device)
    seen = mask_function(first, first, rows, columns)
    return seen.expand(q_length, kv_length)[None, None]


def register() -> None:
    """Make `NAME` known to transformers; doing it again changes nothing."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)


def hand_step_through(model: torch.nn.Module) -> None:
    """Where a layer hands its attention the cache but not the step: they are one object."""
    for module in model.modules():
        parameters = inspect.signature(module.forward).parameters
        takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        if takes_more and "Attention" in type(module).__name__:
            module.register_forward_pre_hook(_with_step, with_kwargs=True)


def _with_step(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))
    if isinstance(cache, NoPast):
        kwargs.setdefault("paged_step", cache)
    return args, kwargs


class NoPast:
    """The part of a transformers cache that models ask, for a cache that shows them no past."""

    is_compileable = False
    is_initialized = True

    def __init__(self, num_past: int = 0) -> None:
        self.num_past = num_past
        self._latent: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep what a layer would store for its attention call, which comes next."""
        self._latent = (keys, values)
        return keys, values

    def take(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What `update` kept, once."""
        kept, self._latent = self._latent, None
        return kept

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return self.num_past

    def get_query_offset(self, *args: Any, **kwargs: Any) -> int:
        return self.num_past

    def get_mask_sizes(self, query_length: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.num_past + query_length, 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a layer's K and V lie."""

    facts: LayerFacts
    group: int
    index: int  # of its tensors in the pool


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the token axis that are read by one op: decodes, or chunks of prompts."""

    start: int
    stop: int
    first: int  # sequences
    last: int  # one beyond
    cu_seqlens: torch.Tensor | None  # None = every row is a sequence


@dataclass(eq=False)
class PagedStep(NoPast):
    """One step: stores K and V through the slots, reads through the block tables."""

    batch: Batch
    pools: Cache
    ops: Ops
    spec: KVSpec
    places: Mapping[int, Place]  # by id of the attention module
    num_past: int = 0
    _latent: tuple[torch.Tensor, torch.Tensor] | None = None

    def attend(self, call: Call) -> torch.Tensor:
        place = self.places[id(call.module)]
        stored = self.take()
        k_pool, v_pool = self.pools.k[place.index], self.pools.v[place.index]
        if place.facts.is_latent and stored is not None:
            self._store(*stored, k_pool, v_pool, place)
            return self._read_latent(call, place, k_pool, v_pool)
        self._store(call.key, call.value, k_pool, v_pool, place)
        return self._read(call, place, k_pool, v_pool)

    def _store(
        self,
        key: torch.Tensor,  # [1, Hkv, T, Dk]
        value: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        place: Place,
    ) -> None:
        k = _padded(key[0].transpose(0, 1), self.spec.num_kv_heads, self.spec.k_dim)
        v = _padded(value[0].transpose(0, 1), self.spec.num_kv_heads, self.spec.v_dim)
        self.ops.store_kv(k, v, k_pool, v_pool, self.batch.slots[place.group])

    def _read(
        self, call: Call, place: Place, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> torch.Tensor:
        # A layer with fewer or smaller heads than the pool has room for reads zeros beside its own.
        num_heads, v_dim = call.query.shape[1], place.facts.v_dim
        group = num_heads // place.facts.num_kv_heads
        padded_heads = group * self.spec.num_kv_heads
        q = _padded(call.query[0].transpose(0, 1), padded_heads, self.spec.k_dim)
        sinks = call.sinks
        if sinks is not None:
            sinks = F.pad(sinks.float(), (0, padded_heads - num_heads))
        tables = self.batch.block_tables[place.group]
        parts = []
        for rows in self._all_rows():
            some = tables[rows.first : rows.last]
            parts.append(self._op(call, place, q, rows, some, k_pool, v_pool, sinks))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)  # [T, heads, Dv]
        return out[None, :, :num_heads, :v_dim]

    def _read_latent(
        self, call: Call, place: Place, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> torch.Tensor:
        """Expand the latents of whole blocks as the module itself does it, into a pool of our own
        whose blocks stand in order."""
        q = call.query[0].transpose(0, 1).contiguous()
        block_tokens = k_pool.shape[1]
        parts = []
        token_bytes = call.query.shape[1] * (call.key.shape[-1] + call.value.shape[-1]) * 4
        lens = self.batch.context_lens.tolist()
        for rows in self._few_rows(lens, _EXPANDED_BYTES // token_bytes):
            num_blocks = -(-max(lens[rows.first : rows.last]) // block_tokens)
            blocks = self.batch.block_tables[place.group][rows.first : rows.last, :num_blocks]
            at = blocks.flatten().long()
            latent = k_pool[at][:, :, 0, : place.facts.k_dim].to(q.dtype)  # [n, block_tokens, rank]
            turned = v_pool[at][:, :, 0, : place.facts.v_dim].to(q.dtype)
            keys, values = call.module.expand_kv(
                latent.reshape(1, 1, -1, latent.shape[-1]),
                turned.reshape(1, 1, -1, turned.shape[-1]),
            )
            own_k = keys[0].transpose(0, 1).unflatten(0, (-1, block_tokens)).contiguous()
            own_v = values[0].transpose(0, 1).unflatten(0, (-1, block_tokens)).contiguous()
            in_order = torch.arange(at.shape[0], dtype=torch.int32, device=at.device)
            own_tables = in_order.view(blocks.shape)
            parts.append(self._op(call, place, q, rows, own_tables, own_k, own_v, call.sinks))
        return torch.cat(parts)[None]

    def _all_rows(self) -> list[Rows]:
        """All decodes, then all chunks of prompts."""
        batch, n = self.batch, self.batch.num_decodes
        rows = [Rows(0, n, 0, n, None)] if n else []
        if n < batch.num_seqs:
            rows.append(Rows(n, batch.num_tokens, n, batch.num_seqs, batch.cu_seqlens_q[n:] - n))
        return rows

    def _few_rows(self, lens: list[int], most_tokens: int) -> list[Rows]:
        """As many decodes together as see no more than `most_tokens`; each chunk by itself."""
        n, cu = self.batch.num_decodes, self.batch.cu_seqlens_q
        rows = []
        first = 0
        while first < n:
            last = min(n, first + max(1, most_tokens // max(lens[first:n])))
            rows.append(Rows(first, last, first, last, None))
            first = last
        starts = cu.tolist()
        for s in range(n, len(lens)):
            rows.append(Rows(starts[s], starts[s + 1], s, s + 1, cu[s : s + 2] - cu[s]))
        return rows

    def _op(
        self,
        call: Call,
        place: Place,
        q: torch.Tensor,
        rows: Rows,
        tables: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:  # [rows, heads, Dv]
        q = q[rows.start : rows.stop]
        lens = self.batch.context_lens[rows.first : rows.last]
        how = (call.scale, place.facts.window, call.softcap, sinks)
        if rows.cu_seqlens is None:
            return self.ops.paged_decode(q, k_pool, v_pool, tables, lens, *how)
        return self.ops.paged_prefill(q, k_pool, v_pool, tables, rows.cu_seqlens, lens, *how)


def _padded(x: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """[T, h, d] -> [T, heads, dim], zeros where there was nothing."""
    if x.shape[1:] == (heads, dim):
        return x.contiguous()
    return F.pad(x, (0, dim - x.shape[2], 0, heads - x.shape[1])).contiguous()
