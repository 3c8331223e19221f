"""The CPU backend's table of ops: what is compiled here, and what torch already does well."""

from __future__ import annotations

from kernels.cpu import attention, cache_ops, rows

OPS = {
    "store_kv": cache_ops.store_kv,
    "paged_decode": attention.paged_decode,
    "paged_prefill": attention.paged_prefill,
    "copy_blocks": cache_ops.copy_blocks,
    "rms_norm": rows.rms_norm,
    "add_rms_norm": rows.add_rms_norm,
    "rotary": rows.rotary,
    "silu_mul": rows.silu_mul,
    "turn_and_store": cache_ops.turn_and_store,
}
