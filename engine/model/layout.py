"""Which tensors a decoder needs, by name and shape, and the check that a model holds just these.

Names are those of Hugging Face checkpoints; other formats are renamed to them where they are read.
The decoder asks by Llama's names, and `own_name` says what the model's family calls them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import torch

from engine.errors import MissingWeightsError
from engine.model.codes import Codes
from engine.model.config import DecoderConfig

EMBEDDING = "model.embed_tokens.weight"
EMBEDDING_NORM = "model.embed_norm.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]

_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_IN_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(.+)")


class WeightSource(Protocol):
    """Tensors of a checked file, by Hugging Face name."""

    @property
    def name(self) -> str: ...

    @property
    def shapes(self) -> Shapes: ...

    def load(self, name: str) -> torch.Tensor:
        """The tensor as a floating type that holds it exactly, on the CPU."""

    def load_codes(self, name: str) -> Codes | None:
        """The matrix as the file quantises it; None where it does not, or not so that we can."""


_FALCON = {
    "model.layers": "transformer.h",
    "model.embed_tokens": "transformer.word_embeddings",
    "model.norm": "transformer.ln_f",
    "self_attn.qkv_proj": "self_attention.query_key_value",
    "self_attn.o_proj": "self_attention.dense",
    "mlp.up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
}
# What other families call a tensor, by what Llama calls it (or would).
_NAMES: dict[str, dict[str, str]] = {
    "llama": {},
    "starcoder2": {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
    "gpt_neox": {
        "model.layers": "gpt_neox.layers",
        "model.embed_tokens": "gpt_neox.embed_in",
        "model.norm": "gpt_neox.final_layer_norm",
        "lm_head": "embed_out",
        "self_attn.qkv_proj": "attention.query_key_value",
        "self_attn.o_proj": "attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    },
    "falcon": _FALCON,
    "falcon two norms": {
        **_FALCON,
        "input_layernorm": "ln_attn",
        "post_attention_layernorm": "ln_mlp",
    },
    "bloom": {**_FALCON, "model.embed_norm": "transformer.word_embeddings_layernorm"},
    "mixtral": {
        "mlp.gate": "block_sparse_moe.gate",
        "mlp.experts": "block_sparse_moe.experts",
        "experts.gate_proj": "w1",
        "experts.up_proj": "w3",
        "experts.down_proj": "w2",
    },
    "mpt": {
        "model.layers": "transformer.blocks",
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.norm_f",
        "self_attn.qkv_proj": "attn.Wqkv",
        "self_attn.o_proj": "attn.out_proj",
        "mlp.up_proj": "ffn.up_proj",
        "mlp.down_proj": "ffn.down_proj",
        "input_layernorm": "norm_1",
        "post_attention_layernorm": "norm_2",
    },
}
_OUTER = "transformer."  # checkpoints of the inner model alone leave it out
# Masks that older checkpoints of a family store; they are computed, not learned.
_COMPUTED = {"gpt_neox": (".attention.bias", ".attention.masked_bias")}


def layer_name(layer: int, part: str) -> str:
    """Llama's name of a part of a layer."""
    return f"model.layers.{layer}.{part}"


def own_name(config: DecoderConfig, name: str) -> str:
    """What the model's own family calls the tensor with this Llama name."""
    names = _NAMES[config.names]
    stem, _, kind = name.rpartition(".")
    match = _IN_LAYER.fullmatch(stem)
    if match:
        layers = names.get("model.layers", "model.layers")
        return f"{layers}.{match[1]}.{_own_part(names, match[2])}.{kind}"
    return f"{names.get(stem, stem)}.{kind}"


def _own_part(names: Mapping[str, str], part: str) -> str:
    match = _IN_EXPERT.fullmatch(part)
    if not match:
        return names.get(part, part)
    experts = names.get("mlp.experts", "mlp.experts")
    return f"{experts}.{match[1]}.{names.get(f'experts.{match[2]}', match[2])}"


def stored_name(config: DecoderConfig, name: str, found: Collection[str]) -> str:
    """Which of `found` is the tensor with this Llama name; its family's name if none is."""
    own = own_name(config, name)
    others = [own.removeprefix(_OUTER), *([HEAD] if name == HEAD else [])]
    return next((other for other in (own, *others) if other in found), own)


def norm_parts(config: DecoderConfig) -> dict[str, str]:
    """Which norms a layer has: place -> part. A name means another place in another family."""
    parts = {"input": "input_layernorm"} if config.pre_norm else {}
    if config.post_norm:
        parts["attention_post"] = "post_attention_layernorm"
        if config.pre_norm:
            parts["mlp"] = "pre_feedforward_layernorm"
        parts["mlp_post"] = "post_feedforward_layernorm"
    elif config.parallel != "one norm":
        parts["mlp"] = "post_attention_layernorm"
    return parts


def qk_norm_parts(config: DecoderConfig, which: str) -> list[str]:
    """The parts that hold the norm of "q" or "k", joined to [heads, D] where there are several."""
    if not config.qk_norm:
        return []
    if config.qk_norm_over != "heads":
        return [f"self_attn.{which}_norm"]
    num_heads = config.num_heads if which == "q" else config.num_kv_heads
    return [f"self_attn.{which}_layernorm.norms.{head}" for head in range(num_heads)]


def expected_shapes(config: DecoderConfig, found: Collection[str] = ()) -> Shapes:
    """Every tensor that must be there, by its name among `found`, else by its family's."""
    shapes: Shapes = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    shapes.update(_norm_shapes(config, FINAL_NORM.removesuffix(".weight")))
    if config.embedding_norm:
        shapes.update(_norm_shapes(config, EMBEDDING_NORM.removesuffix(".weight")))
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        parts = _layer_shapes(config, layer)
        shapes.update((layer_name(layer, part), shape) for part, shape in parts)
    return {stored_name(config, name, found): shape for name, shape in shapes.items()}


def _layer_shapes(config: DecoderConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for part, rows, columns, bias in (*_linears(config), *_mlp_linears(config, layer)):
        yield f"{part}.weight", (rows, columns)
        if bias:
            yield f"{part}.bias", (rows,)
    for part in norm_parts(config).values():
        yield from _norm_shapes(config, part)
    for which, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
        width = config.head_dim * (heads if config.qk_norm_over == "row" else 1)
        for part in qk_norm_parts(config, which):
            yield f"{part}.weight", (width,)


def _linears(config: DecoderConfig) -> Iterator[tuple[str, int, int, bool]]:
    """(part, rows, columns, whether it has a bias)"""
    hidden = config.hidden_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    if config.fused_qkv:
        yield "self_attn.qkv_proj", q_size + 2 * kv_size, hidden, config.qkv_bias
    else:
        yield "self_attn.q_proj", q_size, hidden, config.qkv_bias
        yield "self_attn.k_proj", kv_size, hidden, config.qkv_bias
        yield "self_attn.v_proj", kv_size, hidden, config.qkv_bias
    yield "self_attn.o_proj", hidden, q_size, config.output_bias


def _mlp_linears(config: DecoderConfig, layer: int) -> Iterator[tuple[str, int, int, bool]]:
    """As `_linears`: of an MLP, or of a router and its experts."""
    hidden, inner, experts = config.hidden_size, config.intermediate_size, config.experts
    if experts is not None and experts.layers[layer]:
        inner = experts.intermediate_size
        yield "mlp.gate", experts.num_experts, hidden, False
        for expert in range(experts.num_experts):
            yield f"mlp.experts.{expert}.gate_proj", inner, hidden, False
            yield f"mlp.experts.{expert}.up_proj", inner, hidden, False
            yield f"mlp.experts.{expert}.down_proj", hidden, inner, False
        return
    if config.fused_gate_up:
        yield "mlp.gate_up_proj", 2 * inner, hidden, config.mlp_bias
    else:
        if config.gated:
            yield "mlp.gate_proj", inner, hidden, config.mlp_bias
        yield "mlp.up_proj", inner, hidden, config.mlp_bias
    yield "mlp.down_proj", hidden, inner, config.mlp_bias


def _norm_shapes(config: DecoderConfig, stem: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{stem}.weight", (config.hidden_size,)
    if config.norm_bias:
        yield f"{stem}.bias", (config.hidden_size,)


def check_tensors(
    config: DecoderConfig, found: Mapping[str, tuple[int, ...]], model_name: str
) -> None:
    """A model must hold every tensor it needs, in the right shape, and none that nobody reads.

    Raises:
        MissingWeightsError: names the first tensors that are missing, extra or mis-shaped.
    """
    expected = expected_shapes(config, found)
    missing = [name for name in expected if name not in found]
    if missing:
        raise MissingWeightsError(
            f"{model_name} lacks {some(missing)}: the download is incomplete, fetch it again"
        )
    # A tied head may be written out; nobody reads it, the embedding stands for it.
    unread = (HEAD, own_name(config, HEAD))
    extra = [name for name in found if name not in expected and name not in unread]
    extra = [name for name in extra if not name.endswith(_COMPUTED.get(config.names, ()))]
    if extra:
        raise MissingWeightsError(
            f"{model_name} holds {some(extra)}, which its architecture ({config.architecture}) "
            "does not have: the model would not run as it was made"
        )
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise MissingWeightsError(
                f"{model_name} holds {name} as {list(found[name])}, and its configuration asks "
                f"for {list(shape)}: configuration and weights are not of the same model"
            )


def some(names: Collection[str]) -> str:
    """ "the tensor a", or "3 tensors, a among them"."""
    first = next(iter(names))[:120]
    return f"the tensor {first}" if len(names) == 1 else f"{len(names)} tensors, {first} among them"
