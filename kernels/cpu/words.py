"""Words of memory that several threads use, and calls through addresses, inside kernels."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def load_word(typingctx: Any, at: Any) -> Any:
    """The int64 at an address; what was written before it was stored is seen."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def store_word(typingctx: Any, at: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = context.cast(builder, args[1], signature.args[1], types.int64)
        builder.store_atomic(value, _word(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def add_word(typingctx: Any, at: Any, value: Any) -> Any:
    """The int64 at an address grows; what it was before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, args[0]), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def swap_word(typingctx: Any, at: Any, before: Any, after: Any) -> Any:
    """Whether the int64 at an address was `before`, and is `after` now."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        both = builder.cmpxchg(_word(builder, args[0]), args[1], args[2], "acq_rel", "acquire")
        return builder.extract_value(both, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def call_operation(typingctx: Any, function: Any, record: Any, item: Any, worker: Any) -> Any:
    """Call the C function at an address with three int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@intrinsic
def relax(typingctx: Any) -> Any:
    """Tell the core that the program only waits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        machine = platform.machine().lower()
        if machine in ("x86_64", "amd64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        elif machine in ("aarch64", "arm64"):
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)])
            hint = builder.module.declare_intrinsic("llvm.aarch64.hint", (), kind)
            builder.call(hint, [ir.Constant(ir.IntType(32), 1)])  # "yield"
        return context.get_dummy_value()

    return types.void(), codegen


def _word(builder: Any, at: Any) -> Any:
    return builder.inttoptr(at, ir.IntType(64).as_pointer())
