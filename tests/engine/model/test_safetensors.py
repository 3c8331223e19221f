"""Model folders: weights as safetensors wrote them, and a sentence for every broken folder."""

from __future__ import annotations

import json
import os
import shutil
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import BadFileError, MissingWeightsError, ModelError, UnsupportedModelError
from engine.model.loader import load_model
from engine.model.safetensors import (
    MAX_TABLE_BYTES,
    open_safetensors,
    read_table,
)

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (5, 8),
    "model.norm.weight": (8,),
    LAYER + "input_layernorm.weight": (8,),
    LAYER + "post_attention_layernorm.weight": (8,),
    LAYER + "self_attn.q_proj.weight": (8, 8),
    LAYER + "self_attn.k_proj.weight": (4, 8),
    LAYER + "self_attn.v_proj.weight": (4, 8),
    LAYER + "self_attn.o_proj.weight": (8, 8),
    LAYER + "mlp.gate_proj.weight": (6, 8),
    LAYER + "mlp.up_proj.weight": (6, 8),
    LAYER + "mlp.down_proj.weight": (8, 6),
}
INDEX = "model.safetensors.index.json"


def table_and_data(shapes=None):
    table, data = {}, b""
    random = np.random.default_rng(2)
    for name, shape in (shapes or SHAPES).items():
        raw = random.normal(size=shape).astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        table[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": offsets}
        data += raw
    return table, data


def pack(table, data):
    raw = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(raw)) + raw + data


@pytest.fixture
def folder(tmp_path):
    """A whole little model in one file."""
    folder = tmp_path / "little"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(pack(*table_and_data()))
    return folder


@pytest.fixture
def shards(folder):
    """The same in two files with an index; returns (folder, index)."""
    (folder / "model.safetensors").unlink()
    names = list(SHAPES)
    weight_map = {}
    for number, part in enumerate((names[:4], names[4:]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        shapes = {name: SHAPES[name] for name in part}
        (folder / file).write_bytes(pack(*table_and_data(shapes)))
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index))
    return folder, index


@pytest.fixture
def refuse(check_sentence, cheap):
    """refuse(folder, error class, words, most_bytes=...)."""

    def check(folder, kind, *words, most_bytes=8 << 20):
        with cheap(most_bytes), pytest.raises(ModelError) as caught:
            load(folder)
        assert type(caught.value) is kind, caught.value
        check_sentence(caught.value, *words)

    return check


def load(folder):
    config = EngineConfig(precision="exact")
    return load_model(folder, config, torch.device("cpu"), lambda fraction, note: None)


# --- good folders -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_values_as_the_safetensors_package_wrote_them(folder, dtype):
    from safetensors.torch import save_file

    tensors = {name: torch.randn(shape).to(dtype) for name, shape in SHAPES.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    source = open_safetensors(folder, "little")
    assert source.shapes == SHAPES
    for name, values in tensors.items():
        got = source.load(name)
        assert got.dtype == dtype
        assert torch.equal(got, values)


def test_shards_hold_what_one_file_holds(shards):
    folder, index = shards
    source = open_safetensors(folder, "little")
    assert source.shapes == SHAPES
    assert {name: place.file.name for name, place in source.places.items()} == index["weight_map"]
    assert load(folder).num_parameters == sum(np.prod(shape) for shape in SHAPES.values())


def test_other_files_in_the_folder_are_not_read(folder):
    (folder / "consolidated.safetensors").write_bytes(b"not even a table")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert load(folder).vocab_size == 5


def test_computed_buffers_of_old_checkpoints_are_left_out(folder):
    shapes = {**SHAPES, LAYER + "self_attn.rotary_emb.inv_freq": (2,)}
    (folder / "model.safetensors").write_bytes(pack(*table_and_data(shapes)))
    assert load(folder).vocab_size == 5


def test_linked_files_are_followed(folder, tmp_path):
    """The hub's cache keeps the content elsewhere, under its hash."""
    shutil.move(folder / "model.safetensors", tmp_path / "0a1b2c")
    (folder / "model.safetensors").symlink_to(tmp_path / "0a1b2c")
    assert load(folder).vocab_size == 5


# --- what is missing ----------------------------------------------------------------------------


def test_no_config(folder, refuse):
    (folder / "config.json").unlink()
    refuse(folder, BadFileError, "little", "config.json", ".gguf")


def test_no_weights(folder, refuse):
    (folder / "model.safetensors").unlink()
    refuse(folder, MissingWeightsError, "little", "no weights")


def test_weights_only_as_pickles(folder, refuse):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuse(folder, UnsupportedModelError, "little", "pickles")


def test_shards_without_an_index(shards, refuse):
    folder, _ = shards
    (folder / INDEX).unlink()
    refuse(folder, MissingWeightsError, "little", "model-00001-of-00002.safetensors", INDEX)


def test_missing_shard(shards, refuse):
    folder, _ = shards
    (folder / "model-00002-of-00002.safetensors").unlink()
    refuse(folder, MissingWeightsError, "little", "model-00002-of-00002.safetensors")


def test_every_tensor_is_needed(folder, refuse):
    for name in SHAPES:
        shapes = {other: shape for other, shape in SHAPES.items() if other != name}
        (folder / "model.safetensors").write_bytes(pack(*table_and_data(shapes)))
        refuse(folder, MissingWeightsError, "little", name)


def test_every_shape_is_checked(folder, refuse):
    for name, shape in SHAPES.items():
        for wrong in ((*shape[:-1], 7), (*shape, 1), shape[::-1] if len(shape) > 1 else (0,)):
            if wrong == shape:
                continue
            (folder / "model.safetensors").write_bytes(
                pack(*table_and_data({**SHAPES, name: wrong}))
            )
            refuse(folder, MissingWeightsError, "little", name)


def test_tensors_that_nobody_would_read(folder, refuse):
    extra = LAYER + "self_attn.q_proj.lora_A.weight"
    (folder / "model.safetensors").write_bytes(pack(*table_and_data({**SHAPES, extra: (2, 8)})))
    refuse(folder, MissingWeightsError, "little", extra)


def test_tensor_of_the_index_is_missing_in_its_shard(shards, refuse):
    folder, index = shards
    name = LAYER + "mlp.up_proj.weight"
    index["weight_map"][name] = "model-00001-of-00002.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    refuse(folder, MissingWeightsError, "little", name, "model-00001-of-00002.safetensors")


def test_tensor_that_the_index_does_not_name(shards, refuse):
    folder, index = shards
    del index["weight_map"]["model.norm.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    refuse(folder, MissingWeightsError, "little", "model.norm.weight")


def test_tensor_in_two_shards(shards, refuse):
    folder, _ = shards
    first = folder / "model-00001-of-00002.safetensors"
    shutil.copy(first, folder / "model-00002-of-00002.safetensors")
    refuse(folder, BadFileError, "little", "in two files")


# --- a hostile index ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "/etc/passwd",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "..",
        ".",
        "",
        "config.json",
        "pytorch_model.bin",
        None,
        7,
        ["model.safetensors"],
        {"a": "b"},
    ],
)
def test_index_leads_elsewhere(shards, refuse, shard):
    folder, index = shards
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder.parent / "model.safetensors")
    index["weight_map"]["model.norm.weight"] = shard
    (folder / INDEX).write_text(json.dumps(index))
    refuse(folder, BadFileError, INDEX)


@pytest.mark.parametrize("stem", ["x" * 5000, "nul\0byte", "two\nlines", "\x1b[2J", "\ud800"])
def test_index_names_a_file_that_cannot_be(shards, refuse, stem):
    folder, index = shards
    index["weight_map"]["model.norm.weight"] = f"{stem}.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    refuse(folder, MissingWeightsError, "little", "which its index names")


@pytest.mark.parametrize("raw", [b"{}", b'{"weight_map": {}}', b'{"weight_map": 3}', b"[]", b"<p>"])
def test_index_without_a_map(shards, refuse, raw):
    folder, _ = shards
    (folder / INDEX).write_bytes(raw)
    refuse(folder, BadFileError, INDEX)


def test_index_that_names_a_tensor_twice(shards, refuse):
    folder, index = shards
    text = json.dumps(index).replace('"weight_map": {', '"weight_map": {"model.norm.weight": "x", ')
    (folder / INDEX).write_text(text)
    refuse(folder, BadFileError, INDEX, "model.norm.weight twice")


# --- JSON that is not what it says --------------------------------------------------------------

NOT_JSON = (
    b"",
    b"<!DOCTYPE html><html></html>",
    b"{",
    b'{"a": 1',
    b"\xff\xfe\x00\xd8",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"7" * 10_000,
    b"null",
    b'"text"',
    b"[{}]",
)


@pytest.mark.parametrize("raw", NOT_JSON)
def test_config_that_is_no_json_object(folder, refuse, raw):
    (folder / "config.json").write_bytes(raw)
    refuse(folder, BadFileError, "config.json")


@pytest.mark.parametrize("raw", NOT_JSON)
def test_table_that_is_no_json_object(folder, refuse, raw):
    (folder / "model.safetensors").write_bytes(pack(raw, bytes(64)))
    refuse(folder, BadFileError, "model.safetensors")


def test_endless_files(folder, shards, refuse):
    """Sparse files of a gigabyte: their length alone is enough to refuse them."""
    for name in (INDEX, "config.json"):  # the last is read first
        os.truncate(folder / name, 1 << 30)
        refuse(folder, BadFileError, name, "far too long")


# --- a hostile table ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [0, 1, MAX_TABLE_BYTES + 1, 1 << 31, 1 << 40, 1 << 63, (1 << 64) - 1]
)
def test_absurd_table_lengths(folder, refuse, length):
    raw = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + raw[8:])
    refuse(folder, BadFileError, "model.safetensors")


def test_every_length_below_the_whole_is_refused(folder, check_sentence):
    file = folder / "model.safetensors"
    whole = file.stat().st_size
    assert len(read_table(file)) == len(SHAPES)
    for length in range(whole - 1, -1, -1):
        os.truncate(file, length)
        with pytest.raises(BadFileError) as caught:
            read_table(file)
        check_sentence(caught.value, "model.safetensors")


NORM = {"dtype": "F32", "shape": [8], "data_offsets": [160, 192]}


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        "F32",
        [],
        ["dtype", "shape", "data_offsets"],
        {},
        {**NORM, "dtype": None},
        {**NORM, "dtype": ["F32"]},
        {**NORM, "dtype": {}},
        {**NORM, "shape": None},
        {**NORM, "shape": 8},
        {**NORM, "shape": "8"},
        {**NORM, "shape": {"8": 8}},
        {**NORM, "shape": ["8"]},
        {**NORM, "shape": [8.0]},
        {**NORM, "shape": [True] * 8},
        {**NORM, "shape": [-8]},
        {**NORM, "shape": [[8]]},
        {**NORM, "shape": [8] + [1] * 8},
        {**NORM, "shape": [1 << 62, 8]},
        {**NORM, "shape": [1 << 32, 1 << 32]},  # 2^64: nothing, to a product that wraps round
        {**NORM, "shape": [9]},
        {**NORM, "shape": []},
        {**NORM, "data_offsets": None},
        {**NORM, "data_offsets": 160},
        {**NORM, "data_offsets": "ab"},
        {**NORM, "data_offsets": {"a": 1, "b": 2}},
        {**NORM, "data_offsets": [160]},
        {**NORM, "data_offsets": [160, 192, 224]},
        {**NORM, "data_offsets": [192, 160]},
        {**NORM, "data_offsets": [-32, 0]},
        {**NORM, "data_offsets": [160.0, 192.0]},
        {**NORM, "data_offsets": [160, 196]},
        {**NORM, "data_offsets": [1 << 40, (1 << 40) + 32]},
        {**NORM, "data_offsets": [1 << 63, (1 << 63) + 32]},
        {**NORM, "data_offsets": [10**400, 10**400 + 32]},
        {**NORM, "data_offsets": [156, 188]},  # into the tensor before
        {**NORM, "data_offsets": [0, 32]},
    ],
)
def test_impossible_entries(folder, refuse, entry):
    table, data = table_and_data()
    assert table["model.norm.weight"] == NORM
    table["model.norm.weight"] = entry
    (folder / "model.safetensors").write_bytes(pack(table, data))
    refuse(folder, BadFileError, "model.safetensors")


@pytest.mark.parametrize("dtype", ["F64", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F4", "", "f32"])
def test_dtypes_that_are_not_read(folder, refuse, dtype):
    table, data = table_and_data()
    table["model.norm.weight"]["dtype"] = dtype
    (folder / "model.safetensors").write_bytes(pack(table, data))
    refuse(folder, UnsupportedModelError, "model.safetensors", "model.norm.weight", dtype)


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "\ud800"])
def test_unprintable_names(folder, refuse, name):
    table, data = table_and_data({**SHAPES, name: (1,)})
    (folder / "model.safetensors").write_bytes(pack(table, data))
    refuse(folder, BadFileError, "model.safetensors")


def test_tensor_listed_twice(folder, refuse):
    table, data = table_and_data()
    text = json.dumps(table)[:-1] + f', "model.norm.weight": {json.dumps(NORM)}}}'
    (folder / "model.safetensors").write_bytes(pack(text.encode(), data))
    refuse(folder, BadFileError, "model.safetensors", "model.norm.weight twice")


def test_many_names_given_twice_cost_little(folder, refuse):
    text = ",".join(f'"{n}":0' for n in range(100_000))
    (folder / "model.safetensors").write_bytes(pack(f'{{{text},"99999":1}}'.encode(), b""))
    refuse(folder, BadFileError, "99999 twice", most_bytes=64 << 20)


def test_file_cut_after_the_check(folder, check_sentence):
    source = open_safetensors(folder, "little")
    name = LAYER + "mlp.down_proj.weight"
    os.truncate(folder / "model.safetensors", source.places[name].offset + 9)
    with pytest.raises(BadFileError) as caught:
        source.load(name)
    check_sentence(caught.value, "model.safetensors", "shorter")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadFileError) as caught:
        source.load(name)
    check_sentence(caught.value, "model.safetensors")


# --- chance -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chance_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chance") / "chance"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@settings(max_examples=300, deadline=5000)  # the first one imports the kernels
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=4)
)
def test_flipped_bytes_load_or_are_refused(chance_folder, check_sentence, flips):
    raw = bytearray(pack(*table_and_data()))
    table_end = 8 + int.from_bytes(raw[:8], "little")
    for place, mask in flips:
        raw[place % table_end] ^= mask
    (chance_folder / "model.safetensors").write_bytes(raw)
    outcome = None
    try:
        load(chance_folder)
    except ModelError as error:
        outcome = error
    if outcome is not None:
        check_sentence(outcome)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@settings(max_examples=300, deadline=5000)  # the first one imports the kernels
@given(part=st.sampled_from(["entry", "dtype", "shape", "data_offsets"]), value=json_values)
def test_any_json_in_the_table_is_refused_or_read(chance_folder, check_sentence, part, value):
    table, data = table_and_data()
    if part == "entry":
        table["model.norm.weight"] = value
    else:
        table["model.norm.weight"][part] = value
    (chance_folder / "model.safetensors").write_bytes(pack(table, data))
    outcome = None
    try:
        load(chance_folder)
    except ModelError as error:
        outcome = error
    if outcome is not None:
        check_sentence(outcome)
