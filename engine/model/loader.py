"""load_model: a .gguf file or a safetensors folder -> LoadedModel, ready for steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.errors import BadFileError, ConfigError
from engine.footprint import kv_bytes_per_token
from engine.model.config import DecoderConfig
from engine.model.decoder import Cache, Decoder
from engine.model.gguf import open_gguf
from engine.model.layout import WeightSource, check_tensors, expected_shapes
from engine.model.linear import choose_storage
from engine.model.safetensors import open_safetensors
from kernels.dispatch import BackendError, Ops, choose

Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What one token takes in the pool."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: torch.dtype
    bytes_per_token: int


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
    tokenizer_source: dict[str, Any] | Path  # a GGUF's metadata, or the model folder
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
    source: WeightSource
    if path.is_dir():
        source = folder = open_safetensors(path)
        return _load(path, path.name, source, folder.config, None, path, config, device, progress)
    if not path.is_file():
        raise BadFileError(f"{path} does not exist: choose a .gguf file or a model folder")
    if path.suffix == ".safetensors":
        raise BadFileError(
            f"{path.name} is a part of a model: choose the folder that holds it and its config.json"
        )
    source = gguf = open_gguf(path)
    metadata = gguf.header.metadata
    name = metadata.get("general.name")
    name = name if isinstance(name, str) and name.strip() else path.stem
    return _load(path, name, source, gguf.config, gguf.factors, metadata, config, device, progress)


def _load(
    path: Path,
    name: str,
    source: WeightSource,
    shape: DecoderConfig,
    rope_factors: torch.Tensor | None,
    tokenizer_source: dict[str, Any] | Path,
    config: EngineConfig,
    device: torch.device,
    progress: Progress,
) -> LoadedModel:
    check_tensors(shape, source.shapes, source.name)
    kv = _kv_spec(shape, config)
    try:
        ops = choose(device, kv.kv_dtype, config.backend)
    except BackendError as error:
        raise ConfigError(str(error)) from error
    storage = choose_storage(device, config.precision)
    decoder = Decoder(
        source,
        shape,
        ops,
        storage,
        device,
        rope_factors,
        lambda fraction: progress(fraction, "Reading weights"),
    )
    progress(1.0, "Weights are in memory")
    return LoadedModel(
        name=name,
        file=str(path),
        architecture=shape.architecture,
        context_tokens=shape.context_tokens,
        vocab_size=shape.vocab_size,
        num_parameters=_num_parameters(shape),
        weights_bytes=decoder.weights_bytes,
        storage=storage,
        path="fast",
        kv=kv,
        ops=ops,
        tokenizer_source=tokenizer_source,
        decoder=decoder,
    )


def _kv_spec(shape: DecoderConfig, config: EngineConfig) -> KVSpec:
    exact = config.precision == "exact"
    per_token = kv_bytes_per_token(
        shape.num_layers, shape.num_kv_heads, shape.head_dim, "float32" if exact else "bfloat16"
    )
    dtype = torch.float32 if exact else torch.bfloat16
    return KVSpec(shape.num_layers, shape.num_kv_heads, shape.head_dim, dtype, per_token)


def _num_parameters(shape: DecoderConfig) -> int:
    return sum(torch.Size(sizes).numel() for sizes in expected_shapes(shape).values())
