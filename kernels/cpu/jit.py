"""How CPU kernels are compiled: Numba's set-up, memory by address, bf16 and exp in registers.

Kernels get addresses, not arrays: turning a tensor into a NumPy array and unboxing it costs 1.2 us,
six times per call and 180 calls per step (8.3 us against 1.9 us for a call with six tensors).
Launchers check shapes and strides before they pass an address on.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import torch
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["LOCK", "address", "exp", "kernel", "narrow", "operation", "scratch", "widen"]

# Of the crew, which runs one program at a time, and of `scratch`.
LOCK = threading.Lock()
_OPERATIONS: list[Any] = []
_scratch = torch.empty(0, dtype=torch.uint8)

_FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums may be reordered; NaN and infinities stay


def _cache_folder() -> Path | None:
    """A folder of this user's, named by what the kernels are; None when there is no home."""
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local") / "Tessera"
    elif sys.platform == "darwin":
        base = home / "Library/Caches/Tessera"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "tessera"
    digest = hashlib.sha256(numba.__version__.encode())
    # Numba looks only at the file of a kernel, not at the helpers here that it inlines.
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    folder = base / "kernels" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def _set_up() -> bool:
    """Choose Numba's cache; whether compiled kernels can be kept on disk."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return True
    folder = _cache_folder()
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)
    return folder is not None


_CAN_CACHE = _set_up()


def kernel() -> Callable[[Callable[..., Any]], Any]:
    """Compile a function at its first call; later processes load it from disk."""
    decorate: Callable[[Callable[..., Any]], Any] = numba.njit(
        cache=_CAN_CACHE, nogil=True, fastmath=_FAST, error_model="numpy"
    )
    return decorate


def operation(function: Callable[[int, int, int], None]) -> int:
    """Compile a function of (record, item, worker) for `kernels.cpu.crew`; its address. Processes
    load it from disk after the first."""
    compiled = numba.cfunc(
        types.void(types.int64, types.int64, types.int64),
        cache=_CAN_CACHE, fastmath=_FAST, error_model="numpy",
    )(function)  # fmt: skip
    _OPERATIONS.append(compiled)  # nothing else keeps it
    return int(compiled.address)


def scratch(num_bytes: int) -> int:
    """Address of memory, at a multiple of 64, for a kernel to work in while `LOCK` is held. Kept
    from call to call: three allocations cost as much as a small product."""
    global _scratch
    if len(_scratch) < num_bytes + 64:
        _scratch = torch.empty(num_bytes + 64, dtype=torch.uint8)
    return -(-_scratch.data_ptr() // 64) * 64


# --- inside kernels -----------------------------------------------------------------------------


@intrinsic
def address(typingctx: Any, number: Any) -> Any:
    """An integer as a pointer, for `numba.carray`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(number), codegen


@intrinsic
def widen(typingctx: Any, number: Any) -> Any:
    """The bits of a bf16 (uint16), or a float32 -> float32."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if number != types.uint16:
            return args[0]
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, _i32(16)), ir.FloatType())

    return types.float32(number), codegen


@intrinsic
def narrow(typingctx: Any, array: Any, number: Any) -> Any:
    """A float32 as `array` holds it: bf16 is rounded to nearest, ties to even; NaN stays NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[1], number, types.float32)
        if array.dtype != types.uint16:
            return value
        bits = builder.bitcast(value, ir.IntType(32))
        odd = builder.and_(builder.lshr(bits, _i32(16)), _i32(1))
        rounded = builder.add(bits, builder.add(odd, _i32(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", value, value)
        chosen = builder.select(is_nan, _i32(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(chosen, _i32(16)), ir.IntType(16))

    return array.dtype(array, number), codegen


@intrinsic
def _pow2(typingctx: Any, number: Any) -> Any:
    """2 ** n for a whole float -126 to 127, by writing the exponent's bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = builder.fptosi(args[0], ir.IntType(32))
        bits = builder.shl(builder.add(whole, _i32(127)), _i32(23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.float32), codegen


def _i32(value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(32), value)


_LOG2E = numba.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = numba.float32(0.693359375), numba.float32(-2.12194440e-4)
_LOW, _HIGH = numba.float32(-87.0), numba.float32(88.0)
_HALF, _ONE = numba.float32(0.5), numba.float32(1.0)
_C2, _C3, _C4, _C5, _C6 = (numba.float32(1 / n) for n in (2, 6, 24, 120, 720))


@numba.njit(inline="always", fastmath=_FAST)
def exp(x: Any) -> Any:
    """e ** x in float32, to 2e-7; x is held to -87..88. Ten times libm's speed: it vectorises."""
    x = min(max(x, _LOW), _HIGH)
    n = numba.float32(_floor(x * _LOG2E + _HALF))
    r = x - n * _LN2_HIGH - n * _LN2_LOW  # -0.35 to 0.35
    series = _C4 + r * (_C5 + r * _C6)
    series = _HALF + r * (_C3 + r * series)
    return (_ONE + r + r * r * series) * _pow2(n)


@intrinsic
def _floor(typingctx: Any, number: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.floor", [ir.FloatType()])
        return builder.call(function, args)

    return types.float32(types.float32), codegen
