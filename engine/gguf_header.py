"""Guarded reader of a GGUF file's header and tensor table. Untrusted input; standard library only.

Every count and length is held against the file's size and a hard cap before anything is read or
allocated for it, so a lying file costs neither memory nor time. Nothing is read beyond the tensor
table: weights are somebody else's business, but their places are checked here.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError

MAX_METADATA_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535  # the format's own limit
MAX_STRING_BYTES = 64 << 20
MAX_ARRAY_ITEMS = 16 << 20  # the largest vocabularies have 0.3 M entries
MAX_HEADER_ITEMS = 64 << 20  # over all arrays of a file
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 2

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
            _check_magic(path.name, file.read(512), size)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(path.name, data, size).header()
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
    """Walks the header once; every read goes through `_take` or checks its length first."""

    def __init__(self, name: str, data: mmap.mmap, size: int) -> None:
        self._name = name
        self._data = data
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
        wanted = max((info.offset + info.num_bytes for info in tensors.values()), default=0)
        if wanted > self._size:
            self._cut(wanted, "")
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
            "fetch a newer conversion of the model"
        )

    def _metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string(MAX_KEY_BYTES, "a metadata key")
            if key in metadata:
                self._bad(f"it gives {key[:80]} twice")
            (kind,) = self._unpack("<I")
            metadata[key] = self._value(kind, key, depth=0)
        return metadata

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind in _SCALARS:
            (value,) = self._unpack("<" + _SCALARS[kind])
            return value
        if kind == _STRING:
            return self._string(MAX_STRING_BYTES, key)
        if kind == _ARRAY:
            return self._array(key, depth)
        return self._bad(f"the entry {key[:80]} has the unknown type {kind}")

    def _array(self, key: str, depth: int) -> list[Any]:
        kind, count = self._unpack("<IQ")
        if depth >= MAX_ARRAY_DEPTH:
            self._bad(f"the entry {key[:80]} nests arrays too deeply")
        smallest = struct.calcsize("<" + _SCALARS[kind]) if kind in _SCALARS else 8
        self._limit(
            count,
            min(MAX_ARRAY_ITEMS, self._items_left),
            f"items in {key[:80]}",
            smallest,
        )
        self._items_left -= count
        if kind in _SCALARS:
            return list(self._unpack(f"<{count}{_SCALARS[kind]}"))
        if kind == _STRING:
            return self._strings(count, key)
        return [self._value(kind, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        # Local names and one struct: 98,000 strings of the starter model take 40 ms this way.
        data, at, end = self._data, self._at, self._size
        length_at = struct.Struct("<Q").unpack_from
        texts: list[str] = []
        for _ in range(count):
            if end - at < 8:
                self._cut(at + 8)
            (length,) = length_at(data, at)
            at += 8
            if length > MAX_STRING_BYTES:
                self._bad(f"a text in {key[:80]} claims {length:,} bytes")
            if length > end - at:
                self._cut(at + length)
            texts.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
        self._at = at
        return texts

    def _tensor(self) -> TensorInfo:
        name = self._string(MAX_KEY_BYTES, "a tensor name")
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
        if not 0 < num_values <= self._size * 64 or dims[0] % block_values:
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
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 16:
            self._bad("its general.alignment is out of range")
        if alignment & (alignment - 1):
            self._bad(f"its general.alignment is {alignment}, not a power of two")
        return int(alignment)

    def _placed(self, info: TensorInfo, data_offset: int, alignment: int) -> TensorInfo:
        if info.offset % alignment:
            self._bad(f"the tensor {info.name[:80]} starts at an odd place ({info.offset})")
        start = data_offset + info.offset
        if start > 1 << 62:
            self._bad(f"the tensor {info.name[:80]} lies at {info.offset:,}, outside any file")
        return TensorInfo(info.name, info.shape, info.ggml_type, start, info.num_bytes)

    # --- guarded reads ------------------------------------------------------------------------

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        start, self._at = self._at, self._at + struct.calcsize(layout)
        if self._at > self._size:
            self._cut(self._at)
        return struct.unpack_from(layout, self._data, start)

    def _string(self, cap: int, what: str) -> str:
        (length,) = self._unpack("<Q")
        if length > cap:
            self._bad(f"{what[:80]} claims {length:,} bytes")
        start, self._at = self._at, self._at + length
        if self._at > self._size:
            self._cut(self._at)
        return self._data[start : self._at].decode("utf-8", "replace")

    def _limit(self, count: int, cap: int, what: str, item_bytes: int) -> None:
        """A count is believed when it is below the cap and the file is long enough for it."""
        if count > cap:
            self._bad(f"it claims {count:,} {what}")
        if count * item_bytes > self._size - self._at:
            self._cut(self._at + count * item_bytes)

    def _bad(self, reason: str) -> Any:
        raise BadFileError(f"{self._name} is damaged: {reason}; fetch it again")

    def _cut(self, wanted: int, more: str = " or more") -> None:
        raise BadFileError(
            f"{self._name} ends too early: it should hold {wanted:,} bytes{more} and holds "
            f"{self._size:,}; fetch it again"
        )
