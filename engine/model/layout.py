"""Which tensors a decoder needs, by name and shape, and the check that a model holds just these.

Names are those of Hugging Face checkpoints; other formats are renamed to them where they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import torch

from engine.errors import MissingWeightsError
from engine.model.config import DecoderConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shapes = dict[str, tuple[int, ...]]


class WeightSource(Protocol):
    """Tensors of a checked file, by Hugging Face name."""

    @property
    def name(self) -> str: ...

    @property
    def shapes(self) -> Shapes: ...

    def load(self, name: str) -> torch.Tensor:
        """The tensor as a floating type that holds it exactly, on the CPU."""


def layer_name(layer: int, part: str) -> str:
    return f"model.layers.{layer}.{part}"


def expected_shapes(config: DecoderConfig) -> Shapes:
    """Every tensor that must be there."""
    shapes: Shapes = {
        EMBEDDING: (config.vocab_size, config.hidden_size),
        FINAL_NORM: (config.hidden_size,),
    }
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    for layer in range(config.num_layers):
        shapes.update((layer_name(layer, part), shape) for part, shape in _layer_shapes(config))
    return shapes


def _layer_shapes(config: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    linears = (
        ("self_attn.q_proj", q_size, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_size, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    for part, rows, columns, bias in linears:
        yield f"{part}.weight", (rows, columns)
        if bias:
            yield f"{part}.bias", (rows,)
    for part in ("input_layernorm", "post_attention_layernorm"):
        yield f"{part}.weight", (hidden,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)


def check_tensors(
    config: DecoderConfig, found: Mapping[str, tuple[int, ...]], model_name: str
) -> None:
    """A model must hold every tensor it needs, in the right shape, and none that nobody reads.

    Raises:
        MissingWeightsError: names the first tensors that are missing, extra or mis-shaped.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise MissingWeightsError(
            f"{model_name} lacks {_some(missing)}: the download is incomplete, fetch it again"
        )
    # A tied head may be written out; nobody reads it, the embedding stands for it.
    extra = [name for name in found if name not in expected and name != HEAD]
    if extra:
        raise MissingWeightsError(
            f"{model_name} holds {_some(extra)}, which its architecture ({config.architecture}) "
            "does not have: the model would not run as it was made"
        )
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise MissingWeightsError(
                f"{model_name} holds {name} as {list(found[name])}, and its configuration asks "
                f"for {list(shape)}: configuration and weights are not of the same model"
            )


def _some(names: Collection[str]) -> str:
    """ "the tensor a", or "3 tensors, a among them"."""
    first = next(iter(names))[:120]
    return f"the tensor {first}" if len(names) == 1 else f"{len(names)} tensors, {first} among them"
