"""KVCache: the physical tensors of the pool, and how many blocks a machine has room for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.layer_groups import LayerGroup, group_size
from engine.memory import free_ram_bytes

# Share of the memory measured free that the pool may take. A GPU is ours alone once the weights
# are in; on the CPU the user's other programs live in the same memory.
_DEFAULT_FRACTION = {"cuda": 0.9, "cpu": 0.25}
# 65,536 tokens of KV: eight chats with a full 8 k context. More only by asking for it.
_DEFAULT_CPU_BLOCK_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What a model keeps of each token in the pool, and how its layers share the blocks."""

    groups: tuple[LayerGroup, ...]
    num_kv_heads: int
    k_dim: int  # of one head
    v_dim: int
    kv_dtype: torch.dtype

    @property
    def num_layers(self) -> int:
        return sum(len(group.layers) for group in self.groups)

    @property
    def group_size(self) -> int:
        """Layers that a block has room for."""
        return group_size(self.groups)

    @property
    def bytes_per_slot(self) -> int:
        """One token in one block. With several groups a token takes a slot in each."""
        values = self.num_kv_heads * (self.k_dim + self.v_dim)
        return self.group_size * values * self.kv_dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        """One token in every layer that keeps it, filled-up groups included."""
        return len(self.groups) * self.bytes_per_slot


class KVCache:
    """K and V of as many layers as a block holds: `k[i]` [num_blocks, block_tokens, Hkv, k_dim],
    `v[i]` likewise. Layer `groups[g].layers[i]` uses `k[i]` and `v[i]` through the block tables of
    group g.

    On the CPU the memory is only reserved here: the system hands out a page when it is first
    written, so an empty pool costs no resident memory.

    Raises:
        ConfigError: the system refused the memory.
    """

    def __init__(
        self, spec: KVSpec, num_blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        def pool(dim: int) -> torch.Tensor:
            shape = (num_blocks, block_tokens, spec.num_kv_heads, dim)
            return torch.empty(shape, dtype=spec.kv_dtype, device=device)

        self.k = [pool(spec.k_dim) for _ in range(spec.group_size)]
        self.v = [pool(spec.v_dim) for _ in range(spec.group_size)]


def choose_num_blocks(
    config: EngineConfig, block_bytes: int, device: torch.device, num_groups: int = 1
) -> int:
    """Blocks of the pool: what the user asked for, else a share of the memory that is free now.

    Args:
        num_groups: layer groups, each of which takes a block where a model with one takes one.

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
        usual = _DEFAULT_CPU_BLOCK_TOKENS // config.block_tokens * num_groups
        num_blocks = min(num_blocks, max(1, usual))
    if num_blocks < num_groups:
        raise ConfigError(
            f"a block needs {block_bytes / 2**20:,.1f} MiB and only {free / 2**20:,.0f} MiB are "
            f"free on {device}; close other programs or take a smaller model"
        )
    return num_blocks


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_ram_bytes()
