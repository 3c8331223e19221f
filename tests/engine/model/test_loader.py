"""Loading by path: names for people, order of the checks, and what is told on the way."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import BadFileError, ConfigError, ModelError, UnsupportedModelError
from engine.model.linear import activation_dtype
from engine.model.loader import display_name, load_model

CPU = torch.device("cpu")


def load_quietly(path, **config):
    return load_model(path, EngineConfig(**config), CPU, lambda fraction, note: None)


@pytest.fixture
def tiny_file(tmp_path, gguf_maker):
    path = tmp_path / "Tiny-Chat.Q4_K_M.gguf"
    path.write_bytes(gguf_maker.file(*gguf_maker.tiny()))
    return path


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "SmolLM2-135M-Instruct"),
        ("Llama-3.2-1B.F16.gguf", "Llama-3.2-1B"),
        ("Llama-3.2-1B-BF16.GGUF", "Llama-3.2-1B"),
        ("Llama-3.2-1B-fp32.gguf", "Llama-3.2-1B"),
        ("qwen2.5-0.5b-instruct-q5_k_s.gguf", "qwen2.5-0.5b-instruct"),
        ("Qwen2.5-7B-Instruct-Q8_0-00001-of-00003.gguf", "Qwen2.5-7B-Instruct"),
        ("Qwen2.5-7B-Instruct-00001-of-00003.gguf", "Qwen2.5-7B-Instruct"),
        ("Mistral-7B-v0.3.i1-IQ2_XXS.gguf", "Mistral-7B-v0.3"),
        ("Qwen3-4B-UD-Q4_K_XL.gguf", "Qwen3-4B"),
        ("Qwen3-4B-IQ4_NL.gguf", "Qwen3-4B"),
        ("Qwen3-4B-Q4_0_4_8.gguf", "Qwen3-4B"),
        ("Qwen3-4B_Q6_K.gguf", "Qwen3-4B"),
        ("Qwen3-4B-TQ1_0.gguf", "Qwen3-4B"),
        ("gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b"),
        ("Yi-1.5.gguf", "Yi-1.5"),
        ("model-1.5", "model-1.5"),
        ("F16.gguf", "F16"),
        (".gguf", ".gguf"),
        ("SQ8_0.gguf", "SQ8_0"),
        ("Q4_K_M of mine.gguf", "Q4_K_M of mine"),
        ("日本語-Q4_0.gguf", "日本語"),
    ],
)
def test_name_of_a_file(tmp_path, file, name):
    assert display_name(tmp_path / file) == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Qwen3-0.6B", "Qwen3-0.6B"),
        ("Qwen3-0.6B.Q4_0", "Qwen3-0.6B.Q4_0"),
        ("models--Qwen--Qwen3-0.6B/snapshots/0a1b2c3d", "Qwen3-0.6B"),
        ("models--gpt2/snapshots/0a1b2c3d", "gpt2"),
        ("models--Qwen--Qwen3-0.6B", "models--Qwen--Qwen3-0.6B"),
        ("my models/snapshots/last", "last"),
    ],
)
def test_name_of_a_folder(tmp_path, folder, name):
    (tmp_path / folder).mkdir(parents=True)
    assert display_name(tmp_path / folder) == name


def test_file_in_the_hubs_cache_keeps_its_own_name(tmp_path):
    path = tmp_path / "models--org--Name-GGUF/snapshots/0a1b/Name.Q4_0.gguf"
    assert display_name(path) == "Name"


def test_root_folder_has_a_name():
    root = Path(os.path.abspath(os.sep))
    assert display_name(root) == str(root)


def test_general_name_is_not_shown(tiny_file, gguf_maker):
    metadata, tensors = gguf_maker.tiny()
    metadata["general.name"] = "Tiny 8k Lc100K Mix1 Ep2"
    tiny_file.write_bytes(gguf_maker.file(metadata, tensors))
    assert load_quietly(tiny_file).name == "Tiny-Chat"


def test_starter_name(starter_model):
    assert display_name(starter_model) == "SmolLM2-135M-Instruct"


def test_this_folder_is_named_in_full(tmp_path, monkeypatch, check_sentence):
    """`--model .` must not lead to sentences that begin with nothing."""
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    for path in (".", "../my-model"):
        with pytest.raises(BadFileError) as caught:
            load_quietly(Path(path))
        check_sentence(caught.value, "my-model is not a model folder")


# --- paths --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none.gguf", "none", "x" * 5000, "nul\0", "two\nlines", "a/b/c"])
def test_paths_that_are_not_there(tmp_path, check_sentence, name):
    with pytest.raises(BadFileError) as caught:
        load_quietly(tmp_path / name)
    check_sentence(caught.value, "does not exist")


def test_part_of_a_folder(tmp_path, check_sentence):
    for name in ("model.safetensors", "MODEL.SAFETENSORS"):
        (tmp_path / name).write_bytes(bytes(64))
        with pytest.raises(BadFileError) as caught:
            load_quietly(tmp_path / name)
        check_sentence(caught.value, name, "config.json")


def test_a_page_instead_of_the_model(tmp_path, check_sentence, cheap):
    path = tmp_path / "Model.Q4_0.gguf"
    path.write_text("<!DOCTYPE html><html><body>Please log in</body></html>")
    with cheap(), pytest.raises(BadFileError) as caught:
        load_quietly(path)
    check_sentence(caught.value, "Model.Q4_0.gguf", "web page")


def test_empty_folder_of_the_hubs_cache_is_named_as_people_do(tmp_path, check_sentence):
    folder = tmp_path / "models--org--Some-Model/snapshots/0a1b2c"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(UnsupportedModelError) as caught:
        load_quietly(folder)
    check_sentence(caught.value, "Some-Model", "bert")


# --- what is loaded -----------------------------------------------------------------------------


def test_facts_of_a_loaded_model(tiny_file):
    model = load_quietly(tiny_file, precision="exact")
    assert (model.name, model.file) == ("Tiny-Chat", str(tiny_file))
    assert (model.architecture, model.context_tokens, model.vocab_size) == ("llama", 64, 5)
    num_parameters = 2 * 5 * 8 + 3 * 8 + 2 * 8 * 8 + 2 * 4 * 8 + 3 * 6 * 8 - 5 * 8
    assert model.num_parameters == num_parameters
    assert (model.storage, model.weights_bytes) == ("fp32", 4 * num_parameters)
    assert model.kv.kv_dtype == torch.float32
    assert (model.kv.num_layers, model.kv.num_kv_heads, model.kv.k_dim) == (1, 1, 4)
    assert model.kv.bytes_per_token == 2 * 4 * 4
    assert model.path == "fast"
    assert model.tokenizer_source["tokenizer.ggml.tokens"][3] == "é"


def test_fast_mode_halves_the_kv(tiny_file):
    model = load_quietly(tiny_file, precision="fast")
    assert model.kv.kv_dtype == torch.bfloat16
    assert model.kv.bytes_per_token == 2 * 4 * 2
    assert activation_dtype(model.storage) in (torch.float32, torch.bfloat16)


def test_progress_rises_from_nothing_to_all(tiny_folder, tmp_path):
    tiny_folder("llama", tmp_path / "model")
    told = []
    load_model(
        tmp_path / "model",
        EngineConfig(),
        CPU,
        lambda fraction, note: told.append((fraction, note)),
    )
    fractions = [fraction for fraction, _ in told]
    assert fractions[0] == 0
    assert fractions[-1] == 1
    assert fractions == sorted(fractions)
    assert len(set(fractions)) >= 5
    assert all(note for _, note in told)


def test_progress_may_give_up(tiny_file):
    class GivenUp(Exception):
        pass

    def progress(fraction, note):
        if fraction > 0:
            raise GivenUp

    with pytest.raises(GivenUp):
        load_model(tiny_file, EngineConfig(), CPU, progress)


def test_weights_are_not_read_before_all_is_checked(tiny_file, gguf_maker):
    """The last tensor of the last layer is wrong: nobody hears of reading weights."""
    metadata, tensors = gguf_maker.tiny()
    tensors["blk.0.ffn_down.weight"] = np.zeros((8, 5))
    tiny_file.write_bytes(gguf_maker.file(metadata, tensors))
    told = []
    with pytest.raises(ModelError):
        load_model(tiny_file, EngineConfig(), CPU, lambda fraction, note: told.append(fraction))
    assert told == [0.0]


def test_backend_that_cannot_run_here(tiny_file):
    with pytest.raises(ConfigError, match="gpu"):
        load_quietly(tiny_file, backend="gpu")
