"""KVCache: the physical tensors of the pool, and how many blocks a machine has room for."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.memory import free_ram_bytes

# Share of the memory measured free that the pool may take. A GPU is ours alone once the weights
# are in; on the CPU the user's other programs live in the same memory.
_DEFAULT_FRACTION = {"cuda": 0.9, "cpu": 0.25}
# 65,536 tokens of KV: eight chats with a full 8 k context. More only by asking for it.
_DEFAULT_CPU_BLOCK_TOKENS = 65_536


class KVCache:
    """K and V of every layer. `k[layer]`, `v[layer]`: [num_blocks, block_tokens, Hkv, D].

    On the CPU the memory is only reserved here: the system hands out a page when it is first
    written, so an empty pool costs no resident memory.

    Raises:
        ConfigError: the system refused the memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_blocks, block_tokens, num_kv_heads, head_dim)
        self.k = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.v = [torch.empty(shape, dtype=dtype, device=device) for _ in range(num_layers)]


def choose_num_blocks(config: EngineConfig, block_bytes: int, device: torch.device) -> int:
    """Blocks of the pool: what the user asked for, else a share of the memory that is free now.

    Raises:
        ConfigError: not even one block fits, or more were asked for than there is memory.
    """
    free = _free_bytes(device)
    if config.num_blocks is not None:
        wanted = config.num_blocks * block_bytes
        if wanted > free:
            raise ConfigError(
                f"{config.num_blocks:,} blocks need {wanted / 2**20:,.0f} MiB and "
                f"{free / 2**20:,.0f} MiB are free on {device}; ask for fewer blocks"
            )
        return config.num_blocks
    fraction = config.memory_fraction or _DEFAULT_FRACTION.get(device.type, 0.25)
    num_blocks = int(free * fraction) // block_bytes
    if device.type == "cpu" and config.memory_fraction is None:
        num_blocks = min(num_blocks, max(1, _DEFAULT_CPU_BLOCK_TOKENS // config.block_tokens))
    if num_blocks < 1:
        raise ConfigError(
            f"a block needs {block_bytes / 2**20:,.1f} MiB and only {free / 2**20:,.0f} MiB are "
            f"free on {device}; close other programs or take a smaller model"
        )
    return num_blocks


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_ram_bytes()
