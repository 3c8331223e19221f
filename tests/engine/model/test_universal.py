"""The universal path: what it loads, what it refuses and how; it is the equal of the fast path."""

from __future__ import annotations

import dataclasses
import gc
import json
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import MissingWeightsError, ModelError, UnsupportedModelError
from engine.model.loader import check_model, load_model, load_universal
from engine.model.safetensors import Tensors, read_config
from engine.model.universal import open_universal
from kernels.dispatch import choose

CPU = torch.device("cpu")
EXACT = EngineConfig(precision="exact", backend="reference")
VOCAB = 131
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def make(stem: str, folder: Path, **changes: Any) -> Any:
    """A random transformers model with loud weights, saved."""
    import transformers

    config = getattr(transformers, f"{stem}Config")(**{**SIZES, **changes})
    config._attn_implementation = "eager"
    torch.manual_seed(3)
    model = getattr(transformers, f"{stem.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) / 4
            parameter.copy_(1 + noise if "norm" in name else noise)
    model.save_pretrained(folder)
    return model


def own_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens])).logits[0].float()


def forced(folder: Path) -> Any:
    """Through the universal path, whatever the fast path knows."""
    ops = choose(CPU, torch.float32, "reference")
    opened = open_universal(folder, "tiny", read_config(folder, "tiny"), EXACT, CPU, ops)
    return load_universal(opened, EXACT, CPU, lambda fraction, note: None)


def rewrite(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}), "utf-8")


def is_one_sentence(error: BaseException) -> bool:
    text = str(error)
    return text.endswith(".") and "\n" not in text and ". " not in text


@pytest.fixture
def helium(tmp_path: Path) -> Path:
    make("Helium", tmp_path / "helium")
    return tmp_path / "helium"


# --- what is loaded -------------------------------------------------------------------------------


def test_facts_of_a_loaded_model(helium, load):
    model = load(helium, backend="reference")
    stored = load_file(helium / "model.safetensors")
    num_parameters = sum(tensor.numel() for tensor in stored.values())
    assert (model.path, model.architecture, model.name) == ("universal", "helium", "helium")
    assert (model.vocab_size, model.context_tokens) == (VOCAB, 128)
    assert model.num_parameters == num_parameters
    rotary_bytes = 2 * 4 * (8 // 2)  # the frequencies, and their original
    assert model.weights_bytes == 4 * num_parameters + rotary_bytes
    assert model.storage == "fp32"
    assert (model.kv.num_kv_heads, model.kv.k_dim, model.kv.v_dim) == (2, 8, 8)
    assert model.tokenizer_source == helium


def test_bf16_in_fast_mode(tmp_path, load, paged_runner):
    reference = make("Helium", tmp_path)
    model = load(tmp_path, "fast", "reference")
    assert model.kv.kv_dtype == torch.bfloat16
    runner = paged_runner(model)
    tokens = list(range(3, 40))
    got = runner.read(runner.add(tokens), 9)
    wanted = own_logits(reference, tokens)[-1]
    assert 0 < (got - wanted).norm() / wanted.norm() < 0.05


@pytest.mark.parametrize(
    ("stem", "changes"),
    [
        ("Llama", {}),
        ("Qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("Gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 20}),
        ("Gemma3Text", {"sliding_window": 8, "num_hidden_layers": 7}),
        ("Phi3", {}),
        ("Cohere2", {"sliding_window": 8, "num_hidden_layers": 5}),
        ("StableLm", {"partial_rotary_factor": 0.5}),
    ],
)
def test_equals_the_fast_path(tmp_path, load, paged_runner, stem, changes):
    make(stem, tmp_path, **changes)
    fast, universal = load(tmp_path, backend="reference"), forced(tmp_path)
    assert (fast.path, universal.path) == ("fast", "universal")
    assert universal.kv == fast.kv
    assert universal.context_tokens == fast.context_tokens
    assert universal.num_parameters == fast.num_parameters
    logits = []
    for model in (fast, universal):
        runner = paged_runner(model, block_tokens=5)
        first, second = runner.add(list(range(3, 43))), runner.add(list(range(90, 70, -1)))
        steps = [runner.step(plan) for plan in ({first: 17}, {first: 22, second: 19})]
        steps.append(runner.step({first: 1, second: 1}))
        logits.append(torch.cat([row[None] for step in steps for row in step.values()]))
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)


def test_no_row_is_wanted(helium, load, paged_runner):
    """A step that only reads a part of a prompt asks for no logits."""
    model = load(helium, backend="reference")
    runner = paged_runner(model)
    seen = []

    def forward(batch: Any, cache: Any) -> torch.Tensor:
        none = dataclasses.replace(batch, logit_rows=batch.logit_rows[:0])
        seen.append(model.forward(none, cache).shape)
        return model.forward(batch, cache)

    runner.model = type("Twice", (), {"forward": staticmethod(forward), "vocab_size": VOCAB})
    runner.read(runner.add([5, 6, 7]), 2)
    assert seen == [(0, VOCAB), (0, VOCAB)]


def test_settings_that_the_fast_path_refuses_run_here(tmp_path, load, paged_runner):
    reference = make("Qwen3", tmp_path, hidden_act="gelu_10")
    model = load(tmp_path, backend="reference")
    assert model.path == "universal"
    runner = paged_runner(model)
    tokens = list(range(3, 60))
    got = runner.read(runner.add(tokens), 16)
    torch.testing.assert_close(got, own_logits(reference, tokens)[-1], rtol=1e-4, atol=1e-4)


def test_experts_stored_one_by_one(tmp_path, load):
    """Checkpoints hold each expert by itself, where the model holds them stacked."""
    make("Olmoe", tmp_path, **EXPERTS)
    stored = load_file(tmp_path / "model.safetensors")
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in stored
    assert load(tmp_path, backend="reference").num_parameters == sum(
        tensor.numel() for tensor in stored.values()
    )
    del stored["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(MissingWeightsError) as caught:
        load(tmp_path, backend="reference")
    assert is_one_sentence(caught.value)


def test_a_tied_head_counts_once(tmp_path, load):
    make("Helium", tmp_path / "two")
    make("Helium", tmp_path / "one", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "one" / "model.safetensors")
    two, one = (load(tmp_path / part, backend="reference") for part in ("two", "one"))
    assert two.num_parameters - one.num_parameters == VOCAB * 48
    assert two.weights_bytes - one.weights_bytes == 4 * VOCAB * 48


def test_latents_lie_in_the_pool(tmp_path):
    latent = {"q_lora_rank": None, "kv_lora_rank": 20, "qk_rope_head_dim": 8, "v_head_dim": 12}
    few = {"qk_nope_head_dim": 16, "num_key_value_heads": 6, "first_k_dense_replace": 9}
    make("DeepseekV3", tmp_path, **latent, **few)
    kv = forced(tmp_path).kv
    assert (kv.num_kv_heads, kv.k_dim, kv.v_dim) == (1, 20, 8)
    assert kv.bytes_per_token == 3 * (20 + 8) * 4  # heads would take 6 * (24 + 12)


def test_windowed_layers_have_groups_of_their_own(tmp_path):
    make("Olmo3", tmp_path, num_hidden_layers=4, sliding_window=9)
    groups = forced(tmp_path).kv.groups
    assert {layer: group.window for group in groups for layer in group.layers} == {
        0: 9, 1: 9, 2: 9, 3: 0,
    }  # fmt: skip


def test_longrope_ends_where_its_frequencies_would_change(tmp_path):
    half = SIZES["hidden_size"] // SIZES["num_attention_heads"] // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * half,
        "long_factor": [4.0] * half,
        "original_max_position_embeddings": 64,
    }
    make("Phi3", tmp_path, rope_parameters=rope, original_max_position_embeddings=64)
    assert forced(tmp_path).context_tokens == 64


def test_dynamic_rope_keeps_its_frequencies(tmp_path, paged_runner):
    """A longer text in the same step must not change what a shorter one is told."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    reference = make("Llama", tmp_path, rope_parameters=rope)
    model = forced(tmp_path)
    assert model.context_tokens == 128
    runner = paged_runner(model)
    long, short = runner.add([5] * 128), runner.add(list(range(3, 23)))
    got = runner.step({long: 128, short: 20})[short]
    wanted = own_logits(reference, list(range(3, 23)))[-1]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


class GiveUp(Exception):
    pass


def test_progress_rises(helium):
    told: list[tuple[float, str]] = []
    load_model(helium, EXACT, CPU, lambda fraction, note: told.append((fraction, note)))
    assert [fraction for fraction, _ in told] == sorted(fraction for fraction, _ in told)
    assert told[-1][0] == 1.0
    assert len([note for _, note in told if note == "Reading weights"]) > 10


def test_a_load_that_gives_up_keeps_nothing(helium, monkeypatch):
    read: list[weakref.ref[torch.Tensor]] = []
    load_tensor = Tensors.load

    def watched(self: Tensors, name: str) -> torch.Tensor:
        tensor = load_tensor(self, name)
        read.append(weakref.ref(tensor))
        return tensor

    def stop(fraction: float, note: str) -> None:
        if fraction > 0.6:
            raise GiveUp

    monkeypatch.setattr(Tensors, "load", watched)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(GiveUp):
            load_model(helium, EXACT, CPU, stop)
        assert len(read) > 10
        assert not [tensor for tensor in read if tensor() is not None]
    finally:
        gc.enable()


def test_nothing_is_fetched_and_nobody_is_asked(helium, load, monkeypatch):
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network, or a person, was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("builtins.input", refuse)
    rewrite(
        helium,
        auto_map={"AutoModelForCausalLM": "evil.Model"},
        _attn_implementation="kernels-community/flash-attn",
        attn_implementation="kernels-community/flash-attn",
        transformers_weights="other.safetensors",
    )
    (helium / "evil.py").write_text("raise SystemExit('code of a stranger ran')\n")
    assert load(helium, backend="reference").path == "universal"


# --- damaged files --------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_named(helium, load):
    file = helium / "model.safetensors"
    stored = load_file(file)
    name = "model.layers.1.self_attn.k_proj.weight"
    for change, words in (
        ({name: None}, f"lacks the tensor {name}"),
        ({name: torch.zeros(5, 48)}, r"\[5, 48\]"),
        ({"model.layers.9.odd": torch.zeros(2)}, "model.layers.9.odd"),
    ):
        changed = {k: v for k, v in {**stored, **change}.items() if v is not None}
        save_file(changed, file)
        with pytest.raises(MissingWeightsError, match=words) as caught:
            load(helium, backend="reference")
        assert is_one_sentence(caught.value)
        with pytest.raises(MissingWeightsError, match=words):
            check_model(helium, EXACT, CPU)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": "three"},
        {"num_attention_heads": 0},
        {"num_attention_heads": 10**8},
        {"hidden_size": -4},
        {"max_position_embeddings": 10**12},
        {"max_position_embeddings": None},
        {"rope_parameters": {"rope_type": "spiral"}},
        {"hidden_act": "no such thing"},
        {"num_hidden_layers": 1000, "num_experts": 4000},
        {"vocab_size": 10**15},
    ],
)
def test_impossible_settings(helium, changes):
    rewrite(helium, **changes)
    with pytest.raises(ModelError) as caught:
        check_model(helium, EXACT, CPU)
    assert is_one_sentence(caught.value), str(caught.value)


# --- kinds of models that cannot run --------------------------------------------------------------

STATE = "recurrent state"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "mamba": ({"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": VOCAB}, STATE),
    "mamba2": (
        {"num_hidden_layers": 2, "hidden_size": 32, "num_heads": 4, "head_dim": 16,
         "vocab_size": VOCAB},
        STATE,
    ),
    "rwkv": ({"num_hidden_layers": 2, "hidden_size": 32, "vocab_size": VOCAB}, STATE),
    "jamba": ({**SIZES}, STATE),
    "qwen3_next": ({**SIZES}, STATE),
    "recurrent_gemma": ({**SIZES}, STATE),
    "minimax": ({**SIZES}, STATE),
    "lfm2": ({**SIZES, "layer_types": ["conv", "full_attention", "conv"]}, STATE),
    "llama4_text": ({**SIZES, "attention_chunk_size": 16, "num_local_experts": 2}, "in chunks"),
    "deepseek_v32": ({**SIZES}, "by an index"),
    "t5": ({"d_model": 32, "num_layers": 2, "vocab_size": VOCAB}, "encoder"),
    "bart": ({"d_model": 32, "vocab_size": VOCAB}, "encoder"),
    "bert": ({**SIZES}, "both directions"),
    "gemma3": ({}, "pictures"),
    "xglm": ({"d_model": 32, "num_layers": 2, "vocab_size": VOCAB}, "attention interface"),
    "diffllama": ({**SIZES}, "several times"),
    "never_heard_of": ({**SIZES}, "does not know"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_cannot_run(tmp_path, kind):
    """Each in one sentence that names what is missing, before any weight is looked for."""
    values, words = REFUSED[kind]
    if kind == "diffllama":
        make("DiffLlama", tmp_path)
    else:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **values}))
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        load_model(
            tmp_path,
            EXACT,
            CPU,
            lambda fraction, note: None,
        )
    assert is_one_sentence(caught.value)
    assert tmp_path.name in str(caught.value)


def test_code_of_its_own_is_refused(tmp_path):
    values = {**SIZES, "model_type": "baichuan", "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "evil.py").write_text("raise SystemExit('code of a stranger ran')\n")
    with pytest.raises(UnsupportedModelError, match="needs code of its own") as caught:
        check_model(tmp_path, EngineConfig(), CPU)
    assert is_one_sentence(caught.value)


def test_quantised_folders_are_refused(helium):
    rewrite(helium, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match="gptq"):
        check_model(helium, EngineConfig(), CPU)


def test_a_state_beside_the_pool_shows(helium, load, monkeypatch):
    """A layer that mixes a token with the one before it, outside of attention: no name gives it
    away, only its answers do."""
    from transformers.models.helium.modeling_helium import HeliumMLP

    forward = HeliumMLP.forward

    def mixing(self: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(self, x + torch.nn.functional.pad(x, (0, 0, 1, -1)))

    monkeypatch.setattr(HeliumMLP, "forward", mixing)
    for precision in ("exact", "fast"):
        with pytest.raises(UnsupportedModelError, match="what it says by itself") as caught:
            load(helium, precision, "reference")
        assert is_one_sentence(caught.value)
