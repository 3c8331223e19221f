"""The one arithmetic of memory that engine, advisor and endpoint share. Standard library only."""

from __future__ import annotations

from typing import Literal

# Weights that are held as they are quantised share a scale and a minimum of 2 bytes each.
CODE_GROUP = 32

# Bytes of one weight, scales included, as the storages of `engine.model.linear` hold it.
WEIGHT_BYTES: dict[str, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "bf16 packed": 2.0,
    "4-bit": 0.5 + 4 / CODE_GROUP,
    "8-bit": 1.0 + 4 / CODE_GROUP,
}

KvDtype = Literal["float32", "bfloat16"]
_KV_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2}


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, kv_dtype: KvDtype) -> int:
    """Bytes that one token takes in the pool: K and V, every layer."""
    return 2 * num_layers * num_kv_heads * head_dim * _KV_BYTES[kv_dtype]


def block_bytes(bytes_per_token: int, block_tokens: int) -> int:
    return bytes_per_token * block_tokens


def blocks_for(num_tokens: int, block_tokens: int) -> int:
    """Blocks that hold `num_tokens`; the last may be part empty."""
    return -(-num_tokens // block_tokens)


def kv_bytes(num_tokens: int, bytes_per_token: int, block_tokens: int) -> int:
    """Bytes that the blocks of one sequence hold, the empty end of the last one included."""
    return blocks_for(num_tokens, block_tokens) * block_bytes(bytes_per_token, block_tokens)


def blocks_in(memory_bytes: int, bytes_per_token: int, block_tokens: int) -> int:
    """Whole blocks that a piece of memory can hold; 0 when it is smaller than one."""
    return max(0, memory_bytes) // block_bytes(bytes_per_token, block_tokens)


def weights_bytes(num_parameters: int, storage: str, num_tied: int = 0) -> int:
    """Bytes of weights in one storage ("fp32", "bf16", "bf16 packed", "4-bit", "8-bit").

    Norms stay fp32 in every storage and are counted as the rest: at most a thousandth too little.
    So are the rows and columns that a packed storage fills up to multiples of 64.

    Args:
        num_tied: parameters of an embedding that is the output matrix as well. A packed storage
            holds them twice: packed for the product, plain for the look-up.

    Raises:
        KeyError: the storage is not one of WEIGHT_BYTES.
    """
    held_twice = num_tied if storage == "bf16 packed" else 0
    return round((num_parameters + held_twice) * WEIGHT_BYTES[storage])
