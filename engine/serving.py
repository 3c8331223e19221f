"""Serving: all that belongs to one loaded model: weights, text, pool, tensors, scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.device import choose_device, device_name, num_threads
from engine.errors import ConfigError, PromptTooLongError
from engine.kv_cache import KVCache, choose_num_blocks
from engine.messages import ModelInfo, SamplingParams
from engine.prefix import root_digest
from engine.scheduler import Scheduler
from engine.text import Text
from kernels.dispatch import set_num_threads

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel, TokenizerSource

VERSION = "2026.12.0"


@dataclass(slots=True, eq=False)
class Serving:
    info: ModelInfo
    model: LoadedModel
    text: Text
    cache: KVCache
    pool: BlockPool
    scheduler: Scheduler
    device: torch.device
    limit_tokens: int  # prompt + reply of one request: context or whole pool, the smaller

    def check_length(self, num_prompt: int, params: SamplingParams) -> int:
        """Most tokens this request may reach.

        Raises:
            PromptTooLongError: not even one new token would fit; both numbers are in the sentence.
        """
        if num_prompt >= self.limit_tokens:
            if self.limit_tokens < self.info.context_tokens:
                what = f"the whole pool holds {self.limit_tokens:,}"
            else:
                what = f"this model's context holds {self.limit_tokens:,}"
            raise PromptTooLongError(
                f"The prompt is {num_prompt:,} tokens long and {what}, the reply included; "
                "shorten it, or start a new chat"
            )
        most = num_prompt + (params.max_tokens or self.limit_tokens)
        return min(self.limit_tokens, most)


def open_model(path: Path, config: EngineConfig, progress: Callable[[float, str], None]) -> Serving:
    """Load a model and carve its pool from the memory that is free afterwards. The calling thread
    is the one that runs its steps: torch's number of threads is set for it.

    Args:
        progress: called with a fraction (0 to 1) and a note; may raise to give up loading.

    Raises:
        ModelError: the file or folder cannot be used. ConfigError: no room for the pool.
    """
    # Imported here: the loader brings gguf and safetensors, 0.2 s that an engine without a model
    # need not pay.
    from engine.model.loader import load_model
    from engine.warm_up import warm_up

    device = choose_device(config)
    set_num_threads(num_threads(config), own_kernels=False)
    model = load_model(path, config, device, lambda f, note: progress(0.9 * f, note))
    set_num_threads(num_threads(config), model.has_own_kernels)
    progress(0.92, "Reading the tokeniser")
    text = _text(model.tokenizer_source)
    progress(0.97, "Carving the pool")
    kv = model.kv
    block_bytes = kv.bytes_per_slot * config.block_tokens
    num_blocks = choose_num_blocks(config, block_bytes, device, len(kv.groups))
    pool = BlockPool(num_blocks, config.block_tokens, block_bytes, kv.groups)
    cache = KVCache(kv, num_blocks, config.block_tokens, device)
    root = root_digest(_cache_key(path, config, kv.kv_dtype))
    scheduler = Scheduler(pool, config.chunk_tokens, config.max_running, root)
    context = min(model.context_tokens, config.context_tokens or model.context_tokens)
    info = _info(path, config, device, model, pool, context, text.template is not None)
    limit = min(context, pool.most_tokens())
    if limit < 2:
        raise ConfigError(
            f"a pool of {num_blocks:,} blocks holds no prompt of this model, whose layers take "
            f"{len(kv.groups)} blocks at a time; ask for more blocks"
        )
    progress(0.98, "Compiling for this processor: once, then it is kept")
    warm_up(model, cache, config.block_tokens, limit, device)
    return Serving(info, model, text, cache, pool, scheduler, device, limit)


def check_model(path: Path, config: EngineConfig) -> None:
    """Find out, without memory to speak of, whether `open_model` would refuse this model.

    Raises:
        ModelError, ConfigError: as `open_model`, but for memory that is not there.
    """
    from engine.model.loader import check_model as check

    _text(check(path, config, choose_device(config)))


def _text(source: TokenizerSource) -> Text:
    return Text.from_folder(source) if isinstance(source, Path) else Text.from_gguf(source)


def _cache_key(path: Path, config: EngineConfig, kv_dtype: torch.dtype) -> str:
    """Everything besides the tokens that changes K and V."""
    stat = path.stat()
    return f"{path}|{stat.st_size}|{stat.st_mtime_ns}|{config.precision}|{kv_dtype}"


def _info(
    path: Path,
    config: EngineConfig,
    device: torch.device,
    model: LoadedModel,
    pool: BlockPool,
    context_tokens: int,
    has_template: bool,
) -> ModelInfo:
    return ModelInfo(
        name=model.name,
        file=str(path),
        architecture=model.architecture,
        context_tokens=context_tokens,
        num_parameters=model.num_parameters,
        device=str(device),
        device_name=device_name(device, num_threads(config)),
        backend=model.ops.backend,
        path=model.path,
        precision=config.precision,
        storage=model.storage,
        weights_bytes=model.weights_bytes,
        num_blocks=pool.num_blocks,
        block_tokens=pool.block_tokens,
        block_bytes=pool.block_bytes,
        has_chat_template=has_template,
        version=VERSION,
    )
