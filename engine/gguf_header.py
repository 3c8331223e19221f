"""Guarded reader of a GGUF file's header and tensor table. Untrusted input; standard library only.

Every count and length is held against the file's size and a hard cap before anything is read or
allocated for it, so a lying file costs neither memory nor time. Nothing is read beyond the tensor
table: weights are somebody else's business, but their places are checked here. The file is read,
not mapped: one that shrinks meanwhile must not kill the process.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from engine.errors import BadFileError, UnsupportedModelError

MAX_METADATA_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535  # the format's own limit
MAX_STRING_BYTES = 64 << 20
MAX_HEADER_BYTES = 128 << 20  # the longest known are below 30 MB
MAX_HEADER_ITEMS = 4 << 20  # over all arrays; the largest vocabularies make 0.9 M
MAX_TENSOR_VALUES = 1 << 48
MAX_DIMENSIONS = 4

_READ_BYTES = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

# type number -> (name, values in a block, bytes of a block)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in PyTorch's order: [rows, columns]."""

    name: str
    shape: tuple[int, ...]
    ggml_type: str  # "F32", "Q4_1", ...
    offset: int  # from the start of the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int
    version: int

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(info.shape) for info in self.tensors.values())


def read_header(path: str | Path) -> GgufHeader:
    """Read and check the header of a GGUF file.

    Raises:
        BadFileError: the file is missing, not a GGUF, cut short, or says impossible things.
        UnsupportedModelError: a GGUF of a kind this version does not read.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            start = file.read(512)
            _check_magic(path.name, start, size)
            return _Parser(path.name, file, start, size).header()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadFileError(f"{path.name} cannot be read ({reason}): check the path") from error


def _check_magic(name: str, start: bytes, size: int) -> None:
    if size == 0:
        raise BadFileError(f"{name} is empty: fetch it again")
    if start[:4] == b"GGUF":
        return
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<head", b"<?xml")):
        raise BadFileError(
            f"{name} is a web page, not a model: the download link led to a page; fetch the "
            "file itself"
        )
    if start.startswith(b"version https://git-lfs"):
        raise BadFileError(f"{name} is a Git LFS pointer, not the model: fetch the file itself")
    raise BadFileError(f"{name} is not a GGUF file: choose a .gguf file or a safetensors folder")


class _Parser:
    """Walks the header once; every read goes through `_have`, which checks before it reads."""

    def __init__(self, name: str, file: BinaryIO, start: bytes, size: int) -> None:
        self._name = name
        self._file = file
        self._data = bytearray(start)  # the part of the file that was read so far
        self._size = size
        self._at = 4
        self._items_left = MAX_HEADER_ITEMS

    def header(self) -> GgufHeader:
        version = self._version()
        num_tensors, num_keys = self._unpack("<QQ")
        self._limit(num_tensors, MAX_TENSORS, "tensors", 8 + 4 + 8 + 4 + 8)
        self._limit(num_keys, MAX_METADATA_KEYS, "metadata entries", 8 + 4 + 1)
        metadata = self._metadata(num_keys)
        infos = [self._tensor() for _ in range(num_tensors)]
        alignment = self._alignment(metadata)
        data_offset = self._at + -self._at % alignment
        tensors: dict[str, TensorInfo] = {}
        for info in infos:
            if info.name in tensors:
                self._bad(f"it lists the tensor {info.name[:80]} twice")
            tensors[info.name] = self._placed(info, data_offset, alignment)
        self._check_places(tensors)
        return GgufHeader(metadata, tensors, data_offset, version)

    # --- parts ------------------------------------------------------------------------------

    def _version(self) -> int:
        (version,) = self._unpack("<I")
        if version in (2, 3):
            return int(version)
        if version in (0x02000000, 0x03000000):
            raise UnsupportedModelError(
                f"{self._name} is written for big-endian machines: take the usual file instead"
            )
        raise UnsupportedModelError(
            f"{self._name} has GGUF version {version}, and versions 2 and 3 can be read: "
            "fetch another conversion of the model"
        )

    def _metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._name_text("a metadata key")
            if key in metadata:
                self._bad(f"it gives {key[:80]} twice")
            (kind,) = self._unpack("<I")
            metadata[key] = self._value(kind, key)
        return metadata

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            (value,) = self._unpack("<" + _SCALARS[kind])
            return value
        if kind == _STRING:
            return self._string(MAX_STRING_BYTES, key)
        if kind == _ARRAY:
            return self._array(key)
        return self._bad(f"the entry {key[:80]} has the unknown type {kind}")

    def _array(self, key: str) -> list[Any]:
        kind, count = self._unpack("<IQ")
        if kind == _ARRAY:
            raise UnsupportedModelError(
                f"{self._name} nests arrays in {key[:80]}, which this version does not read: fetch "
                "another conversion of the model"
            )
        if kind != _STRING and kind not in _SCALARS:
            self._bad(f"the entry {key[:80]} has items of the unknown type {kind}")
        smallest = 8 if kind == _STRING else struct.calcsize("<" + _SCALARS[kind])
        self._limit(count, self._items_left, f"items in {key[:80]}", smallest)
        self._items_left -= count
        if kind == _STRING:
            return self._strings(count, key)
        return list(self._unpack(f"<{count}{_SCALARS[kind]}"))

    def _strings(self, count: int, key: str) -> list[str]:
        # Local names and one struct: 98,000 strings of the starter model take 40 ms this way.
        data, at, end = self._data, self._at, len(self._data)
        length_at = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            if end - at < 8:
                end = self._have(at + 8)
            (length,) = length_at(data, at)
            at += 8
            if length > MAX_STRING_BYTES:
                self._bad(f"a text in {key[:80]} claims {length:,} bytes")
            if length > end - at:
                end = self._have(at + length)
            texts.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
        self._at = at
        return texts

    def _tensor(self) -> TensorInfo:
        name = self._name_text("a tensor name")
        (num_dims,) = self._unpack("<I")
        if not 1 <= num_dims <= MAX_DIMENSIONS:
            self._bad(f"the tensor {name[:80]} claims {num_dims} dimensions")
        dims = self._unpack(f"<{num_dims}Q")
        kind, offset = self._unpack("<IQ")
        if kind not in GGML_TYPES:
            raise UnsupportedModelError(
                f"{self._name} stores {name[:80]} in the tensor type {kind}, which this version "
                "does not know: choose another quantisation, such as Q4_K_M or Q8_0"
            )
        type_name, block_values, block_bytes = GGML_TYPES[kind]
        num_values = math.prod(dims)
        if not 0 < num_values <= MAX_TENSOR_VALUES or dims[0] % block_values:
            self._bad(f"the tensor {name[:80]} has the impossible shape {list(dims)[::-1]}")
        return TensorInfo(
            name,
            tuple(reversed(dims)),
            type_name,
            offset,
            num_values // block_values * block_bytes,
        )

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16:
            self._bad("its general.alignment is out of range")
        if alignment & (alignment - 1):
            self._bad(f"its general.alignment is {alignment}, not a power of two")
        return alignment

    def _placed(self, info: TensorInfo, data_offset: int, alignment: int) -> TensorInfo:
        if info.offset % alignment:
            self._bad(f"the tensor {info.name[:80]} starts at an odd place ({info.offset})")
        start = data_offset + info.offset
        if start > 1 << 62:
            self._bad(f"the tensor {info.name[:80]} lies at {info.offset:,}, outside any file")
        return TensorInfo(info.name, info.shape, info.ggml_type, start, info.num_bytes)

    def _check_places(self, tensors: dict[str, TensorInfo]) -> None:
        """Every tensor lies inside the file and shares no byte with another."""
        in_order = sorted(tensors.values(), key=lambda info: info.offset)
        for before, after in itertools.pairwise(in_order):
            if before.offset + before.num_bytes > after.offset:
                self._bad(f"the tensors {before.name[:80]} and {after.name[:80]} overlap")
        if in_order and in_order[-1].offset + in_order[-1].num_bytes > self._size:
            self._cut(in_order[-1].offset + in_order[-1].num_bytes, "")

    # --- guarded reads ------------------------------------------------------------------------

    def _have(self, end: int) -> int:
        """Read on until `_data` holds the bytes up to `end`; how many it holds then."""
        if end > self._size:
            self._cut(end)
        if end > MAX_HEADER_BYTES:
            self._bad(f"its header is longer than {MAX_HEADER_BYTES:,} bytes")
        while len(self._data) < end:
            more = self._file.read(max(_READ_BYTES, end - len(self._data)))
            if not more:
                raise BadFileError(f"{self._name} became shorter while it was read: try again")
            self._data += more
        return len(self._data)

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        start = self._at
        self._have(start + struct.calcsize(layout))
        self._at = start + struct.calcsize(layout)
        return struct.unpack_from(layout, self._data, start)

    def _string(self, cap: int, what: str) -> str:
        (length,) = self._unpack("<Q")
        if length > cap:
            self._bad(f"{what[:80]} claims {length:,} bytes")
        start = self._at
        self._have(start + length)
        self._at = start + length
        return self._data[start : self._at].decode("utf-8", "replace")

    def _name_text(self, what: str) -> str:
        """A key or a tensor's name; it may end up in a sentence, so it must be a line of text."""
        text = self._string(MAX_KEY_BYTES, what)
        if not text.isprintable():
            self._bad(f"{what} holds unprintable characters")
        return text

    def _limit(self, count: int, cap: int, what: str, item_bytes: int) -> None:
        """A count is believed when it is below the cap and the file is long enough for it."""
        if count > cap:
            self._bad(f"it claims {count:,} {what}")
        if count * item_bytes > self._size - self._at:
            self._cut(self._at + count * item_bytes)

    def _bad(self, reason: str) -> NoReturn:
        raise BadFileError(f"{self._name} is damaged: {reason}; fetch it again")

    def _cut(self, wanted: int, more: str = " or more") -> NoReturn:
        raise BadFileError(
            f"{self._name} ends too early: it should hold {wanted:,} bytes{more} and holds "
            f"{self._size:,}; fetch it again"
        )
