"""load_model: a .gguf file or a safetensors folder -> LoadedModel, ready for steps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import BadFileError, ConfigError, UnsupportedModelError, shown
from engine.footprint import CODE_GROUP
from engine.kv_cache import KVSpec
from engine.layer_groups import group_layers
from engine.model.codes import Codes
from engine.model.config import DecoderConfig, from_hf
from engine.model.decoder import Cache, Decoder
from engine.model.gguf import open_gguf
from engine.model.layout import Shapes, WeightSource, check_tensors, expected_shapes
from engine.model.linear import choose_storage, keeps_codes
from engine.model.safetensors import open_safetensors, read_config
from kernels.dispatch import BackendError, Ops, choose

if TYPE_CHECKING:
    from engine.model.universal import UniversalFolder

Progress = Callable[[float, str], None]

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# "-Q4_K_M", ".Q4_1", ".i1-IQ2_XXS", "-UD-Q4_K_XL", "-F16"
_QUANTISATION = re.compile(
    r"[-._](?:(?:UD|i1)[-._])?"
    r"(?:I?Q\d(?:_(?:\d|K|NL|XXS|XS|S|M|L|XL))*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?16|FP?32)$",
    re.IGNORECASE,
)


TokenizerSource = dict[str, Any] | Path  # a GGUF's metadata, or the model folder


class Runs(Protocol):
    """Weights of one model, and the forward pass over them."""

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Weights in memory, and all that the engine must know about them."""

    name: str
    file: str
    architecture: str
    context_tokens: int
    vocab_size: int
    num_parameters: int
    weights_bytes: int
    storage: str
    path: Literal["fast", "universal"]
    kv: KVSpec
    ops: Ops
    tokenizer_source: TokenizerSource
    decoder: Runs

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        """Run one step; logits [L, vocab] fp32."""
        return self.decoder.forward(batch, cache)

    @property
    def has_own_kernels(self) -> bool:
        """Whether all but small things are computed by kernels of ours."""
        return isinstance(self.decoder, Decoder) and self.decoder.is_program

    @property
    def by_layer(self) -> Decoder | None:
        """What can run a step layer by layer, if the model's path can."""
        return self.decoder if isinstance(self.decoder, Decoder) else None


def load_model(
    path: Path, config: EngineConfig, device: torch.device, progress: Progress
) -> LoadedModel:
    """Check a model wholly, then read its weights.

    Args:
        progress: called with a fraction (0 to 1) and a note, before each tensor too; may raise to
            give up loading.

    Raises:
        ModelError: the file or folder cannot be used; the sentence says why.
        ConfigError: the backend asked for cannot run on this device.
    """
    progress(0.0, "Checking the model")
    opened = _open(path, config, device)
    if not isinstance(opened, _Opened):
        return load_universal(opened, config, device, progress)
    kv, ops = _fitting(opened, config, device)
    storage = choose_storage(device, config.precision)
    decoder = Decoder(
        _Counted(opened.source, _num_parameters(opened.shape), progress),
        opened.shape,
        ops,
        storage,
        device,
        opened.rope_factors,
        keeps_codes=config.precision == "fast" and device.type == "cpu" and keeps_codes(),
        kv_dtype=kv.kv_dtype,
    )
    progress(1.0, "Weights are in memory")
    shape = opened.shape
    return LoadedModel(
        name=opened.name,
        file=str(opened.path),
        architecture=shape.architecture,
        context_tokens=shape.context_tokens,
        vocab_size=shape.vocab_size,
        num_parameters=_num_parameters(shape),
        weights_bytes=decoder.weights_bytes,
        storage=decoder.stored_as,
        path="fast",
        kv=kv,
        ops=ops,
        tokenizer_source=opened.tokenizer_source,
        decoder=decoder,
    )


def check_model(path: Path, config: EngineConfig, device: torch.device) -> TokenizerSource:
    """All that `load_model` checks, without reading a weight. Returns where the tokeniser lies.

    Raises:
        ModelError, ConfigError: as `load_model`.
    """
    opened = _open(path, config, device)
    if not isinstance(opened, _Opened):
        return opened.folder
    _fitting(opened, config, device)
    return opened.tokenizer_source


def load_universal(
    opened: UniversalFolder, config: EngineConfig, device: torch.device, progress: Progress
) -> LoadedModel:
    """Read the weights of a folder that `universal.open_universal` has checked.

    Raises: as `load_model`.
    """
    from engine.model.universal import Universal

    model = Universal(opened, config, device, progress)
    progress(1.0, "Weights are in memory")
    return LoadedModel(
        name=opened.name,
        file=str(opened.folder),
        architecture=opened.config.model_type,
        context_tokens=opened.context_tokens,
        vocab_size=model.vocab_size,
        num_parameters=model.num_parameters,
        weights_bytes=model.weights_bytes,
        storage=model.storage,
        path="universal",
        kv=model.spec,
        ops=model.ops,
        tokenizer_source=opened.folder,
        decoder=model,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model whose header, configuration and list of tensors have been read."""

    path: Path
    name: str
    source: WeightSource
    shape: DecoderConfig
    rope_factors: torch.Tensor | None
    tokenizer_source: TokenizerSource


class _Counted:
    """A WeightSource that says before each tensor how much of the model has been read."""

    def __init__(self, source: WeightSource, num_values: int, progress: Progress) -> None:
        self._source = source
        self._num_values = num_values
        self._num_read = 0
        self._progress = progress

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def shapes(self) -> Shapes:
        return self._source.shapes

    def load(self, name: str) -> torch.Tensor:
        self._progress(min(1.0, self._num_read / self._num_values), "Reading weights")
        tensor = self._source.load(name)
        self._num_read += tensor.numel()
        return tensor

    def load_codes(self, name: str) -> Codes | None:
        self._progress(min(1.0, self._num_read / self._num_values), "Reading weights")
        codes = self._source.load_codes(name)
        self._num_read += 0 if codes is None else codes.scale.numel() * CODE_GROUP
        return codes


def _open(path: Path, config: EngineConfig, device: torch.device) -> _Opened | UniversalFolder:
    path = Path(os.path.abspath(path))
    name = display_name(path)
    # os.path: Path's own questions raise for a name that is too long, or that we may not look at.
    if os.path.isdir(path):
        values = read_config(path, name)
        try:
            from_hf(values, name)
        except UnsupportedModelError:  # by the fast path: transformers may know more
            from engine.model.universal import open_universal

            ops = _choose_ops(config, device)
            return open_universal(path, name, values, config, device, ops)
        folder = open_safetensors(path, name)
        return _Opened(path, name, folder, folder.config, None, path)
    if not os.path.isfile(path):
        raise BadFileError(
            f"{shown(str(path), 300)} does not exist: choose a .gguf file or a model folder"
        )
    if path.suffix.lower() == ".safetensors":
        raise BadFileError(
            f"{path.name} is a part of a model: choose the folder that holds it and its config.json"
        )
    gguf = open_gguf(path)
    return _Opened(path, name, gguf, gguf.config, gguf.factors, gguf.header.metadata)


def _fitting(opened: _Opened, config: EngineConfig, device: torch.device) -> tuple[KVSpec, Ops]:
    """Whether every tensor is there, and what the model runs with."""
    check_tensors(opened.shape, opened.source.shapes, opened.source.name)
    return _kv_spec(opened.shape, config), _choose_ops(config, device)


def _choose_ops(config: EngineConfig, device: torch.device) -> Ops:
    """Raises:
    ConfigError: the backend asked for cannot run here.
    """
    try:
        return choose(device, _kv_dtype(config), config.backend)
    except BackendError as error:
        raise ConfigError(str(error)) from error


def _kv_dtype(config: EngineConfig) -> torch.dtype:
    return torch.float32 if config.precision == "exact" else torch.bfloat16


def display_name(path: Path) -> str:
    """What people call the model at an absolute path.

    A file: its name without `.gguf`, number of the part and quantisation. A folder: its name, or
    the model's where it is a snapshot in the cache of the Hugging Face hub. A GGUF's own
    `general.name` is not taken: converters fill it with what they find, and it seldom helps.
    """
    if os.path.isdir(path):
        cached = path.parent.parent.name
        if path.parent.name == "snapshots" and cached.startswith("models--"):
            return cached.rpartition("--")[2] or path.name
        return path.name or str(path)
    stem = path.stem if path.suffix.lower() == ".gguf" else path.name
    return _QUANTISATION.sub("", _SHARD.sub("", stem)) or stem


def _kv_spec(shape: DecoderConfig, config: EngineConfig) -> KVSpec:
    groups = group_layers(shape.windows)
    dim = shape.head_dim
    return KVSpec(groups, shape.num_kv_heads, dim, dim, _kv_dtype(config))


def _num_parameters(shape: DecoderConfig) -> int:
    return sum(torch.Size(sizes).numel() for sizes in expected_shapes(shape).values())
