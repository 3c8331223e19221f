"""Plain PyTorch twin of every op: the oracle, and the fallback on any device.

Pools are [num_blocks, block_tokens, num_kv_heads, head_dim]; K and V are read only through block
tables. D is the head size of Q and K, Dv that of V, Hq and Hkv the numbers of query and KV heads,
G = Hq // Hkv. All arithmetic is fp32, whatever the tensors hold.

A block table's entries for blocks that lie wholly before a window may name any block, another
sequence's too: what such a block holds never reaches a result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

# Gathered tokens and scores of one tile, at most: bounds the scratch memory to tens of MB.
MAX_TILE_TOKENS = 32_768
MAX_TILE_SCORES = 8 << 20


def store_kv(
    k: torch.Tensor,  # [T, Hkv, D]
    v: torch.Tensor,  # [T, Hkv, Dv]
    k_pool: torch.Tensor,  # [num_blocks, block_tokens, Hkv, D]
    v_pool: torch.Tensor,  # [num_blocks, block_tokens, Hkv, Dv]
    slots: torch.Tensor,  # [T] int64, block * block_tokens + offset; negative = padding
) -> None:
    """Write row i of k and v to slots[i], in the pool's dtype."""
    if k.shape[:2] != v.shape[:2] or slots.shape != k.shape[:1]:
        raise ValueError(f"k {tuple(k.shape)}, v {tuple(v.shape)}, slots {tuple(slots.shape)}")
    used = slots >= 0
    if not bool(used.all()):
        k, v, slots = k[used], v[used], slots[used]
    num_slots = k_pool.shape[0] * k_pool.shape[1]
    k_pool.view(num_slots, *k_pool.shape[2:])[slots] = k.to(k_pool.dtype)
    v_pool.view(num_slots, *v_pool.shape[2:])[slots] = v.to(v_pool.dtype)


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is done to the product of a query and a key before, and in, the softmax."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None
    alibi: torch.Tensor | None = None
    alibi_scale: float = 1.0

    def bias(self, places: torch.Tensor) -> torch.Tensor | None:
        """[Hq, N] fp32, what is added to the scores of keys at `places` [N]; None = nothing."""
        if self.alibi is None:
            return None
        products = self.alibi[:, None] * places.to(self.alibi.dtype)
        return products.float() * self.alibi_scale


def turn_and_store(
    q: torch.Tensor,  # [T, Hq, D], changed in place
    k: torch.Tensor,  # [T, Hkv, D], changed in place
    v: torch.Tensor,  # [T, Hkv, Dv]
    cos: torch.Tensor,  # [T, rotary_dim]
    sin: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    slots: torch.Tensor,  # [T] int64
) -> None:
    """`rotary`, then `store_kv`."""
    rotary(q, k, cos, sin)
    store_kv(k, v, k_pool, v_pool, slots)


def paged_decode(
    q: torch.Tensor,  # [S, Hq, D] one query per sequence
    k_pool: torch.Tensor,  # [num_blocks, block_tokens, Hkv, D]
    v_pool: torch.Tensor,  # [num_blocks, block_tokens, Hkv, Dv]
    block_tables: torch.Tensor,  # [S, max_blocks] int32
    context_lens: torch.Tensor,  # [S] int32, the query's own token counted in
    scale: float,
    window: int = 0,  # 0 = full; else the newest `window` tokens, the query's own counted in
    softcap: float = 0.0,  # 0 = off
    sinks: torch.Tensor | None = None,  # [Hq] fp32, a logit that only the softmax's sum counts in
    alibi: torch.Tensor | None = None,  # [Hq] slopes: slope * the key's place joins the score
    alibi_scale: float = 1.0,
) -> torch.Tensor:  # [S, Hq, Dv] in q's dtype
    """One new token per sequence over its context.

    A score is softcap(q k scale) + alibi_scale * (slope * place). The product in brackets is
    rounded as `alibi`'s dtype holds it: fp32, or bf16 for models that were trained so.
    """
    how = Scoring(scale, window, softcap, sinks, alibi, alibi_scale)
    out = q.new_empty(*q.shape[:2], v_pool.shape[3])
    block_tokens = k_pool.shape[1]
    start = 0
    while start < q.shape[0]:
        # As many sequences together as keep the padded gather below the tile's limit.
        longest = int(context_lens[start:].max())
        num_blocks = -(-longest // block_tokens)
        stop = start + max(1, MAX_TILE_TOKENS // (num_blocks * block_tokens))
        tables = block_tables[start:stop, :num_blocks]
        keys = _gather(k_pool, tables)  # [s, N, Hkv, D]
        values = _gather(v_pool, tables)
        lens = context_lens[start:stop, None]  # [s, 1]
        places = torch.arange(keys.shape[1], device=q.device)  # [N]
        seen = places[None] < lens
        if window:
            seen &= places[None] >= lens - window
        tile = _attend(q[start:stop, None], keys, values, seen[:, None], how, places)
        out[start:stop] = tile[:, 0]
        start = stop
    return out


def paged_prefill(
    q: torch.Tensor,  # [T, Hq, D] chunks of several sequences, packed
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    block_tables: torch.Tensor,  # [S, max_blocks] int32
    cu_seqlens_q: torch.Tensor,  # [S + 1] int32
    context_lens: torch.Tensor,  # [S] int32, cached + chunk
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    alibi: torch.Tensor | None = None,
    alibi_scale: float = 1.0,
) -> torch.Tensor:  # [T, Hq, Dv]
    """Causal over cached context plus chunk; K and V of the chunk are already in the pool.

    Scores are those of `paged_decode`.
    """
    how = Scoring(scale, window, softcap, sinks, alibi, alibi_scale)
    out = q.new_empty(*q.shape[:2], v_pool.shape[3])
    block_tokens = k_pool.shape[1]
    starts = cu_seqlens_q.tolist()
    for s, context in enumerate(context_lens.tolist()):
        first_place = context - (starts[s + 1] - starts[s])  # of the chunk in its sequence
        tile_rows = max(1, MAX_TILE_SCORES // (q.shape[1] * max(1, context)))
        for row in range(starts[s], starts[s + 1], tile_rows):
            rows = slice(row, min(row + tile_rows, starts[s + 1]))
            places = torch.arange(rows.start, rows.stop, device=q.device) - starts[s] + first_place
            newest = first_place + rows.stop - starts[s]  # keys beyond are in nobody's past
            oldest = max(0, first_place + row - starts[s] - window + 1) if window else 0
            first_block = oldest // block_tokens
            table = block_tables[s : s + 1, first_block : -(-newest // block_tokens)]
            keys, values = _gather(k_pool, table), _gather(v_pool, table)
            key_places = torch.arange(keys.shape[1], device=q.device) + first_block * block_tokens
            seen = key_places[None] <= places[:, None]  # [rows, N]
            if window:
                seen &= key_places[None] > places[:, None] - window
            out[rows] = _attend(q[None, rows], keys, values, seen[None], how, key_places)[0]
    return out


def _gather(pool: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """[s, n] block numbers -> [s, n * block_tokens, Hkv, D] in fp32."""
    return pool[tables.long()].flatten(1, 2).float()


def _attend(
    q: torch.Tensor,  # [s, n, Hq, D]
    keys: torch.Tensor,  # [s, N, Hkv, D] fp32
    values: torch.Tensor,  # [s, N, Hkv, Dv] fp32
    seen: torch.Tensor,  # [s, n, N] bool
    how: Scoring,
    places: torch.Tensor,  # [N] of the keys in their sequence
) -> torch.Tensor:  # [s, n, Hq, Dv] in q's dtype
    # Slots that no token of this sequence wrote may hold anything, NaN as well: 0 * NaN is NaN.
    values = values.masked_fill(~seen.any(1)[:, :, None, None], 0.0)
    grouped = q.float().unflatten(2, (keys.shape[2], -1))  # [s, n, Hkv, G, D]
    scores = torch.einsum("snhgd,sthd->shgnt", grouped, keys) * how.scale
    if how.softcap:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    bias = how.bias(places)
    if bias is not None:
        scores = scores + bias.unflatten(0, (keys.shape[2], -1))[None, :, :, None]
    scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
    shares = _shares(scores, how.sinks)
    out = torch.einsum("shgnt,sthd->snhgd", shares, values)
    return out.flatten(2, 3).to(q.dtype)


def _shares(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the keys [s, Hkv, G, n, N]; a sink takes its share and gives nothing."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.view(*scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


def copy_blocks(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    pairs: torch.Tensor,  # [N, 2] int64 (from, to)
) -> None:
    """Copy whole blocks; all are read before any is written."""
    sources, targets = pairs.unbind(1)
    k_pool[targets] = k_pool[sources]
    v_pool[targets] = v_pool[sources]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last axis; the result has x's dtype."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual): the norm in x's dtype, the sum in residual's."""
    total = x.float() + residual.float()
    return rms_norm(total, weight, eps).to(x.dtype), total.to(residual.dtype)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,  # [width] or [heads, width]
    bias: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Over the last axis, its mean taken off; the result has x's dtype."""
    wide = F.layer_norm(x.float(), x.shape[-1:], None, None, eps) * weight.float()
    return (wide if bias is None else wide + bias.float()).to(x.dtype)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual): the norm in x's dtype, the sum in residual's."""
    total = x.float() + residual.float()
    return layer_norm(total, weight, bias, eps).to(x.dtype), total.to(residual.dtype)


def rotary(
    q: torch.Tensor,  # [T, Hq, D], changed in place
    k: torch.Tensor,  # [T, Hkv, D], changed in place
    cos: torch.Tensor,  # [T, rotary_dim] (halves repeated, as transformers does)
    sin: torch.Tensor,
) -> None:
    """Turn the first rotary_dim values of every head; the second half is paired with the first."""
    dim = cos.shape[-1]
    cos, sin = cos[:, None].float(), sin[:, None].float()
    for heads in (q, k):
        part = heads[..., :dim].float()
        first, second = part.chunk(2, -1)
        turned = part * cos + torch.cat((-second, first), -1) * sin
        heads[..., :dim] = turned.to(heads.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]: silu(first half) * second half"""
    gate, up = gate_up.float().chunk(2, -1)
    return (F.silu(gate) * up).to(gate_up.dtype)


def act(x: torch.Tensor, kind: str) -> torch.Tensor:
    """x's activation; `kind`: "silu", "gelu", "gelu_tanh" or "relu"."""
    return _activated(x.float(), kind).to(x.dtype)


def act_mul(gate_up: torch.Tensor, kind: str) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]: act(first half) * second half"""
    gate, up = gate_up.float().chunk(2, -1)
    return (_activated(gate, kind) * up).to(gate_up.dtype)


def _activated(x: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "silu":
        return F.silu(x)
    if kind == "relu":
        return F.relu(x)
    if kind in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
    raise ValueError(f"no activation is called {kind!r}")
