"""What kernels' intrinsics are written with: LLVM for vectors of 16 float32, kept in registers.

A Numba loop keeps its sums in memory where they are an array. What is emitted here holds a whole
tile of them in registers and uses the machine's bf16 products where it has them; LLVM cuts a vector
of 16 into what the machine knows. Addresses are integers and point into memory the caller keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
import numba
import numba.core.config
from llvmlite import ir
from numba.core import types

LANES = 16

I8, I16, I32, I64, F32 = (
    ir.IntType(8),
    ir.IntType(16),
    ir.IntType(32),
    ir.IntType(64),
    ir.FloatType(),
)
FLOATS = ir.VectorType(F32, LANES)
INTS = ir.VectorType(I32, LANES)
_FLAGS = ("reassoc", "contract", "nsz", "arcp")


class _BF16(ir.types.Type):
    """LLVM's `bfloat`, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BF16)

    def __hash__(self) -> int:
        return hash(_BF16)


_HALVES = ir.VectorType(_BF16(), LANES)
_PAIRS = ir.VectorType(_BF16(), 2 * LANES)


@functools.cache
def has_feature(name: str) -> bool:
    """Whether Numba compiles for a machine with this feature ("avx512bf16", "avx2", ...)."""
    chosen = numba.config.CPU_FEATURES
    if chosen is not None:  # NUMBA_CPU_FEATURES: how a lesser machine is tried out
        return f"+{name}" in str(chosen).split(",")
    return bool(llvmlite.binding.get_host_cpu_features().get(name, False))


def tile_shape() -> tuple[int, int]:
    """(rows, vectors) of a tile of sums that fits the machine's registers: 24 of 32 with AVX-512,
    8 of 16 (each vector takes two) with AVX2."""
    return (6, 4) if has_feature("avx512f") else (4, 1)


# --- emitting -------------------------------------------------------------------------------------


class Emitter:
    """Short names for what the intrinsics of this package emit."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def at(self, address: Any, offset: Any, kind: Any) -> Any:
        """Pointer to `kind` at an address plus `offset` bytes."""
        return self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer())

    def bytes(self, index: Any, size: int) -> Any:
        return self.builder.mul(index, ir.Constant(I64, size))

    def i64(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def load(self, address: Any, offset: Any, kind: Any, align: int = 4) -> Any:
        loaded = self.builder.load(self.at(address, offset, kind))
        loaded.align = align
        return loaded

    def store(self, value: Any, address: Any, offset: Any, align: int = 4) -> None:
        stored = self.builder.store(value, self.at(address, offset, value.type))
        stored.align = align

    def prefetch(self, address: Any, num_bytes: int) -> None:
        """Ask for the cache lines that begin in so many bytes."""
        kind = I8.as_pointer()
        wanted = ir.FunctionType(ir.VoidType(), [kind, I32, I32, I32])
        name, module = "llvm.prefetch.p0", self.builder.module
        function = module.globals.get(name) or ir.Function(module, wanted, name)
        for offset in range(0, num_bytes, 64):
            pointer = self.at(address, self.i64(offset), I8)
            self.builder.call(function, (pointer, I32(0), I32(3), I32(1)))  # read, keep close, data

    def splat(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, LANES)
        one = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, I32(0))
        zeros = ir.Constant(INTS, [0] * LANES)
        return self.builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

    def number(self, value: float) -> Any:
        return ir.Constant(FLOATS, [value] * LANES)

    def whole(self, value: int) -> Any:
        return ir.Constant(INTS, [value] * LANES)

    def call(self, name: str, kind: Any, args: Sequence[Any], fast: bool = False) -> Any:
        function_type = ir.FunctionType(kind, [arg.type for arg in args])
        module = self.builder.module
        function = module.globals.get(name) or ir.Function(module, function_type, name)
        return self.builder.call(function, args, fastmath=_FLAGS if fast else ())

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("llvm.fma.v16f32", FLOATS, (a, b, c))

    def mul(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b)

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b)

    def max(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def min(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def sum(self, vector: Any) -> Any:
        zero = ir.Constant(F32, -0.0)
        return self.call("llvm.vector.reduce.fadd.v16f32", F32, (zero, vector), fast=True)

    def highest(self, vector: Any) -> Any:
        return self.call("llvm.vector.reduce.fmax.v16f32", F32, (vector,))

    def widen(self, halves: Any) -> Any:
        """16 bf16, as i16 -> float32."""
        wide = self.builder.zext(halves, INTS)
        return self.builder.bitcast(self.builder.shl(wide, self.whole(16)), FLOATS)

    def low(self, pairs: Any) -> Any:
        """The first bf16 of each pair of bits -> float32."""
        return self.builder.bitcast(self.builder.shl(pairs, self.whole(16)), FLOATS)

    def high(self, pairs: Any) -> Any:
        """The second bf16 of each pair of bits -> float32."""
        kept = self.builder.and_(pairs, self.whole(-65536))
        return self.builder.bitcast(kept, FLOATS)

    def narrow(self, floats: Any) -> Any:
        """float32 -> 16 bf16 as i16, rounded to nearest, ties to even; NaN stays NaN."""
        builder, kind = self.builder, ir.VectorType(I16, LANES)
        if has_feature("avx512bf16"):
            return builder.bitcast(builder.fptrunc(floats, _HALVES), kind)
        # Elsewhere LLVM calls a function for it that nobody links.
        bits = builder.bitcast(floats, INTS)
        odd = builder.and_(builder.lshr(bits, self.whole(16)), self.whole(1))
        rounded = builder.add(bits, builder.add(odd, self.whole(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", floats, floats)
        chosen = builder.select(is_nan, self.whole(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(chosen, self.whole(16)), kind)

    def dot_pairs(self, total: Any, a: Any, b: Any) -> Any:
        """total + a.first * b.first + a.second * b.second, of pairs of bf16 [16] i32."""
        if has_feature("avx512bf16"):
            a, b = (self.builder.bitcast(x, _PAIRS) for x in (a, b))
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, (total, a, b))
        total = self.fma(self.low(a), self.low(b), total)
        return self.fma(self.high(a), self.high(b), total)

    def exp(self, x: Any) -> Any:
        """e ** x, to 2e-7; x is held to -87..88."""
        x = self.min(self.max(x, self.number(-87.0)), self.number(88.0))
        scaled = self.fma(x, self.number(1.4426950408889634), self.number(0.5))
        n = self.call("llvm.floor.v16f32", FLOATS, (scaled,))
        r = self.fma(n, self.number(-0.693359375), x)
        r = self.fma(n, self.number(2.12194440e-4), r)
        series = self.number(1 / 720)
        for divisor in (120, 24, 6, 2):
            series = self.fma(series, r, self.number(1 / divisor))
        value = self.fma(self.mul(series, r), r, self.add(r, self.number(1.0)))
        bits = self.builder.add(self.builder.fptosi(n, INTS), self.whole(127))
        bits = self.builder.shl(bits, self.whole(23))
        return self.mul(value, self.builder.bitcast(bits, FLOATS))

    def count(self, number: Any) -> _Loop:
        return _Loop(self.builder, number)


class _Loop:
    """`with emitter.count(n) as i:` a loop whose body is emitted once."""

    def __init__(self, builder: Any, number: Any) -> None:
        self._builder = builder
        self._number = number

    def __enter__(self) -> Any:
        builder = self._builder
        before = builder.block
        self._head = builder.append_basic_block("head")
        self._body = builder.append_basic_block("body")
        self._after = builder.append_basic_block("after")
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self._index = builder.phi(I64)
        self._index.add_incoming(ir.Constant(I64, 0), before)
        more = builder.icmp_signed("<", self._index, self._number)
        builder.cbranch(more, self._body, self._after)
        builder.position_at_end(self._body)
        return self._index

    def __exit__(self, *error: object) -> None:
        builder = self._builder
        following = builder.add(self._index, ir.Constant(I64, 1))
        self._index.add_incoming(following, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._after)


class Registers:
    """A table of vectors that LLVM keeps in registers: named memory that is promoted."""

    def __init__(self, builder: Any, number: int, kind: Any = FLOATS) -> None:
        self._builder = builder
        with builder.goto_entry_block():
            self._slots = [builder.alloca(kind) for _ in range(number)]

    def __getitem__(self, index: int) -> Any:
        return self._builder.load(self._slots[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._builder.store(value, self._slots[index])


def emitting(args: Sequence[Any], num_literals: int, emit: Callable[..., None]) -> Any:
    """What an intrinsic without a result returns: integers first, then constants."""
    split = len(args) - num_literals
    literals = [getattr(kind, "literal_value", None) for kind in args[split:]]
    if None in literals:
        return None

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit(Emitter(builder), *values[:split], *literals)
        return context.get_dummy_value()

    return types.void(*[types.intp] * split, *args[split:]), codegen


def load_floats(e: Emitter, address: Any, offset: Any, bf16: int) -> Any:
    if not bf16:
        return e.load(address, offset, FLOATS)
    return e.widen(e.load(address, offset, ir.VectorType(I16, LANES), align=2))


def store_floats(e: Emitter, value: Any, address: Any, offset: Any, bf16: int) -> None:
    if bf16:
        e.store(e.narrow(value), address, offset, align=2)
    else:
        e.store(value, address, offset)
