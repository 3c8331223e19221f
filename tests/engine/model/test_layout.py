"""Which tensors a model must hold, under the names of its own family."""

from __future__ import annotations

import dataclasses

import pytest

from engine.errors import MissingWeightsError
from engine.model.config import from_hf
from engine.model.layout import check_tensors, expected_shapes, own_name

SMALL = {
    "hidden_size": 240,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 131,
}


def shape_of(kind, **changes):
    values = {**SMALL, **changes}
    if kind == "gpt_neox":
        del values["num_key_value_heads"]
    return from_hf({"model_type": kind, **values}, "m")


def test_fused_tensors():
    phi = expected_shapes(shape_of("phi3"))
    assert phi["model.layers.1.self_attn.qkv_proj.weight"] == (400, 240)
    assert phi["model.layers.1.mlp.gate_up_proj.weight"] == (176, 240)
    neox = expected_shapes(shape_of("gpt_neox"))
    assert neox["gpt_neox.layers.1.attention.query_key_value.bias"] == (720,)
    assert neox["gpt_neox.final_layer_norm.bias"] == (240,)
    assert not any(name.startswith("model.") for name in neox)


def test_norms_by_place():
    def norms(kind, **changes):
        shapes = expected_shapes(shape_of(kind, **changes))
        start = "model.layers.0."
        parts = {name.removeprefix(start) for name in shapes if name.startswith(start)}
        return {part.removesuffix(".weight") for part in parts if "norm" in part}

    after = {"post_attention_layernorm", "post_feedforward_layernorm"}
    before = {"input_layernorm", "pre_feedforward_layernorm"}
    assert norms("gemma2") == before | after
    assert norms("olmo2") == after | {"self_attn.q_norm", "self_attn.k_norm"}
    assert norms("cohere2") == {"input_layernorm"}
    heads = {f"self_attn.q_layernorm.norms.{head}" for head in range(6)}
    assert heads <= norms("stablelm", qk_layernorm=True)


def test_a_head_under_either_name_and_masks_of_old_checkpoints():
    config = shape_of("gpt_neox")
    shapes = expected_shapes(config)
    check_tensors(config, shapes, "m")
    newer = {("lm_head.weight" if k == "embed_out.weight" else k): v for k, v in shapes.items()}
    check_tensors(config, newer, "m")
    old = {"gpt_neox.layers.0.attention.bias": (1, 1, 9, 9)}
    check_tensors(config, {**shapes, **old}, "m")
    with pytest.raises(MissingWeightsError, match=r"attention\.bias"):
        check_tensors(shape_of("llama"), {**expected_shapes(shape_of("llama")), **old}, "m")
    del shapes["embed_out.weight"]
    with pytest.raises(MissingWeightsError, match="embed_out"):
        check_tensors(config, shapes, "m")


def test_own_names():
    neox = shape_of("gpt_neox")
    assert own_name(neox, "model.embed_tokens.weight") == "gpt_neox.embed_in.weight"
    assert own_name(neox, "model.layers.11.mlp.up_proj.bias") == (
        "gpt_neox.layers.11.mlp.dense_h_to_4h.bias"
    )
    llama = dataclasses.replace(neox, names="llama")
    assert own_name(llama, "model.layers.1.mlp.up_proj.bias") == "model.layers.1.mlp.up_proj.bias"
