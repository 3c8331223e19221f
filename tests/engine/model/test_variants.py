"""Falcon, BLOOM, MPT and mixtures of experts: what their config.json means, and what is refused."""

from __future__ import annotations

import pytest

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError
from engine.model.config import from_hf
from engine.model.layout import check_tensors, expected_shapes

FALCON = {
    "model_type": "falcon",
    "hidden_size": 240,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "vocab_size": 131,
}
BLOOM = {"model_type": "bloom", "n_embed": 240, "n_layer": 2, "n_head": 3, "vocab_size": 131}
MPT = {"model_type": "mpt", "d_model": 240, "n_layers": 2, "n_heads": 3, "vocab_size": 131}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 240,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "num_local_experts": 5,
}
QWEN = {**MIXTRAL, "model_type": "qwen3_moe", "num_experts_per_tok": 2}


def test_falcon_of_the_first_kind():
    shape = from_hf(FALCON, "m")
    assert (shape.num_kv_heads, shape.parallel, shape.intermediate_size) == (1, "one norm", 960)
    assert (shape.qkv_bias, shape.alibi, shape.rope_layers) == (False, "", (True, True))
    names = expected_shapes(shape)
    assert names["transformer.h.1.self_attention.query_key_value.weight"] == (320, 240)
    assert "transformer.h.1.input_layernorm.bias" in names
    assert "lm_head.weight" not in names


def test_falcon_of_the_second_kind():
    new = {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}
    names = expected_shapes(from_hf(new, "m"))
    assert names["transformer.h.0.ln_mlp.weight"] == names["transformer.h.0.ln_attn.bias"] == (240,)
    assert names["transformer.h.0.self_attention.query_key_value.weight"] == (400, 240)
    one = from_hf({**new, "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 70}, "m")
    assert (one.parallel, one.num_kv_heads, one.intermediate_size) == ("one norm", 2, 70)


def test_falcon_with_alibi_and_one_part_after_the_other():
    changes = {"alibi": True, "bias": True, "multi_query": False, "parallel_attn": False}
    shape = from_hf({**FALCON, **changes}, "m")
    assert (shape.num_kv_heads, shape.parallel, shape.alibi) == (6, "", "falcon")
    assert (shape.qkv_bias, shape.output_bias, shape.mlp_bias) == (True, True, True)
    assert shape.rope_layers == (False, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ln_in_parallel_attn": 2}, "num_ln_in_parallel_attn 2"),
        ({"num_ln_in_parallel_attn": 3, "new_decoder_architecture": True}, "attn 3"),
        ({"parallel_attn": False, "new_decoder_architecture": True}, "parallel_attn False"),
        ({"apply_residual_connection_post_layernorm": True}, "post_layernorm"),
        ({"activation": "swoosh"}, "swoosh"),
    ],
)
def test_a_falcon_that_nobody_runs(changes, said, check_sentence):
    with pytest.raises(UnsupportedModelError) as caught:
        from_hf({**FALCON, **changes}, "my-model")
    check_sentence(caught.value, "my-model", said)


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (FALCON, {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        (FALCON, {"n_embed": 80}, "n_embed"),
        (FALCON, {"alibi": "yes"}, "alibi"),
        (BLOOM, {"hidden_size": 80}, "n_embed"),
        (BLOOM, {"n_head": 0}, "num_attention_heads"),
        (MPT, {"attn_config": [1]}, "attention"),
        (MPT, {"attn_config": {"softmax_scale": -1.0}}, "attention_scale"),
        (MIXTRAL, {"num_experts_per_tok": 6}, "6 of 5 experts"),
        (MIXTRAL, {"num_local_experts": 100_000}, "100,000 experts"),
        (QWEN, {"mlp_only_layers": "all"}, "mlp_only_layers"),
        (QWEN, {"moe_intermediate_size": 1 << 20}, "expert size"),
        (QWEN, {"num_experts": 7}, "num_experts"),
    ],
)
def test_values_that_cannot_be(config, changes, key, check_sentence):
    with pytest.raises(BadFileError) as caught:
        from_hf({**config, **changes}, "my-model")
    check_sentence(caught.value, "my-model", key)


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (BLOOM, {"apply_residual_connection_post_layernorm": True}, "post_layernorm"),
        (BLOOM, {"slow_but_exact": True}, "slow_but_exact"),
        (MPT, {"attn_config": {"clip_qkv": 6.0}}, "attn_config.clip_qkv to 6.0"),
        (MPT, {"attn_config": {"alibi": False}}, "attn_config.alibi"),
        (MPT, {"attn_config": {"qk_ln": True}}, "qk_ln"),
        (MPT, {"attn_config": {"alibi_bias_max": 5}}, "alibi_bias_max"),
        (MPT, {"no_bias": False}, "no_bias"),
        (MPT, {"logit_scale": "inv_sqrt_d_model"}, "logit_scale"),
    ],
)
def test_settings_that_are_not_run(config, changes, said, check_sentence):
    with pytest.raises(UnsupportedModelError) as caught:
        from_hf({**config, **changes}, "my-model")
    check_sentence(caught.value, "my-model", said)


def test_bloom_and_mpt():
    bloom = from_hf({**BLOOM, "seq_length": 512, "hidden_act": "swoosh"}, "m")
    assert (bloom.head_dim, bloom.intermediate_size, bloom.context_tokens) == (80, 960, 512)
    assert (bloom.activation, bloom.embedding_norm, bloom.alibi) == ("gelu_tanh", True, "bloom")
    mpt = from_hf({**MPT, "max_seq_len": 99, "attn_config": {"softmax_scale": 0.3}}, "m")
    assert (mpt.scale, mpt.context_tokens, mpt.norm_bias) == (0.3, 99, False)
    assert from_hf({**MPT, "attn_config": None}, "m").scale == pytest.approx(80**-0.5)
    assert "transformer.blocks.1.norm_2.weight" in expected_shapes(mpt)


def test_a_checkpoint_of_the_inner_model_leaves_the_outer_name_out():
    shape = from_hf(BLOOM, "m")
    names = expected_shapes(shape)
    assert "transformer.word_embeddings_layernorm.bias" in names
    inner = {name.removeprefix("transformer."): sizes for name, sizes in names.items()}
    check_tensors(shape, inner, "m")
    del inner["h.1.mlp.dense_h_to_4h.bias"]
    with pytest.raises(MissingWeightsError, match="dense_h_to_4h"):
        check_tensors(shape, inner, "m")


def test_which_layers_have_experts():
    assert from_hf(MIXTRAL, "m").experts.layers == (True, True)
    four = {**QWEN, "num_hidden_layers": 4}
    assert from_hf({**four, "mlp_only_layers": [2]}, "m").experts.layers == (
        *(True, True),
        *(False, True),
    )
    assert from_hf({**four, "decoder_sparse_step": 2}, "m").experts.layers == (False, True) * 2


def test_tensors_of_experts():
    mixtral = expected_shapes(from_hf(MIXTRAL, "m"))
    start = "model.layers.1.block_sparse_moe."
    assert mixtral[f"{start}gate.weight"] == (5, 240)
    assert mixtral[f"{start}experts.4.w2.weight"] == (240, 88)
    assert not any(".mlp." in name for name in mixtral)
    config = {**QWEN, "moe_intermediate_size": 40, "mlp_only_layers": [0]}
    qwen = expected_shapes(from_hf(config, "m"))
    assert qwen["model.layers.1.mlp.experts.4.gate_proj.weight"] == (40, 240)
    assert qwen["model.layers.0.mlp.gate_proj.weight"] == (88, 240)
    assert "model.layers.0.mlp.gate.weight" not in qwen


def test_how_experts_are_chosen():
    mixtral, qwen = from_hf(MIXTRAL, "m").experts, from_hf(QWEN, "m").experts
    assert (mixtral.num_experts, mixtral.num_chosen, mixtral.normalised) == (5, 2, True)
    assert (qwen.intermediate_size, qwen.normalised) == (768, False)
    assert from_hf({**QWEN, "norm_topk_prob": True}, "m").experts.normalised
