"""SafetensorsWeights: tensors of a checked model folder, exactly those that its index names.

The format is read here: a length, a JSON table, raw bytes. No pickle is ever opened.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.errors import BadFileError, MissingWeightsError, UnsupportedModelError, shown
from engine.model.config import DecoderConfig, from_hf
from engine.model.layout import Shapes

# JSON of 10 MB costs at worst 1 s and 150 MB, and describes 70,000 tensors, where dense models have
# below 2,000. The format itself allows a table of 100 MB.
MAX_TABLE_BYTES = 10_000_000
MAX_INDEX_BYTES = 10_000_000
MAX_CONFIG_BYTES = 1_000_000
MAX_DIMENSIONS = 8

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
class Tensors:
    """The tensors of a checked model folder, whatever architecture they are of: a WeightSource."""

    name: str
    shapes: Shapes
    places: dict[str, _Place]

    def load_codes(self, name: str) -> None:
        """A folder's weights are floats."""

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


@dataclass(frozen=True, slots=True)
class SafetensorsWeights(Tensors):
    """A WeightSource for the fast path."""

    config: DecoderConfig


def open_safetensors(folder: Path, model_name: str) -> SafetensorsWeights:
    """Check a model folder; no weight is read yet. `model_name` stands in the sentences.

    Raises:
        BadFileError, MissingWeightsError, UnsupportedModelError: as the sentence says.
    """
    config = from_hf(read_config(folder, model_name), model_name)
    tensors = open_tensors(folder, model_name)
    return SafetensorsWeights(tensors.name, tensors.shapes, tensors.places, config)


def read_config(folder: Path, model_name: str) -> dict[str, Any]:
    """The content of a model folder's config.json.

    Raises:
        BadFileError: there is none, or it is damaged.
    """
    config_file = folder / "config.json"
    if not os.path.isfile(config_file):
        raise BadFileError(
            f"{model_name} is not a model folder (it has no config.json): choose a .gguf file or "
            "a folder with config.json and safetensors files"
        )
    return _json_object(config_file, MAX_CONFIG_BYTES)


def open_tensors(folder: Path, model_name: str) -> Tensors:
    """Check the weight files of a model folder.

    Raises: as `open_safetensors`.
    """
    files, index = _weight_files(folder, model_name)
    places: dict[str, _Place] = {}
    for file in files:
        for name, place in read_table(file).items():
            if name in places:
                raise BadFileError(
                    f"{model_name} holds the tensor {shown(name)} in two files: fetch it again"
                )
            places[name] = place
    if index is not None:
        _check_index(model_name, index, places)
    places = {name: p for name, p in places.items() if not name.endswith(_COMPUTED)}
    shapes = {name: place.shape for name, place in places.items()}
    return Tensors(model_name, shapes, places)


def _weight_files(folder: Path, model_name: str) -> tuple[list[Path], dict[str, str] | None]:
    """The files to read, and the index (tensor -> file name) if there is one."""
    # os.path.isfile: Path's own raises for a name that is too long, or that we may not look at.
    if os.path.isfile(folder / _INDEX):
        index = _index_map(folder / _INDEX)
        files = [folder / name for name in sorted(set(index.values()))]
        for file in files:
            if not os.path.isfile(file):
                raise MissingWeightsError(
                    f"{model_name} lacks {shown(file.name)}, which its index names: fetch that file"
                )
        return files, index
    if os.path.isfile(folder / _SINGLE):
        return [folder / _SINGLE], None
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        raise MissingWeightsError(
            f"{model_name} holds {others[0]} but neither {_SINGLE} nor {_INDEX}, so nothing says "
            "which files belong together: fetch the model again, whole"
        )
    if any(os.path.isfile(folder / name) for name in _PICKLES):
        raise UnsupportedModelError(
            f"{model_name} holds its weights as PyTorch pickles, which can run code and are not "
            "opened: fetch the safetensors files of the same model, or a GGUF file"
        )
    raise MissingWeightsError(
        f"{model_name} holds no weights (no {_SINGLE}): the download is incomplete, fetch it again"
    )


def _index_map(file: Path) -> dict[str, str]:
    weight_map = _json_object(file, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFileError(f"{file.name} is damaged: it names no weights; fetch it again")
    for shard in weight_map.values():
        # Only a plain name inside the folder: an index must not lead elsewhere.
        if not isinstance(shard, str) or Path(shard).name != shard or "\\" in shard:
            raise BadFileError(
                f"{file.name} names the file {shown(shard)}, which is not in its folder: fetch the "
                "model again"
            )
        if not shard.endswith(".safetensors"):
            raise BadFileError(
                f"{file.name} names {shown(shard)}, which is no safetensors file: fetch the model "
                "again"
            )
    return weight_map


def _check_index(model_name: str, index: Mapping[str, str], places: Mapping[str, _Place]) -> None:
    for name, shard in index.items():
        if name not in places or places[name].file.name != shard:
            raise MissingWeightsError(
                f"{model_name} lacks the tensor {shown(name, 120)}, which should be in "
                f"{shown(shard)}: fetch that file again"
            )
    for name, place in places.items():
        if name not in index:
            raise MissingWeightsError(
                f"{model_name} holds the tensor {shown(name, 120)} in {place.file.name}, and its "
                "index does not name it: the files are not of the same model, fetch it again"
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
    in_order = sorted(places.items(), key=lambda item: (item[1].offset, item[1].num_bytes))
    for (name, before), (other, after) in itertools.pairwise(in_order):
        if before.offset + before.num_bytes > after.offset:
            raise BadFileError(
                f"{file.name} is damaged: the tensors {shown(name)} and {shown(other)} overlap; "
                "fetch it again"
            )
    end = max((place.offset + place.num_bytes for place in places.values()), default=0)
    if end > size:
        raise _cut(file, end, size)
    return places


def _place(file: Path, name: str, entry: Any, data_offset: int) -> _Place:
    wrong = f"{file.name} describes {shown(name)} wrongly: fetch it again"
    if not isinstance(entry, dict) or not name.isprintable():
        raise BadFileError(wrong)
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise BadFileError(wrong)
    if dtype not in _DTYPES:
        raise UnsupportedModelError(
            f"{file.name} stores {shown(name)} as {shown(dtype, 20)}, and only F32, F16 and BF16 "
            "can be read: take the unquantised model or a GGUF file"
        )
    if len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        raise BadFileError(wrong)
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in [*shape, *offsets]):
        raise BadFileError(wrong)
    begin, end = offsets
    if end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise BadFileError(
            f"{file.name} gives {shown(name)} {end - begin:,} bytes, which its shape {shape} does "
            "not take: fetch it again"
        )
    return _Place(file, _DTYPES[dtype], tuple(shape), data_offset + begin, end - begin)


def _json_object(file: Path, most_bytes: int) -> dict[str, Any]:
    try:
        with open(file, "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            if size > most_bytes:
                raise BadFileError(
                    f"{file.name} is far too long to be what its name says: fetch the model again"
                )
            raw = stream.read(size)
    except OSError as error:
        raise _unreadable(file, error) from error
    return _parsed(raw, file.name)


def _parsed(raw: bytes, name: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
            raise BadFileError(f"{name} is damaged: it gives {shown(twice)} twice; fetch it again")
        return found

    try:
        value = json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise BadFileError(f"{name} is damaged: it is not JSON; fetch it again") from None
    if not isinstance(value, dict):
        raise BadFileError(f"{name} is damaged: it is not a JSON object; fetch it again")
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
