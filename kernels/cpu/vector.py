"""Vectors of 16 float32 inside kernels: the LLVM that loops over scalars are not turned into.

A Numba loop keeps its sums in memory where they are an array. These intrinsics hold a whole tile of
sums in registers and use the machine's bf16 products where it has them; LLVM cuts a vector of 16
into what the machine knows. Addresses are integers and point into memory that the caller keeps.
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
from numba.extending import intrinsic

LANES = 16

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FLOATS = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)
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
        return self.builder.mul(index, ir.Constant(_I64, size))

    def i64(self, value: int) -> Any:
        return ir.Constant(_I64, value)

    def load(self, address: Any, offset: Any, kind: Any, align: int = 4) -> Any:
        loaded = self.builder.load(self.at(address, offset, kind))
        loaded.align = align
        return loaded

    def store(self, value: Any, address: Any, offset: Any, align: int = 4) -> None:
        stored = self.builder.store(value, self.at(address, offset, value.type))
        stored.align = align

    def splat(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, LANES)
        one = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _I32(0))
        zeros = ir.Constant(_INTS, [0] * LANES)
        return self.builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

    def number(self, value: float) -> Any:
        return ir.Constant(_FLOATS, [value] * LANES)

    def whole(self, value: int) -> Any:
        return ir.Constant(_INTS, [value] * LANES)

    def call(self, name: str, kind: Any, args: Sequence[Any], fast: bool = False) -> Any:
        function_type = ir.FunctionType(kind, [arg.type for arg in args])
        module = self.builder.module
        function = module.globals.get(name) or ir.Function(module, function_type, name)
        return self.builder.call(function, args, fastmath=_FLAGS if fast else ())

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.call("llvm.fma.v16f32", _FLOATS, (a, b, c))

    def mul(self, a: Any, b: Any) -> Any:
        return self.builder.fmul(a, b)

    def add(self, a: Any, b: Any) -> Any:
        return self.builder.fadd(a, b)

    def max(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def min(self, a: Any, b: Any) -> Any:
        return self.builder.select(self.builder.fcmp_ordered("<", a, b), a, b)

    def sum(self, vector: Any) -> Any:
        zero = ir.Constant(_F32, -0.0)
        return self.call("llvm.vector.reduce.fadd.v16f32", _F32, (zero, vector), fast=True)

    def highest(self, vector: Any) -> Any:
        return self.call("llvm.vector.reduce.fmax.v16f32", _F32, (vector,))

    def widen(self, halves: Any) -> Any:
        """16 bf16, as i16 -> float32."""
        wide = self.builder.zext(halves, _INTS)
        return self.builder.bitcast(self.builder.shl(wide, self.whole(16)), _FLOATS)

    def low(self, pairs: Any) -> Any:
        """The first bf16 of each pair of bits -> float32."""
        return self.builder.bitcast(self.builder.shl(pairs, self.whole(16)), _FLOATS)

    def high(self, pairs: Any) -> Any:
        """The second bf16 of each pair of bits -> float32."""
        kept = self.builder.and_(pairs, self.whole(-65536))
        return self.builder.bitcast(kept, _FLOATS)

    def narrow(self, floats: Any) -> Any:
        """float32 -> 16 bf16 as i16, rounded to nearest, ties to even."""
        return self.builder.bitcast(
            self.builder.fptrunc(floats, _HALVES), ir.VectorType(_I16, LANES)
        )

    def dot_pairs(self, total: Any, a: Any, b: Any) -> Any:
        """total + a.first * b.first + a.second * b.second, of pairs of bf16 [16] i32."""
        if has_feature("avx512bf16"):
            a, b = (self.builder.bitcast(x, _PAIRS) for x in (a, b))
            return self.call("llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, (total, a, b))
        total = self.fma(self.low(a), self.low(b), total)
        return self.fma(self.high(a), self.high(b), total)

    def exp(self, x: Any) -> Any:
        """e ** x, to 2e-7; x is held to -87..88."""
        x = self.min(self.max(x, self.number(-87.0)), self.number(88.0))
        scaled = self.fma(x, self.number(1.4426950408889634), self.number(0.5))
        n = self.call("llvm.floor.v16f32", _FLOATS, (scaled,))
        r = self.fma(n, self.number(-0.693359375), x)
        r = self.fma(n, self.number(2.12194440e-4), r)
        series = self.number(1 / 720)
        for divisor in (120, 24, 6, 2):
            series = self.fma(series, r, self.number(1 / divisor))
        value = self.fma(self.mul(series, r), r, self.add(r, self.number(1.0)))
        bits = self.builder.add(self.builder.fptosi(n, _INTS), self.whole(127))
        bits = self.builder.shl(bits, self.whole(23))
        return self.mul(value, self.builder.bitcast(bits, _FLOATS))

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
        self._index = builder.phi(_I64)
        self._index.add_incoming(ir.Constant(_I64, 0), before)
        more = builder.icmp_signed("<", self._index, self._number)
        builder.cbranch(more, self._body, self._after)
        builder.position_at_end(self._body)
        return self._index

    def __exit__(self, *error: object) -> None:
        builder = self._builder
        following = builder.add(self._index, ir.Constant(_I64, 1))
        self._index.add_incoming(following, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._after)


class Registers:
    """A table of vectors that LLVM keeps in registers: named memory that is promoted."""

    def __init__(self, builder: Any, number: int, kind: Any = _FLOATS) -> None:
        self._builder = builder
        with builder.goto_entry_block():
            self._slots = [builder.alloca(kind) for _ in range(number)]

    def __getitem__(self, index: int) -> Any:
        return self._builder.load(self._slots[index])

    def __setitem__(self, index: int, value: Any) -> None:
        self._builder.store(value, self._slots[index])


# --- intrinsics -----------------------------------------------------------------------------------


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


@intrinsic(prefer_literal=True)
def tile_product(
    typingctx: Any, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, keep: Any,
    count: Any, rows: Any, vectors: Any, pairs: Any, adds: Any,
) -> Any:  # fmt: skip
    """c[rows, 16 * vectors] = sum over k < count of a[rows, k] * b[k, 16 * vectors].

    Args:
        a, b, c: addresses of float32, or of pairs of bf16 along k for a and b.
        a_row, b_row, c_row: strides in elements of 4 bytes.
        keep: address of `rows` float32: what is in c is added, times these, where `adds` is 1.
        rows, vectors, pairs, adds: constants.
    """
    args = (a, a_row, b, b_row, c, c_row, keep, count, rows, vectors, pairs, adds)
    return emitting(args, 4, _tile_product)


def _tile_product(
    e: Emitter, a: Any, a_row: Any, b: Any, b_row: Any, c: Any, c_row: Any, keep: Any, count: Any,
    rows: int, vectors: int, pairs: int, adds: int,
) -> None:  # fmt: skip
    sums = Registers(e.builder, rows * vectors)
    places = [
        e.bytes(e.builder.add(e.bytes(c_row, r), e.i64(LANES * v)), 4)
        for r in range(rows)
        for v in range(vectors)
    ]
    for i, place in enumerate(places):
        sums[i] = e.number(0.0)
        if adds:
            factor = e.splat(e.load(keep, e.i64(4 * (i // vectors)), _F32))
            sums[i] = e.mul(e.load(c, place, _FLOATS), factor)
    kind, vector = (_I32, _INTS) if pairs else (_F32, _FLOATS)
    with e.count(count) as k:
        row = e.bytes(e.builder.mul(k, b_row), 4)
        offsets = [e.builder.add(row, e.i64(4 * LANES * v)) for v in range(vectors)]
        right = [e.load(b, offset, vector) for offset in offsets]
        for r in range(rows):
            left = e.splat(e.load(a, e.bytes(e.builder.add(e.bytes(a_row, r), k), 4), kind))
            for v in range(vectors):
                total = sums[r * vectors + v]
                if pairs:
                    total = e.dot_pairs(total, left, right[v])
                else:
                    total = e.fma(left, right[v], total)
                sums[r * vectors + v] = total
    for i, place in enumerate(places):
        e.store(sums[i], c, place)


@intrinsic(prefer_literal=True)
def soften(
    typingctx: Any, scores: Any, shares: Any, highest: Any, weight: Any, keep: Any,
    vectors: Any, pairs: Any,
) -> Any:  # fmt: skip
    """One row's step of an online softmax (Milakov and Gimelshein 2018) over 16 * vectors scores.

    Args:
        scores: address of the float32 scores.
        shares: address of what they become, e ** (score - highest): float32, or bf16.
        highest, weight: addresses of the row's highest score and sum so far, brought up to date.
        keep: address of what the sums before have to be multiplied by.
        vectors, pairs: constants.
    """
    return emitting((scores, shares, highest, weight, keep, vectors, pairs), 2, _soften)


def _soften(
    e: Emitter, scores: Any, shares: Any, highest: Any, weight: Any, keep: Any,
    vectors: int, pairs: int,
) -> None:  # fmt: skip
    start = e.i64(0)
    row = [e.load(scores, e.i64(4 * LANES * v), _FLOATS) for v in range(vectors)]
    before = e.load(highest, start, _F32)
    best = e.highest(functools.reduce(e.max, row))
    best = e.builder.select(e.builder.fcmp_ordered(">", best, before), best, before)
    # A row that has seen no key yet: -inf less -inf would be NaN.
    lowest = ir.Constant(_F32, -1e30)
    centre = e.builder.select(e.builder.fcmp_ordered(">", best, lowest), best, lowest)
    exps = [e.exp(e.builder.fsub(part, e.splat(centre))) for part in row]
    factor = e.exp(e.splat(e.builder.fsub(before, centre)))
    factor = e.builder.extract_element(factor, _I32(0))
    old = e.builder.fmul(e.load(weight, start, _F32), factor)
    e.store(e.builder.fadd(old, e.sum(functools.reduce(e.add, exps))), weight, start)
    e.store(best, highest, start)
    e.store(factor, keep, start)
    for v, part in enumerate(exps):
        if pairs:
            e.store(e.narrow(part), shares, e.i64(2 * LANES * v), align=2)
        else:
            e.store(part, shares, e.i64(4 * LANES * v))


@intrinsic
def take(typingctx: Any, counter: Any) -> Any:
    """The int64 at an address, which is one more afterwards: work for threads to share out."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _I64.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(_I64, 1), "monotonic")

    return types.int64(types.intp), codegen


@intrinsic
def transpose_words(typingctx: Any, rows: Any, offset: Any, target: Any, target_row: Any) -> Any:
    """16 words of 4 bytes of 16 rows each -> target[word, row].

    Args:
        rows: address of 16 addresses, int64. offset: bytes into each of the rows.
        target: address. target_row: its stride in words.
    """
    return emitting((rows, offset, target, target_row), 0, _transpose_words)


def _transpose_words(e: Emitter, rows: Any, offset: Any, target: Any, target_row: Any) -> None:
    table = [e.load(e.load(rows, e.i64(8 * i), _I64), offset, _INTS) for i in range(LANES)]
    step = 1
    while step < LANES:  # rows a power of two apart swap their halves
        low = [i if not i & step else i - step + LANES for i in range(LANES)]
        high = [i + step if not i & step else i + LANES for i in range(LANES)]
        for i in range(LANES):
            if not i & step:
                a, b = table[i], table[i + step]
                table[i] = e.builder.shuffle_vector(a, b, ir.Constant(_INTS, low))
                table[i + step] = e.builder.shuffle_vector(a, b, ir.Constant(_INTS, high))
        step *= 2
    for i, column in enumerate(table):
        e.store(column, target, e.bytes(e.builder.mul(target_row, e.i64(i)), 4))


@intrinsic(prefer_literal=True)
def score_keys(typingctx: Any, query: Any, keys: Any, scores: Any, words: Any, pairs: Any) -> Any:
    """scores[i] = query · the key at keys[i], for 16 keys.

    Args:
        query: address of the row of float32, or bf16. keys: address of 16 addresses, int64.
        scores: address of 16 float32.
        words: of 4 bytes in a row, a multiple of 8. pairs: 1 where they are pairs of bf16.
    """
    return emitting((query, keys, scores, words, pairs), 2, _score_keys)


def _score_keys(e: Emitter, query: Any, keys: Any, scores: Any, words: int, pairs: int) -> None:
    kind = _INTS if pairs else _FLOATS
    offsets = range(0, words, LANES)

    def load(row: Any, offset: int) -> Any:
        if offset + LANES <= words:
            return e.load(row, e.i64(4 * offset), kind)
        half = ir.VectorType(kind.element, LANES // 2)
        loaded = e.load(row, e.i64(4 * offset), half)
        zeros = ir.Constant(half, [0] * (LANES // 2))
        return e.builder.shuffle_vector(loaded, zeros, ir.Constant(_INTS, list(range(LANES))))

    wanted = [load(query, offset) for offset in offsets]
    sums = []
    for i in range(LANES):
        row = e.load(keys, e.i64(8 * i), _I64)
        total = e.number(0.0)
        for offset, part in zip(offsets, wanted, strict=True):
            key = load(row, offset)
            total = e.dot_pairs(total, part, key) if pairs else e.fma(part, key, total)
        sums.append(total)
    # 16 sums of 16 lanes -> one vector: in each round two vectors become one of half sums.
    step = LANES // 2
    while step:
        sums = [_folded(e, sums[i], sums[i + step], step) for i in range(step)]
        step //= 2
    e.store(sums[0], scores, e.i64(0))


def _folded(e: Emitter, a: Any, b: Any, step: int) -> Any:
    """Lanes i with i & step = 0: a[i] + a[i + step]; the others: b[i - step] + b[i]."""
    lanes = range(LANES)
    first = [i if not i & step else i - step + LANES for i in lanes]
    second = [i + step if not i & step else i + LANES for i in lanes]
    low = e.builder.shuffle_vector(a, b, ir.Constant(_INTS, first))
    high = e.builder.shuffle_vector(a, b, ir.Constant(_INTS, second))
    return e.add(low, high)


@intrinsic(prefer_literal=True)
def add_rows(
    typingctx: Any, shares: Any, shares_row: Any, values: Any, offset: Any, total: Any,
    total_row: Any, keep: Any, count: Any, rows: Any, vectors: Any, pairs: Any,
) -> Any:  # fmt: skip
    """total[r] = keep[r] * total[r] + sum over t < count of shares[r, t] * the row at values[t].

    Args:
        shares: address of [rows, >= count] float32. values: address of `count` addresses, int64.
        offset: bytes into each of those rows of 16 * vectors float32, or bf16 where `pairs` is 1.
        total: address of [rows, >= 16 * vectors] float32. keep: address of `rows` float32.
        shares_row, total_row: strides in elements. rows, vectors, pairs: constants.
    """
    args = (
        shares, shares_row, values, offset, total, total_row, keep, count, rows, vectors, pairs,
    )  # fmt: skip
    return emitting(args, 3, _add_rows)


def _add_rows(
    e: Emitter, shares: Any, shares_row: Any, values: Any, offset: Any, total: Any, total_row: Any,
    keep: Any, count: Any, rows: int, vectors: int, pairs: int,
) -> None:  # fmt: skip
    sums = Registers(e.builder, rows * vectors)
    places = [
        e.bytes(e.builder.add(e.bytes(total_row, r), e.i64(LANES * v)), 4)
        for r in range(rows)
        for v in range(vectors)
    ]
    for i, place in enumerate(places):
        factor = e.splat(e.load(keep, e.i64(4 * (i // vectors)), _F32))
        sums[i] = e.mul(e.load(total, place, _FLOATS), factor)
    halves = ir.VectorType(_I16, LANES)
    with e.count(count) as t:
        row = e.builder.add(e.load(values, e.bytes(t, 8), _I64), offset)
        parts = []
        for v in range(vectors):
            if pairs:
                parts.append(e.widen(e.load(row, e.i64(2 * LANES * v), halves, align=2)))
            else:
                parts.append(e.load(row, e.i64(4 * LANES * v), _FLOATS))
        for r in range(rows):
            place = e.bytes(e.builder.add(e.bytes(shares_row, r), t), 4)
            share = e.splat(e.load(shares, place, _F32))
            for v in range(vectors):
                sums[r * vectors + v] = e.fma(share, parts[v], sums[r * vectors + v])
    for i, place in enumerate(places):
        e.store(sums[i], total, place)


@intrinsic(prefer_literal=True)
def interleave(typingctx: Any, first: Any, second: Any, target: Any, vectors: Any) -> Any:
    """16 * vectors bf16 of two rows -> as many pairs. Addresses, and a constant."""
    return emitting((first, second, target, vectors), 1, _interleave)


def _interleave(e: Emitter, first: Any, second: Any, target: Any, vectors: int) -> None:
    halves = ir.VectorType(_I16, LANES)
    for v in range(vectors):
        place = e.i64(2 * LANES * v)
        low, high = (
            e.builder.zext(e.load(row, place, halves, align=2), _INTS) for row in (first, second)
        )
        pairs = e.builder.or_(low, e.builder.shl(high, e.whole(16)))
        e.store(pairs, target, e.i64(4 * LANES * v))
