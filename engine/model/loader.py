"""load_model: a .gguf file or a safetensors folder -> LoadedModel, ready for steps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import BadFileError, ConfigError, shown
from engine.footprint import kv_bytes_per_token
from engine.model.config import DecoderConfig
from engine.model.decoder import Cache, Decoder
from engine.model.gguf import open_gguf
from engine.model.layout import WeightSource, check_tensors, expected_shapes
from engine.model.linear import choose_storage
from engine.model.safetensors import open_safetensors
from kernels.dispatch import BackendError, Ops, choose

Progress = Callable[[float, str], None]

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
# "-Q4_K_M", ".Q4_1", ".i1-IQ2_XXS", "-UD-Q4_K_XL", "-F16"
_QUANTISATION = re.compile(
    r"[-._](?:(?:UD|i1)[-._])?"
    r"(?:I?Q\d(?:_(?:\d|K|NL|XXS|XS|S|M|L|XL))*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?16|FP?32)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What one token takes in the pool."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: torch.dtype
    bytes_per_token: int


TokenizerSource = dict[str, Any] | Path  # a GGUF's metadata, or the model folder


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
    decoder: Decoder

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        """Run one step; logits [L, vocab] fp32."""
        return self.decoder.forward(batch, cache)


def load_model(
    path: Path, config: EngineConfig, device: torch.device, progress: Progress
) -> LoadedModel:
    """Check a model wholly, then read its weights.

    Args:
        progress: called with a fraction (0 to 1) and a note; may raise to give up loading.

    Raises:
        ModelError: the file or folder cannot be used; the sentence says why.
        ConfigError: the backend asked for cannot run on this device.
    """
    progress(0.0, "Checking the model")
    opened = _open(path)
    kv, ops = _fitting(opened, config, device)
    storage = choose_storage(device, config.precision)
    decoder = Decoder(
        opened.source,
        opened.shape,
        ops,
        storage,
        device,
        opened.rope_factors,
        lambda fraction: progress(fraction, "Reading weights"),
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
        storage=storage,
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
    opened = _open(path)
    _fitting(opened, config, device)
    return opened.tokenizer_source


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model whose header, configuration and list of tensors have been read."""

    path: Path
    name: str
    source: WeightSource
    shape: DecoderConfig
    rope_factors: torch.Tensor | None
    tokenizer_source: TokenizerSource


def _open(path: Path) -> _Opened:
    path = Path(os.path.abspath(path))
    name = display_name(path)
    # os.path: Path's own questions raise for a name that is too long, or that we may not look at.
    if os.path.isdir(path):
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
    kv = _kv_spec(opened.shape, config)
    try:
        return kv, choose(device, kv.kv_dtype, config.backend)
    except BackendError as error:
        raise ConfigError(str(error)) from error


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
    exact = config.precision == "exact"
    per_token = kv_bytes_per_token(
        shape.num_layers, shape.num_kv_heads, shape.head_dim, "float32" if exact else "bfloat16"
    )
    dtype = torch.float32 if exact else torch.bfloat16
    return KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype, per_token)


def _num_parameters(shape: DecoderConfig) -> int:
    return sum(torch.Size(sizes).numel() for sizes in expected_shapes(shape).values())
