"""SafetensorsWeights: tensors of a checked model folder, exactly those that its index names.

The format is read here: a length, a JSON table, raw bytes. No pickle is ever opened.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError
from engine.model.config import DecoderConfig, from_hf
from engine.model.layout import Shapes

MAX_TABLE_BYTES = 100_000_000  # the format's own limit
MAX_JSON_BYTES = 64 << 20  # config.json and the index

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pt")
# Buffers of older checkpoints; they are computed, not learned.
_COMPUTED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsWeights:
    """A WeightSource."""

    folder: Path
    config: DecoderConfig
    shapes: Shapes
    places: dict[str, _Place]

    @property
    def name(self) -> str:
        return self.folder.name

    def load(self, name: str) -> torch.Tensor:
        """The tensor in the dtype it is stored in.

        Raises:
            BadFileError: the file became shorter since it was checked.
        """
        place = self.places[name]
        data = torch.empty(place.num_bytes, dtype=torch.uint8)
        try:
            with open(place.file, "rb", buffering=0) as file:
                file.seek(place.offset)
                view = memoryview(data.numpy())
                while view:
                    count = file.readinto(view)
                    if not count:
                        raise BadFileError(
                            f"{place.file.name} became shorter while it was read: try again"
                        )
                    view = view[count:]
        except OSError as error:
            raise _unreadable(place.file, error) from error
        return data.view(place.dtype).reshape(place.shape)


def open_safetensors(folder: Path) -> SafetensorsWeights:
    """Check a model folder; no weight is read yet.

    Raises:
        BadFileError, MissingWeightsError, UnsupportedModelError: as the sentence says.
    """
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise BadFileError(
            f"{folder.name} is not a model folder (it has no config.json): choose a .gguf file or "
            "a folder with config.json and safetensors files"
        )
    files, index = _weight_files(folder)
    config = from_hf(_json_object(config_file), folder.name)
    places: dict[str, _Place] = {}
    for file in files:
        for name, place in read_table(file).items():
            if name in places:
                raise BadFileError(f"{folder.name} holds the tensor {name[:80]} in two files")
            places[name] = place
    if index is not None:
        _check_index(folder, index, places)
    places = {name: p for name, p in places.items() if not name.endswith(_COMPUTED)}
    shapes = {name: place.shape for name, place in places.items()}
    return SafetensorsWeights(folder, config, shapes, places)


def _weight_files(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The files to read, and the index (tensor -> file name) if there is one."""
    if (folder / _INDEX).is_file():
        index = _index_map(folder / _INDEX)
        files = [folder / name for name in sorted(set(index.values()))]
        for file in files:
            if not file.is_file():
                raise MissingWeightsError(
                    f"{folder.name} lacks {file.name}, which its index names: fetch that file"
                )
        return files, index
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE], None
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        raise MissingWeightsError(
            f"{folder.name} holds {others[0]} but neither {_SINGLE} nor {_INDEX}, so nothing says "
            "which files belong together: fetch the model again, whole"
        )
    if any((folder / name).is_file() for name in _PICKLES):
        raise UnsupportedModelError(
            f"{folder.name} holds its weights as PyTorch pickles, which can run code and are not "
            "opened: fetch the safetensors files of the same model, or a GGUF file"
        )
    raise MissingWeightsError(
        f"{folder.name} holds no weights (no {_SINGLE}): the download is incomplete, fetch it again"
    )


def _index_map(file: Path) -> dict[str, str]:
    weight_map = _json_object(file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFileError(f"{file.name} is damaged: it names no weights; fetch it again")
    for shard in weight_map.values():
        # Only a plain name inside the folder: an index must not lead elsewhere.
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard:
            raise BadFileError(f"{file.name} names the file {str(shard)[:80]!r}: fetch it again")
        if not shard.endswith(".safetensors"):
            raise BadFileError(f"{file.name} names {shard[:80]}, which is no safetensors file")
    return weight_map


def _check_index(folder: Path, index: Mapping[str, str], places: Mapping[str, _Place]) -> None:
    for name, shard in index.items():
        if name not in places or places[name].file.name != shard:
            raise MissingWeightsError(
                f"{folder.name} lacks the tensor {name[:120]}, which should be in {shard}: "
                "fetch that file again"
            )
    for name, place in places.items():
        if name not in index:
            raise MissingWeightsError(
                f"{folder.name} holds the tensor {name[:120]} in {place.file.name}, and its index "
                "does not name it: the files are not of the same model"
            )


def read_table(file: Path) -> dict[str, _Place]:
    """The tensor table of one safetensors file, held against the file's size.

    Raises:
        BadFileError: not a safetensors file, cut short, or saying impossible things.
        UnsupportedModelError: a dtype that is not read.
    """
    try:
        with open(file, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            start = stream.read(8)
            table_bytes = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if table_bytes > MAX_TABLE_BYTES or table_bytes < 2:
                raise BadFileError(f"{file.name} is not a safetensors file: fetch it again")
            if 8 + table_bytes > size:
                raise _cut(file, 8 + table_bytes, size)
            raw = stream.read(table_bytes)
    except OSError as error:
        raise _unreadable(file, error) from error
    table = _parsed(raw, file.name)
    table.pop("__metadata__", None)
    places = {name: _place(file, name, entry, 8 + table_bytes) for name, entry in table.items()}
    end = max((place.offset + place.num_bytes for place in places.values()), default=0)
    if end > size:
        raise _cut(file, end, size)
    return places


def _place(file: Path, name: str, entry: Any, data_offset: int) -> _Place:
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise BadFileError(f"{file.name} describes {name[:80]} wrongly: fetch it again") from None
    if dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"{file.name} stores {name[:80]} as {str(dtype)[:20]}, and only F32, F16 and BF16 can "
            "be read: take the unquantised model or a GGUF file"
        )
    numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers) or len(shape) > 8:
        raise BadFileError(f"{file.name} describes {name[:80]} wrongly: fetch it again")
    if end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise BadFileError(
            f"{file.name} gives {name[:80]} {end - begin:,} bytes, which its shape {shape} does "
            "not take: fetch it again"
        )
    return _Place(file, _DTYPES[dtype], tuple(shape), data_offset + begin, end - begin)


def _json_object(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise BadFileError(f"{file.name} is far too long to be what its name says")
        return _parsed(file.read_bytes(), file.name)
    except OSError as error:
        raise _unreadable(file, error) from error


def _parsed(raw: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise BadFileError(f"{name} is damaged (its table is not JSON): fetch it again") from None
    if not isinstance(value, dict):
        raise BadFileError(f"{name} is damaged (its table is not an object): fetch it again")
    return value


def _cut(file: Path, wanted: int, size: int) -> BadFileError:
    return BadFileError(
        f"{file.name} ends too early: it should hold {wanted:,} bytes and holds {size:,}; "
        "fetch it again"
    )


def _unreadable(file: Path, error: OSError) -> BadFileError:
    return BadFileError(
        f"{file.name} cannot be read ({error.strerror or error}): check the file and the disk"
    )
