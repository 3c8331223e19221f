"""Shapes of models out of config.json and GGUF metadata: defaults, and refusals by name."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import BadFileError, ModelError, UnsupportedModelError
from engine.model.config import SUPPORTED, DecoderConfig, from_hf
from engine.model.families import IN_GGUF
from engine.model.gguf_config import from_gguf

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
    "vocab_size": 131,
}
LLAMA = {"model_type": "llama", **SMALL}


@pytest.fixture
def tiny_gguf(gguf_maker):
    """gguf(**changed keys, without their prefix) -> what from_gguf makes of the tiny model."""
    metadata, tensors = gguf_maker.tiny()
    shapes = {name: values.shape for name, values in tensors.items()}

    def read(changes=None, arch="llama", **tensor_shapes):
        values = {key.replace("llama.", f"{arch}."): value for key, value in metadata.items()}
        values["general.architecture"] = arch
        for key, value in (changes or {}).items():
            values[key if key.startswith(("general.", "split.")) else f"{arch}.{key}"] = value
        values = {key: value for key, value in values.items() if value is not ...}
        return from_gguf(values, {**shapes, **tensor_shapes}, "tiny.gguf")

    return read


# --- config.json --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SUPPORTED)
def test_what_a_config_leaves_out_is_as_transformers_has_it(kind):
    """A sparse config.json means the same as the full one that transformers writes of it."""
    from transformers import AutoConfig

    kv = {"num_key_value_heads": 4} if kind == "smollm3" else {}
    sparse = {"model_type": kind, **SMALL, **kv}
    full = AutoConfig.for_model(**sparse).to_dict()
    assert from_hf(sparse, "sparse") == from_hf(full, "full")


# No head size of their own: always the hidden size over the heads.
NO_HEAD_SIZE = ("gpt_neox", "cohere2", "stablelm", "falcon", "bloom", "mpt")


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 8},
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 2, "head_dim": 24},
        {"rope_theta": 5e5},
    ],
)
@pytest.mark.parametrize("kind", SUPPORTED)
def test_settings_mean_what_they_mean_to_transformers(kind, changes):
    from transformers import AutoConfig

    sparse = {"model_type": kind, **SMALL, **changes}
    if "head_dim" in changes and kind in NO_HEAD_SIZE:
        with pytest.raises(ModelError):  # transformers would not do what the file says
            from_hf(sparse, "sparse")
        return
    full = AutoConfig.for_model(**sparse).to_dict()
    ours, theirs = from_hf(sparse, "sparse"), from_hf(full, "full")
    assert ours == theirs
    kinds = full.get("layer_types")
    if kind != "mistral" and kinds:
        windowed = [kind == "sliding_attention" for kind in kinds]
        assert [window > 0 for window in theirs.windows] == windowed


# Training, generation, labels, and what is said of the file itself: none changes a forward pass.
HARMLESS = {
    *("_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label"),
    *("is_encoder_decoder", "is_decoder", "label2id", "output_attentions", "output_hidden_states"),
    *("problem_type", "return_dict", "transformers_version", "use_cache", "initializer_range"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "pretraining_tp"),
    *("attention_dropout", "hidden_dropout", "classifier_dropout", "resid_pdrop", "embd_pdrop"),
    *("residual_dropout", "embedding_dropout", "cross_attention_hidden_size"),
    *("add_cross_attention", "tie_encoder_decoder", "_sliding_window_pattern"),
    *("output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
    *("emb_pdrop", "embedding_fraction", "init_device"),
}
# What decides nothing where the settings that our reading asked for first have decided.
DECIDED = {"layer_types", "max_window_layers", "no_rope_layer_interval", "use_sliding_window"}
DECIDED |= {"original_max_position_embeddings"}  # of scaled positions only
DECIDED |= {"learned_pos_emb"}  # MPT has none with ALiBi, and without it is refused
DECIDED |= {"rope_parameters"}  # read from a copy, see test_rotary_by_family


@pytest.mark.parametrize("kind", SUPPORTED)
def test_no_setting_of_transformers_is_passed_over(kind):
    """Every key that transformers writes for a family is read by us or known to be harmless."""
    from transformers import AutoConfig

    class Recorder(dict):
        seen: set[str]

        def get(self, key, default=None):
            self.seen.add(key)
            return super().get(key, default)

        def __contains__(self, key):
            self.seen.add(key)
            return super().__contains__(key)

    kv = {"num_key_value_heads": 4} if kind in ("smollm3", "gemma2", "gemma3_text") else {}
    config = Recorder(AutoConfig.for_model(kind, **SMALL, **kv).to_dict())
    config.seen = set()
    from_hf(config, "x")
    # Ours, see SMALL: these families have other words for it, or none.
    foreign = {"intermediate_size"} if kind in ("falcon", "bloom", "mpt") else set()
    assert set(config) - config.seen - HARMLESS - DECIDED - foreign == set()


def test_scales_by_family():
    def shape(kind, **changes):
        return from_hf({**LLAMA, "model_type": kind, **changes}, "x")

    gemma = shape("gemma2", query_pre_attn_scalar=64, attn_logit_softcapping=None)
    assert (gemma.scale, gemma.embedding_scale) == (0.125, 16.0)
    assert (gemma.attention_softcap, gemma.logit_softcap) == (0.0, 30.0)
    assert shape("gemma2").attention_softcap == 50.0
    granite = shape("granite", attention_multiplier=0.25, logits_scaling=8.0)
    assert (granite.scale, granite.logit_scale) == (0.25, 0.125)
    assert shape("cohere2").logit_scale == 0.0625
    assert shape("llama").scale == 8**-0.5


def test_rotary_by_family():
    def shape(kind, **changes):
        return from_hf({**LLAMA, "model_type": kind, **changes}, "x")

    assert shape("gpt_neox", rotary_pct=0.5, rotary_emb_base=7.0).rotary_dim == 4
    assert shape("gpt_neox", rotary_emb_base=7.0).rope_theta == 7.0
    assert shape("stablelm", partial_rotary_factor=0.75).rotary_dim == 6
    old = {"rope_theta": 5.0, "rope_local_base_freq": 3.0}
    scaling = {"rope_type": "linear", "factor": 8.0}
    gemma = shape("gemma3_text", **old, rope_scaling=scaling)
    parts = {
        "full_attention": {"rope_theta": 5.0, **scaling},
        "sliding_attention": {"rope_theta": 3.0, "rope_type": "default"},
    }
    assert shape("gemma3_text", rope_parameters=parts) == gemma
    assert (gemma.rope_theta, gemma.rope_scaling.factor) == (5.0, 8.0)
    assert gemma.local_rope is not None
    assert (gemma.local_rope[0], gemma.local_rope[1].kind) == (3.0, "default")
    assert shape("cohere2").rope_layers == (True, True, True, False, True, True)


def test_null_means_left_out_but_for_the_window():
    nulls = dict.fromkeys(("head_dim", "num_key_value_heads", "rope_scaling", "attention_bias"))
    assert from_hf({**LLAMA, **nulls}, "x") == from_hf(LLAMA, "x")
    mistral = {**LLAMA, "model_type": "mistral"}
    assert from_hf(mistral, "x").windows == (4096,) * 6
    assert from_hf({**mistral, "sliding_window": None}, "x").windows == (0,) * 6


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [9.0] * 4}


@pytest.mark.parametrize("kind", ["llama", "phi3", "gemma3_text"])
def test_stretched_contexts_that_are_run_unstretched(kind):
    """Beyond these contexts transformers turns all positions anew; we end there."""
    config = {**LLAMA, "model_type": kind, "head_dim": 8, "max_position_embeddings": 4096}
    config["num_key_value_heads"] = 32
    longrope = {**LONGROPE, "original_max_position_embeddings": 1024}
    assert from_hf({**config, "rope_scaling": longrope}, "x").context_tokens == 1024
    outside = {"rope_scaling": LONGROPE, "original_max_position_embeddings": 512}
    if kind != "gemma3_text":  # for layers that differ, transformers does not look there
        assert from_hf({**config, **outside}, "x").context_tokens == 512
    assert from_hf({**config, "rope_scaling": LONGROPE}, "x").context_tokens == 4096
    if kind != "phi3":
        dynamic = {"rope_type": "dynamic", "factor": 4.0}
        assert from_hf({**config, "rope_scaling": dynamic}, "x").context_tokens == 4096


@pytest.mark.parametrize(
    "changes",
    [
        {"short_factor": [1.0, 2.0, 3.0]},
        {"short_factor": [1.0, 2.0, 3.0, 0.0]},
        {"short_factor": 4.0},
        {"short_factor": []},
        {"short_factor": None},
        {"short_factor": [1.0, 2.0, 3.0, "4"]},
        {"original_max_position_embeddings": 1},
        {"attention_factor": -1.0},
    ],
)
def test_wrong_longrope(changes, check_sentence):
    with pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, "head_dim": 8, "rope_scaling": {**LONGROPE, **changes}}, "my-model")
    check_sentence(caught.value, "my-model")


def test_layers_without_positions():
    smollm = {**LLAMA, "model_type": "smollm3", "num_key_value_heads": 4}
    assert from_hf(smollm, "x").rope_layers == (True, True, True, False, True, True)
    every = from_hf({**smollm, "no_rope_layer_interval": 2}, "x")
    assert every.rope_layers == (True, False) * 3
    flags = from_hf({**smollm, "no_rope_layers": [0, 1, 1, 1, 1, 0]}, "x")
    assert flags.rope_layers == (False, True, True, True, True, False)


@pytest.mark.parametrize(
    "kind", ["bert", "gpt2", "mamba2", "deepseek_v3", "LLAMA", "x" * 9999, "two\nlines"]
)
def test_other_architectures_are_named(kind, check_sentence):
    with pytest.raises(UnsupportedModelError) as caught:
        from_hf({**LLAMA, "model_type": kind}, "my-model")
    check_sentence(caught.value, "my-model", kind[:3], "Llama", "Qwen3")


@pytest.mark.parametrize("kind", [None, "", 3, ["llama"], {"a": 1}, True])
def test_no_architecture(kind, check_sentence):
    for config in ({}, {**LLAMA, "model_type": kind}):
        with pytest.raises(BadFileError) as caught:
            from_hf(config, "my-model")
        check_sentence(caught.value, "my-model", "architecture")


@pytest.mark.parametrize("key", sorted(SMALL))
def test_every_size_is_needed(key, check_sentence):
    for config in ({k: v for k, v in LLAMA.items() if k != key}, {**LLAMA, key: None}):
        with pytest.raises(BadFileError) as caught:
            from_hf(config, "my-model")
        check_sentence(caught.value, "my-model/config.json", key)


WRONG = [0, -1, 2.0, "32", [], {}, True, 1 << 40, 10**400, "x" * 9999]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize(
    "key",
    [*SMALL, "max_position_embeddings", "num_key_value_heads", "head_dim"],
)
def test_wrong_sizes(key, value, check_sentence):
    with pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, key: value}, "my-model")
    check_sentence(caught.value, "my-model", key)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 1025, "layers"),
        ("hidden_size", 1 << 20, "hidden size"),
        ("vocab_size", 1 << 30, "vocab size"),
        ("max_position_embeddings", (1 << 31) - 1, "context tokens"),
        ("num_attention_heads", 2048, "num heads"),
        ("head_dim", 4096, "head dim"),
        ("head_dim", 7, "7 values"),
        ("num_key_value_heads", 5, "does not divide"),
        ("num_key_value_heads", 64, "does not divide"),
    ],
)
def test_absurd_sizes(key, value, words, check_sentence, cheap):
    with cheap(), pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, "num_key_value_heads": 8, "head_dim": 8, key: value}, "my-model")
    check_sentence(caught.value, "my-model", words)


@pytest.mark.parametrize("value", [0, -1e-5, math.nan, math.inf, 10**400, "1e-5", [1e-5], True])
@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "partial_rotary_factor"])
def test_wrong_numbers(key, value, check_sentence):
    with pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, key: value}, "my-model")
    check_sentence(caught.value, "my-model", key)


@pytest.mark.parametrize("value", ["false", 1, 0.0, [], {}])
@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias", "tie_word_embeddings"])
def test_wrong_switches(key, value, check_sentence):
    with pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, key: value}, "my-model")
    check_sentence(caught.value, "my-model", key)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("mistral", {"sliding_window": "8"}, "sliding_window"),
        ("mistral", {"sliding_window": -8}, "sliding_window"),
        ("mistral", {"sliding_window": 8.0}, "sliding_window"),
        ("qwen2", {"use_sliding_window": "yes", "sliding_window": 8}, "use_sliding_window"),
        ("qwen2", {"max_window_layers": "x"}, "max_window_layers"),
        ("qwen2", {"layer_types": 5}, "layer_types"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2", {"layer_types": {"a": 1}}, "layer_types"),
        ("smollm3", {"no_rope_layers": 3}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("smollm3", {"no_rope_layers": [], "no_rope_layer_interval": "4"}, "interval"),
        ("smollm3", {"no_rope_layer_interval": -4}, "no_rope_layer_interval"),
    ],
)
def test_wrong_kinds_of_layers(kind, changes, words, check_sentence):
    config = {"use_sliding_window": True, "sliding_window": 8, **changes}
    with pytest.raises(BadFileError) as caught:
        from_hf({**LLAMA, "model_type": kind, "num_key_value_heads": 4, **config}, "my-model")
    check_sentence(caught.value, "my-model", words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"quantization_config": {}, "hidden_act": "quick_gelu"}, "quick_gelu"),
        ({"quantization_config": ["x"]}, "unknown method"),
        ({"quantization_config": {"quant_method": ["x" * 9999]}}, "xx"),
        ({"hidden_act": ["silu"]}, "activation"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 4.0}}, "proportional"),
        ({"model_type": "phi3", "rope_scaling": {"type": "su", "factor": 4.0}}, "su"),
        ({"model_type": "phi3", "rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "bidirectional"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma2", "layer_types": ["linear_attention"] * 6}, "linear_attention"),
        ({"model_type": "gemma2", "hidden_activation": "quick_gelu"}, "quick_gelu"),
        ({"model_type": "gpt_neox", "num_key_value_heads": 4}, "num_key_value_heads"),
        ({"model_type": "cohere2", "use_qk_norm": True}, "use_qk_norm"),
        ({"model_type": "granite", "partial_rotary_factor": 0.5}, "a part of each head"),
        ({"model_type": "phi3", "rope_scaling": {"type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["chunked_attention"] * 6,
            },
            "chunked_attention",
        ),
    ],
)
def test_what_is_not_run_is_refused_by_name(changes, words, check_sentence):
    with pytest.raises(UnsupportedModelError) as caught:
        from_hf({**LLAMA, **changes}, "my-model")
    check_sentence(caught.value, "my-model", words)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)
KEYS = [
    *LLAMA,
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act"),
    *("rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"),
    *("tie_word_embeddings", "sliding_window", "use_sliding_window", "max_window_layers"),
    *("layer_types", "no_rope_layers", "no_rope_layer_interval", "quantization_config"),
    *("partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("hidden_activation", "layer_norm_eps", "norm_epsilon", "use_bias", "use_qkv_bias"),
    *("use_parallel_residual", "qk_layernorm", "rotary_pct", "rotary_emb_base", "logit_scale"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"),
    *("attention_multiplier", "residual_multiplier", "logits_scaling", "sliding_window_pattern"),
    *("rope_local_base_freq", "use_bidirectional_attention"),
]


@settings(max_examples=600, deadline=1000)
@given(
    kind=st.sampled_from(SUPPORTED),
    changes=st.dictionaries(st.sampled_from(KEYS), json_values, min_size=1, max_size=4),
)
def test_any_json_is_read_or_refused(check_sentence, kind, changes):
    outcome = None
    try:
        outcome = from_hf({**LLAMA, "model_type": kind, **changes}, "my-model")
    except ModelError as error:
        outcome = error
    if isinstance(outcome, ModelError):
        check_sentence(outcome, "my-model")
    else:
        assert isinstance(outcome, DecoderConfig)
        assert len(outcome.windows) == len(outcome.rope_layers) == outcome.num_layers


# --- GGUF ---------------------------------------------------------------------------------------


def test_gguf_shape(tiny_gguf):
    shape = tiny_gguf()
    assert (shape.num_layers, shape.hidden_size, shape.intermediate_size) == (1, 8, 6)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (2, 1, 4)
    assert (shape.vocab_size, shape.context_tokens, shape.rotary_dim) == (5, 64, 4)
    assert shape.rope_theta == 100.0
    assert shape.norm_eps == pytest.approx(1e-5)
    assert shape.tied_head
    assert shape.permuted_qk
    assert not any((shape.qkv_bias, shape.output_bias, shape.mlp_bias, shape.qk_norm))


def test_gguf_tells_by_its_tensors(tiny_gguf):
    names = ("output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_down.bias")
    shape = tiny_gguf(**dict.fromkeys(names, (8,)))
    assert (shape.tied_head, shape.qkv_bias, shape.output_bias) == (False, True, True)
    assert shape.mlp_bias


def test_gguf_rows_beyond_the_words_are_kept(tiny_gguf):
    assert tiny_gguf({"vocab_size": 5}, **{"token_embd.weight": (9, 8)}).vocab_size == 9


def test_gguf_values_per_layer(tiny_gguf):
    assert tiny_gguf({"feed_forward_length": [6]}).intermediate_size == 6
    with pytest.raises(UnsupportedModelError, match="different shapes"):
        tiny_gguf({"feed_forward_length": [6, 7]})


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
def test_gguf_permutation_by_family(tiny_gguf, arch):
    assert arch in IN_GGUF
    assert tiny_gguf(arch=arch).permuted_qk == (arch in ("llama", "mistral", "smollm3"))
    assert tiny_gguf(arch=arch).qk_norm == (arch == "qwen3")


NEEDED = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
]


@pytest.mark.parametrize("key", NEEDED)
def test_gguf_missing_keys(tiny_gguf, key, check_sentence):
    with pytest.raises(BadFileError) as caught:
        tiny_gguf({key: ...})
    check_sentence(caught.value, "tiny.gguf", key)


@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("key", [*NEEDED[:5], "attention.head_count_kv", "rope.dimension_count"])
def test_gguf_wrong_types(tiny_gguf, key, value, check_sentence):
    with pytest.raises(ModelError) as caught:
        tiny_gguf({key: value})
    check_sentence(caught.value, "tiny.gguf", key)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context_length": (1 << 31) - 1}, "2,147,483,647"),
        ({"context_length": (1 << 24) + 1}, "context tokens"),
        ({"block_count": 1025}, "1,025 layers"),
        ({"block_count": (1 << 31) - 1}, "layers"),
        ({"attention.head_count": 1 << 20}, "tiny.gguf"),
        ({"attention.head_count_kv": 3}, "does not divide"),
        ({"rope.dimension_count": 3}, "3 values"),
        ({"rope.dimension_count": 6}, "6 values"),
        ({"attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon"),
        ({"attention.layer_norm_rms_epsilon": "1e-5"}, "layer_norm_rms_epsilon"),
        ({"rope.freq_base": math.inf}, "rope.freq_base"),
        ({"rope.freq_base": [1e4]}, "rope.freq_base"),
        ({"attention.sliding_window": -1}, "sliding_window"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": "2"}, "factor"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}, "factor"),
        ({"rope.scaling.factor": [2.0]}, "factor"),
    ],
)
def test_gguf_absurd_values(tiny_gguf, changes, words, check_sentence, cheap):
    with cheap(), pytest.raises(BadFileError) as caught:
        tiny_gguf(changes)
    check_sentence(caught.value, "tiny.gguf", words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "gptneox"}, "gptneox"),
        ({"general.type": "adapter"}, "adapter"),
        ({"general.type": ["x"] * 999}, "tiny.gguf"),
        ({"split.count": 3}, "split over several files"),
        ({"expert_count": 8}, "expert_count"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"logit_scale": 0.125}, "logit_scale"),
        ({"attention.causal": False}, "attention.causal"),
        ({"embedding_scale": ["x"] * 999}, "embedding_scale"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "longrope"),
        ({"rope.scaling.type": 4}, "4"),
        ({"rope.scaling.attn_factor": 1.2}, "attn_factor"),
        ({"attention.value_length": 8}, "different sizes"),
    ],
)
def test_gguf_that_is_not_run_is_refused_by_name(tiny_gguf, changes, words, check_sentence):
    with pytest.raises(UnsupportedModelError) as caught:
        tiny_gguf(changes)
    check_sentence(caught.value, "tiny.gguf", words)


def test_gguf_neutral_values_are_fine(tiny_gguf):
    neutral = {"expert_count": 0, "logit_scale": 1.0, "attention.causal": True}
    more = {"rope.scaling.type": "none", "rope.scaling.factor": 4.0, "split.count": 1}
    assert tiny_gguf({**neutral, **more, "general.type": "model"}) == tiny_gguf()


@pytest.mark.parametrize("arch", [None, "", 7, ["llama"], ...])
def test_gguf_without_an_architecture(arch, check_sentence, gguf_maker):
    metadata, _ = gguf_maker.tiny()
    metadata["general.architecture"] = arch
    if arch is ...:
        del metadata["general.architecture"]
    with pytest.raises(BadFileError) as caught:
        from_gguf(metadata, {}, "tiny.gguf")
    check_sentence(caught.value, "tiny.gguf", "architecture")
