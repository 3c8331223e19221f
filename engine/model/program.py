"""make_program: the layers of a decoder as one program of compiled operations, where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.layer_groups import group_layers, layer_places
from engine.model.config import DecoderConfig
from engine.model.layers import Layer, Mlp, Norm, RmsNorm
from engine.model.linear import CodesLinear, Linear

if TYPE_CHECKING:
    from kernels.cpu.layers import LayerProgram, LayerWeights, Matrix


def make_program(
    config: DecoderConfig,
    layers: Sequence[Layer],
    final_norm: Norm,
    kv_dtype: torch.dtype,
) -> LayerProgram | None:
    """None where a layer has something that the program does not know: post norms, other norms or
    activations, experts, parallel parts, weights as floats, no positions."""
    if config.parallel or config.residual_scale != 1.0 or not isinstance(final_norm, RmsNorm):
        return None
    if not all(isinstance(layer.qkv, CodesLinear) for layer in layers):
        return None
    from kernels.cpu.layer_parts import Shape, can_run
    from kernels.cpu.layers import LayerProgram

    places = layer_places(group_layers(config.windows))
    weights = [_weights(layer, places[number][0]) for number, layer in enumerate(layers)]
    known = [one for one in weights if one is not None]
    shape = Shape(
        hidden=config.hidden_size,
        num_heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        dim=config.head_dim,
        rotary_dim=config.rotary_dim,
        intermediate=config.intermediate_size,
        eps=config.norm_eps,
        scale=config.scale,
        softcap=config.attention_softcap,
    )
    if len(known) < len(weights) or not can_run(shape, len(layers)):
        return None
    windows = [group.window for group in group_layers(config.windows)]
    return LayerProgram(known, final_norm.weight, shape, kv_dtype, windows)


def _weights(layer: Layer, group: int) -> LayerWeights | None:
    from kernels.cpu.layer_parts import LayerWeights

    mlp, input_norm, mlp_norm = layer.mlp, layer.input_norm, layer.mlp_norm
    if layer.rope is None or layer.attention_post_norm or layer.mlp_post_norm:
        return None
    if not isinstance(mlp, Mlp) or mlp.activate is not None:
        return None
    if not isinstance(input_norm, RmsNorm) or not isinstance(mlp_norm, RmsNorm):
        return None
    head_norms = None
    if layer.q_norm is not None or layer.k_norm is not None:
        if not isinstance(layer.q_norm, RmsNorm) or not isinstance(layer.k_norm, RmsNorm):
            return None
        head_norms = (layer.q_norm.weight, layer.k_norm.weight)
    qkv, output = _matrix(layer.qkv), _matrix(layer.output)
    up, down = _matrix(mlp.up), _matrix(mlp.down)
    if qkv is None or output is None or up is None or down is None:
        return None
    return LayerWeights(
        input_norm=input_norm.weight, qkv=qkv, head_norms=head_norms, output=output,
        mlp_norm=mlp_norm.weight, up=up, down=down, window=layer.window, rope=layer.rope,
        group=group,
    )  # fmt: skip


def _matrix(linear: Linear) -> Matrix | None:
    return linear.matrix() if isinstance(linear, CodesLinear) else None
