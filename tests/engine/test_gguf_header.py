"""The header reader: right on good files, quick and polite with every kind of bad one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import gguf_header
from engine.errors import BadFileError, ModelError, UnsupportedModelError
from engine.gguf_header import GGML_TYPES, read_header


@pytest.fixture
def put(tmp_path):
    """put(raw bytes) -> path of a file named bad.gguf that holds them."""

    def write(raw):
        path = tmp_path / "bad.gguf"
        path.write_bytes(raw)
        return path

    return write


@pytest.fixture
def refuse(put, check_sentence, cheap):
    """refuse(raw, error class, words): reading is refused with a sentence that holds the words."""

    def check(raw, kind=BadFileError, *words):
        path = put(raw)
        with cheap(), pytest.raises(kind) as caught:
            read_header(path)
        assert type(caught.value) is kind
        check_sentence(caught.value, "bad.gguf", *words)

    return check


# --- good files ---------------------------------------------------------------------------------


def test_reads_what_the_gguf_package_wrote(tmp_path):
    import gguf

    path = tmp_path / "good.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.u32", 7)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "Grüße 👋\n")
    writer.add_array("a.words", ["x", "", "日本"])
    writer.add_array("a.numbers", [3, -1, 2])
    arrays = {"one": np.arange(33, dtype="f4"), "two": np.ones((3, 5, 7), "f2")}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    packed = gguf.quants.quantize(np.ones((4, 64), "f4"), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("three", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header = read_header(path)
    assert {key: value for key, value in header.metadata.items() if key.startswith("a.")} == {
        "a.u32": 7,
        "a.i64": -(1 << 40),
        "a.f64": 0.1,
        "a.bool": True,
        "a.text": "Grüße 👋\n",
        "a.words": ["x", "", "日本"],
        "a.numbers": [3, -1, 2],
    }
    for theirs in gguf.GGUFReader(path).tensors:
        ours = header.tensors[theirs.name]
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert ours.ggml_type == theirs.tensor_type.name
        assert (ours.offset, ours.num_bytes) == (theirs.data_offset, theirs.n_bytes)
    assert list(header.tensors) == ["one", "two", "three"]
    assert header.num_parameters == 33 + 3 * 5 * 7 + 4 * 64


def test_type_sizes_equal_the_gguf_package():
    import gguf

    for number, (name, block_values, block_bytes) in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (block_values, block_bytes)


@pytest.mark.parametrize("alignment", [1, 8, 64])
def test_alignment_is_the_files_own(gguf_maker, put, alignment):
    metadata, tensors = gguf_maker.tiny()
    path = put(gguf_maker.file({**metadata, "general.alignment": alignment}, tensors))
    header = read_header(path)
    info = header.tensors["blk.0.ffn_down.weight"]
    raw = path.read_bytes()[info.offset : info.offset + info.num_bytes]
    np.testing.assert_array_equal(np.frombuffer(raw, "<f4").reshape(8, 6), tensors[info.name])


def test_bytes_after_the_last_tensor_do_no_harm(gguf_maker, put):
    raw = gguf_maker.file(*gguf_maker.tiny())
    assert read_header(put(raw + b"x" * 99)).tensors == read_header(put(raw)).tensors


def test_text_that_is_not_utf8_is_replaced(gguf_maker, put):
    raw = gguf_maker.start(0, 1) + gguf_maker.text("k") + struct.pack("<I", gguf_maker.TEXT)
    assert read_header(put(raw + gguf_maker.text(b"a\xffb"))).metadata == {"k": "a\ufffdb"}


# --- not a GGUF at all --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"G", "not a GGUF"),
        (b"<!DOCTYPE html><html><title>404</title>", "web page"),
        (b"\xef\xbb\xbf\r\n <HTML>", "web page"),
        (b"<?xml version='1.0'?><Error/>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS"),
        (b"PK\x03\x04" + bytes(600), "not a GGUF"),
        (b'{"error": "gone"}', "not a GGUF"),
        (b"FUGG" + bytes(100), "not a GGUF"),
        (bytes(5000), "not a GGUF"),
    ],
)
def test_something_else(refuse, raw, words):
    refuse(raw, BadFileError, words)


def test_missing_file_and_folder(tmp_path, check_sentence):
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(BadFileError) as caught:
            read_header(path)
        check_sentence(caught.value, path.name)


@pytest.mark.parametrize("version", [0, 1, 4, 0xFFFFFFFF])
def test_unknown_version(refuse, gguf_maker, version):
    refuse(gguf_maker.start(0, 0, version), UnsupportedModelError, f"version {version}")


def test_big_endian(refuse):
    refuse(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), UnsupportedModelError, "big-endian")


# --- cut short ----------------------------------------------------------------------------------


def test_every_length_below_the_whole_is_refused(gguf_maker, tmp_path, check_sentence):
    """Each key, length, type, item, tensor field, padding and weight: none may be missing."""
    whole = gguf_maker.file(*gguf_maker.tiny())
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole)
    assert len(read_header(path).tensors) == 11
    for length in range(len(whole) - 1, -1, -1):
        with open(path, "r+b") as file:
            file.truncate(length)
        with pytest.raises(BadFileError) as caught:
            read_header(path)
        check_sentence(caught.value, "cut.gguf")


def test_cut_names_both_sizes(gguf_maker, refuse):
    whole = gguf_maker.file(*gguf_maker.tiny())
    refuse(whole[:-40], BadFileError, "ends too early", f"{len(whole):,}", f"{len(whole) - 40:,}")


# --- lies about counts and lengths --------------------------------------------------------------

HUGE = (1 << 63, (1 << 64) - 1, 1 << 40, 70_000)


@pytest.mark.parametrize("count", HUGE)
def test_huge_numbers_of_keys_and_tensors(gguf_maker, refuse, count):
    refuse(gguf_maker.start(0, count))
    refuse(gguf_maker.start(count, 0))


@pytest.mark.parametrize("kind", range(13))
@pytest.mark.parametrize("count", HUGE)
def test_49_bytes_that_claim_a_huge_array(gguf_maker, refuse, count, kind):
    raw = gguf_maker.start(0, 1) + gguf_maker.text("a")
    raw += struct.pack("<IIQ", gguf_maker.ARRAY, kind, count)
    assert len(raw) == 49
    refuse(raw, UnsupportedModelError if kind == gguf_maker.ARRAY else BadFileError)


@pytest.mark.parametrize("length", HUGE)
def test_huge_strings(gguf_maker, refuse, length):
    lie = struct.pack("<Q", length)
    refuse(gguf_maker.start(0, 1) + lie + b"key")  # a key
    text = gguf_maker.text("k") + struct.pack("<I", gguf_maker.TEXT)
    refuse(gguf_maker.start(0, 1) + text + lie + b"value")
    words = gguf_maker.text("k") + struct.pack("<IIQ", gguf_maker.ARRAY, gguf_maker.TEXT, 2)
    refuse(gguf_maker.start(0, 1) + words + gguf_maker.text("fine") + lie + b"value")
    refuse(gguf_maker.start(1, 0) + lie + bytes(100))  # a tensor's name


def test_long_file_that_claims_what_it_could_hold(gguf_maker, put, check_sentence, cheap):
    """The file is long enough (a sparse one), so only the caps stand between it and the memory."""
    heads = [
        gguf_maker.text("k") + struct.pack("<IIQ", gguf_maker.ARRAY, gguf_maker.U8, 1 << 28),
        gguf_maker.text("k") + struct.pack("<IIQ", gguf_maker.ARRAY, gguf_maker.TEXT, 1 << 26),
        gguf_maker.text("k") + struct.pack("<IQ", gguf_maker.TEXT, 1 << 28),
        struct.pack("<Q", 1 << 20),
    ]
    for head in heads:
        path = put(gguf_maker.start(0, 1) + head)
        with open(path, "r+b") as file:
            file.truncate(1 << 30)
        with cheap(), pytest.raises(BadFileError) as caught:
            read_header(path)
        check_sentence(caught.value, "bad.gguf", "claims")


def test_items_are_counted_over_all_arrays(gguf_maker, put, monkeypatch):
    monkeypatch.setattr(gguf_header, "MAX_HEADER_ITEMS", 10)
    arrays = gguf_maker.entry("a", [1] * 4) + gguf_maker.entry("b", ["x"] * 4)
    assert len(read_header(put(gguf_maker.start(0, 2) + arrays)).metadata) == 2
    raw = gguf_maker.start(0, 3) + arrays + gguf_maker.entry("c", [1, 2, 3])
    with pytest.raises(BadFileError, match="3 items in c"):
        read_header(put(raw))


def test_header_longer_than_any_real_one(gguf_maker, put, monkeypatch, check_sentence):
    raw = gguf_maker.start(0, 2) + gguf_maker.entry("a", "x" * 3000)
    raw += gguf_maker.entry("b", ["y" * 3000, "z"])
    monkeypatch.setattr(gguf_header, "_READ_BYTES", 7)  # the cap counts what was read
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", len(raw))
    read_header(put(raw))
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", len(raw) - 1)
    with pytest.raises(BadFileError) as caught:
        read_header(put(raw))
    check_sentence(caught.value, "bad.gguf", "header is longer")


def test_header_longer_than_one_read(gguf_maker, put, monkeypatch):
    """Strings and tensor lines that lie across the reader's own portions."""
    monkeypatch.setattr(gguf_header, "_READ_BYTES", 7)
    metadata, tensors = gguf_maker.tiny()
    metadata["long"] = [str(n) * (n % 13) for n in range(300)]
    header = read_header(put(gguf_maker.file(metadata, tensors)))
    assert header.metadata["long"] == metadata["long"]
    assert [info.shape for info in header.tensors.values()] == [t.shape for t in tensors.values()]


@pytest.mark.parametrize("depth", [2, 3, 60])
def test_nested_arrays(gguf_maker, refuse, depth):
    nested = [1, 2]
    for _ in range(depth - 1):
        nested = [nested]
    refuse(gguf_maker.start(0, 1) + gguf_maker.entry("k", nested), UnsupportedModelError, "nests")


@pytest.mark.parametrize("kind", [13, 99, 0xFFFFFFFF])
def test_unknown_value_types(gguf_maker, refuse, kind):
    key = gguf_maker.start(0, 1) + gguf_maker.text("some.key")
    refuse(key + struct.pack("<I", kind) + bytes(64), BadFileError, "some.key", "unknown type")
    array = struct.pack("<IIQ", gguf_maker.ARRAY, kind, 1) + bytes(64)
    refuse(key + array, BadFileError, "some.key", "unknown type")


def test_key_given_twice(gguf_maker, refuse):
    entry = gguf_maker.entry("llama.block_count", 1)
    refuse(gguf_maker.start(0, 2) + entry + entry, BadFileError, "llama.block_count twice")


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "\x00", "\u202e"])
def test_unprintable_names(gguf_maker, refuse, name):
    refuse(gguf_maker.start(0, 1) + gguf_maker.entry(name, 1), BadFileError, "unprintable")
    table = gguf_maker.tensor(name, (4,), 0, 0)
    refuse(gguf_maker.start(1, 0) + table + bytes(999), BadFileError, "unprintable")


# --- lies about tensors -------------------------------------------------------------------------


@pytest.fixture
def refuse_tensors(gguf_maker, refuse):
    """refuse_tensors(lines, ...): a table of those lines, then a kilobyte of data."""

    def check(lines, kind=BadFileError, *words):
        table = gguf_maker.start(len(lines), 0) + b"".join(gguf_maker.tensor(*x) for x in lines)
        refuse(table + bytes(-len(table) % 32) + bytes(1024), kind, *words)

    return check


@pytest.mark.parametrize(
    "dims",
    [
        (),
        (1,) * 5,
        (1,) * 1000,
        (0,),
        (4, 0),
        (1 << 32, 1 << 32),  # 2^64: nothing, to a product that wraps round
        ((1 << 63) + 2, 2),  # 4, to a product that wraps round
        ((1 << 64) - 1,) * 4,
    ],
)
def test_impossible_dimensions(refuse_tensors, dims):
    refuse_tensors([("t", dims, 0, 0)], BadFileError, "the tensor t")


def test_huge_number_of_dimensions(gguf_maker, refuse):
    raw = gguf_maker.start(1, 0) + gguf_maker.text("t") + struct.pack("<I", 0xFFFFFFFF)
    refuse(raw + bytes(1024), BadFileError, "4294967295 dimensions")


def test_more_values_than_the_file_has(refuse_tensors):
    refuse_tensors([("t", (1 << 40,), 0, 0)], BadFileError, "ends too early")
    refuse_tensors([("t", (257,), 0, 0)], BadFileError, "ends too early")


@pytest.mark.parametrize(("kind", "columns"), [(2, 31), (8, 33), (12, 128), (14, 255)])
def test_rows_that_are_no_whole_blocks(refuse_tensors, kind, columns):
    refuse_tensors([("t", (columns, 2), kind, 0)], BadFileError, "impossible shape")


@pytest.mark.parametrize("kind", [4, 5, 31, 40, 0xFFFFFFFF])
def test_unknown_tensor_type(refuse_tensors, kind):
    refuse_tensors([("t", (32,), kind, 0)], UnsupportedModelError, f"type {kind}", "Q8_0")


@pytest.mark.parametrize("offset", [1024, 1 << 40, 1 << 63, (1 << 64) - 32])
def test_offset_outside_the_file(refuse_tensors, offset):
    refuse_tensors([("t", (8,), 0, offset)])


def test_offset_that_is_not_aligned(refuse_tensors):
    refuse_tensors([("t", (8,), 0, 4)], BadFileError, "odd place")


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 96), (96, 0), (64, 128)])
def test_overlapping_tensors(refuse_tensors, first, second):
    lines = [("one", (25,), 0, first), ("two", (25,), 0, second)]
    refuse_tensors(lines, BadFileError, "one", "two", "overlap")


def test_tensors_in_any_order_with_gaps_are_fine(gguf_maker, put):
    lines = [("one", (25,), 0, 256), ("two", (25,), 0, 0), ("three", (1,), 0, 128)]
    table = gguf_maker.start(3, 0) + b"".join(gguf_maker.tensor(*line) for line in lines)
    header = read_header(put(table + bytes(-len(table) % 32) + bytes(1024)))
    starts = [info.offset - header.data_offset for info in header.tensors.values()]
    assert starts == [256, 0, 128]


def test_tensor_listed_twice(refuse_tensors):
    refuse_tensors([("t", (8,), 0, 0), ("t", (8,), 0, 32)], BadFileError, "the tensor t twice")


@pytest.mark.parametrize("value", [0, 3, 48, 1 << 17, -32, "32", 32.0, True, [32]])
def test_impossible_alignment(gguf_maker, refuse, value):
    raw = gguf_maker.start(0, 1) + gguf_maker.entry("general.alignment", value)
    refuse(raw, BadFileError, "general.alignment")


# --- chance -------------------------------------------------------------------------------------


def header_or_error(path):
    try:
        return read_header(path)
    except ModelError as error:
        return error


flips = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=8)


@settings(max_examples=400, deadline=1000)
@given(flips=flips, cut=st.none() | st.integers(0, 1 << 16))
def test_flipped_bytes_never_raise_anything_else(
    gguf_maker, check_sentence, tmp_path_factory, flips, cut
):
    metadata, tensors = gguf_maker.tiny()
    raw = bytearray(gguf_maker.file(metadata, tensors))
    # Flips among the weights would change nothing here.
    table_end = len(raw) - sum(tensor.nbytes for tensor in tensors.values())
    for place, mask in flips:
        raw[place % table_end] ^= mask
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(raw if cut is None else raw[: cut % len(raw)])
    outcome = header_or_error(path)
    if isinstance(outcome, ModelError):
        check_sentence(outcome, "flipped.gguf")
    else:
        ends = [info.offset + info.num_bytes for info in outcome.tensors.values()]
        assert max(ends, default=0) <= path.stat().st_size


@settings(max_examples=200, deadline=1000)
@given(tail=st.binary(max_size=300), counts=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_noise_after_the_magic_never_raises_anything_else(
    gguf_maker, check_sentence, tmp_path_factory, tail, counts
):
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    path.write_bytes(gguf_maker.start(*counts) + tail)
    outcome = header_or_error(path)
    if isinstance(outcome, ModelError):
        check_sentence(outcome, "noise.gguf")
