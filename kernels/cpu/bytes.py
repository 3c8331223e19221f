"""Products of bytes inside kernels: 4- and 8-bit weights by 8-bit activations, 16 columns at once.

Weights are unsigned and activations signed, as the machines' instructions want them: a 4-bit code
times an activation stays below 2**15 for every one of these instructions, an 8-bit code is only
given to those that do not saturate.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from kernels.cpu.emit import LANES, Emitter, Registers, emitting, has_feature, load_floats

GROUP = 32  # weights of a row that share a scale and a minimum
HALF = 16  # activations that share a scale

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_F16, _F32 = ir.HalfType(), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_I32, LANES), ir.VectorType(_F32, LANES)


def group_bytes(bits: int) -> int:
    """Of 16 rows' codes of one group, and a scale and a minimum of each in float16."""
    return GROUP * LANES * bits // 8 + 2 * 2 * LANES


@functools.cache
def way() -> str:
    """How bytes are multiplied on this machine; empty where it knows no way worth taking."""
    if has_feature("avx512vnni") and has_feature("avx512bw"):
        return "avx512vnni"
    if has_feature("avxvnni"):
        return "avxvnni"
    return "avx2" if has_feature("avx2") and has_feature("f16c") else ""


def _dot_bytes(e: Emitter, total: Any, codes: Any, signed: Any) -> Any:
    """total[i] + the sum over 4 bytes of codes[i] (unsigned) * signed[i]; all [16] i32. Exact."""
    if way() == "avx512vnni":
        kind = ir.VectorType(_I8, 4 * LANES)
        args = (total, *(e.builder.bitcast(x, kind) for x in (codes, signed)))
        return e.call("llvm.x86.avx512.vpdpbusd.512", _INTS, args)
    parts = []
    for half in range(2):
        lanes = ir.Constant(ir.VectorType(_I32, 8), list(range(8 * half, 8 * half + 8)))
        a, b, c = (e.builder.shuffle_vector(x, x, lanes) for x in (total, codes, signed))
        parts.append(_dot_half(e, a, b, c))
    whole = ir.Constant(_INTS, list(range(LANES)))
    return e.builder.shuffle_vector(*parts, whole)


def _dot_half(e: Emitter, total: Any, codes: Any, signed: Any) -> Any:
    """`_dot_bytes` of 8."""
    eight = ir.VectorType(_I32, 8)
    if way() == "avxvnni":
        kind = ir.VectorType(_I8, 32)
        args = (total, e.builder.bitcast(codes, kind), e.builder.bitcast(signed, kind))
        return e.call("llvm.x86.avx512.vpdpbusd.256", eight, args)
    # Pairs of 16 bits do not saturate: even bytes, then odd ones.
    kind = ir.VectorType(_I16, 16)
    shift = ir.Constant(kind, [8] * 16)
    a, b = (e.builder.bitcast(x, kind) for x in (codes, signed))
    even = (e.builder.and_(a, ir.Constant(kind, [255] * 16)), e.builder.shl(b, shift))
    even = (even[0], e.builder.ashr(even[1], shift))
    odd = (e.builder.lshr(a, shift), e.builder.ashr(b, shift))
    for pair in (even, odd):
        total = e.builder.add(total, e.call("llvm.x86.avx2.pmadd.wd", eight, pair))
    return total


@intrinsic(prefer_literal=True)
def quantise(
    typingctx: Any, x: Any, up: Any, codes: Any, scale: Any, rest: Any, rest_scale: Any, bf16: Any,
    gated: Any, fine: Any,
) -> Any:  # fmt: skip
    """16 activations -> signed bytes of one scale; returns what they come to, added up.

    Args:
        x: address of float32, or bf16 where the constant `bf16` is 1.
        up: where the constant `gated` is 1, address of what silu(x) is multiplied with first.
        codes, scale: addresses of 16 bytes, and of a float32.
        rest, rest_scale: the same, where the constant `fine` is 1: for what is left of x.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        constants = [kind.literal_value for kind in (bf16, gated, fine)]
        return _quantise(Emitter(builder), *args[:6], *constants)

    if None in (getattr(kind, "literal_value", None) for kind in (bf16, gated, fine)):
        return None
    return types.float32(*[types.intp] * 6, bf16, gated, fine), codegen


def _quantise(
    e: Emitter, x: Any, up: Any, codes: Any, scale: Any, rest: Any, rest_scale: Any, bf16: int,
    gated: int, fine: int,
) -> Any:  # fmt: skip
    builder, start = e.builder, e.i64(0)
    values = load_floats(e, x, start, bf16)
    if gated:
        grown = e.add(e.exp(builder.fneg(values)), e.number(1.0))
        values = e.mul(builder.fdiv(values, grown), load_floats(e, up, start, bf16))
    # "maximum", other than "max", lets a NaN through: a broken row must not look whole again.
    sizes = e.call("llvm.fabs.v16f32", _FLOATS, (values,))
    largest = e.call("llvm.vector.reduce.fmaximum.v16f32", _F32, (sizes,))
    step = builder.fmul(largest, ir.Constant(_F32, 1 / 127))
    # A group of zeros has scale 0; 1e-30 keeps its codes finite.
    least = ir.Constant(_F32, 1e-30)
    divisor = builder.select(builder.fcmp_ordered(">", step, least), step, least)
    factor = builder.fdiv(ir.Constant(_F32, 1.0), divisor)
    near, total = _store_codes(e, values, factor, step, codes, scale)
    if fine:  # at most half a step is left, which is 127 of 254 parts
        left = e.fma(builder.fneg(near), e.splat(step), values)
        parts = ir.Constant(_F32, 254.0)
        step, factor = builder.fdiv(step, parts), builder.fmul(factor, parts)
        total = builder.fadd(total, _store_codes(e, left, factor, step, rest, rest_scale)[1])
    return total


def _store_codes(
    e: Emitter, values: Any, factor: Any, step: Any, codes: Any, scale: Any
) -> tuple[Any, Any]:
    """(the bytes as floats, step times their sum)"""
    builder, start = e.builder, e.i64(0)
    near = e.call("llvm.rint.v16f32", _FLOATS, (e.mul(values, e.splat(factor)),))
    near = e.min(e.max(near, e.number(-127.0)), e.number(127.0))
    whole = builder.fptosi(near, _INTS)
    e.store(builder.trunc(whole, ir.VectorType(_I8, LANES)), codes, start, align=1)
    e.store(step, scale, start)
    total = e.call("llvm.vector.reduce.add.v16i32", _I32, (whole,))
    return near, builder.fmul(builder.sitofp(total, _F32), step)


@intrinsic(prefer_literal=True)
def byte_product(
    typingctx: Any, codes: Any, codes_row: Any, scales: Any, sums: Any, scales_row: Any,
    weights: Any, weights_row: Any, out: Any, num_groups: Any, rows: Any, most: Any, vectors: Any,
    bits: Any,
) -> Any:  # fmt: skip
    """out[rows, 16 * vectors] float32, of quantised rows and packed weights.

    Args:
        codes: address of the rows' bytes. codes_row: bytes between rows.
        scales: address of the rows' scales, two a group. scales_row: float32 between rows.
        sums: address of scale times sum of a group, one a group; rows are scales_row / 2 apart.
        weights: address of 16 rows' groups as `kernels.cpu.products` packs them.
        weights_row: bytes from 16 rows to the next.
        rows: 1 to `most`. most, vectors, bits: constants.
    """
    args = (
        codes, codes_row, scales, sums, scales_row, weights, weights_row, out, num_groups,
        rows, most, vectors, bits,
    )  # fmt: skip
    return emitting(args, 3, _byte_products)


def _byte_products(e: Emitter, *args: Any) -> None:
    """A product for each number of rows, of which one is jumped to."""
    *operands, rows, most, vectors, bits = args
    builder = e.builder
    cases = [builder.append_basic_block(f"rows{n}") for n in range(1, most + 1)]
    after = builder.append_basic_block("after")
    chosen = builder.switch(rows, cases[-1])
    for n, case in enumerate(cases, 1):
        chosen.add_case(e.i64(n), case)
        builder.position_at_end(case)
        _byte_product(e, operands, n, vectors, bits)
        builder.branch(after)
    builder.position_at_end(after)


def _byte_product(e: Emitter, operands: list[Any], rows: int, vectors: int, bits: int) -> None:
    codes, codes_row, scales, sums, scales_row, weights, weights_row, out, num_groups = operands
    builder = e.builder
    total = Registers(builder, rows * vectors)
    for i in range(rows * vectors):
        total[i] = e.number(0.0)
    size = group_bytes(bits)
    nibble = ir.Constant(_INTS, [0x0F0F0F0F] * LANES)
    with e.count(num_groups) as g:
        packed = [
            builder.add(weights, builder.add(e.bytes(weights_row, v), e.bytes(g, size)))
            for v in range(vectors)
        ]
        steps = []
        for v in range(vectors):
            halves = e.load(packed[v], e.i64(size - 4 * LANES), ir.VectorType(_F16, LANES), 2)
            steps.append(builder.fpext(halves, _FLOATS))
        for half in range(2):
            dots = Registers(builder, rows * vectors, _INTS)
            for i in range(rows * vectors):
                dots[i] = e.whole(0)
            for word in range(HALF // 4):
                parts = []
                for v in range(vectors):
                    place = word if bits == 4 else word + half * HALF // 4
                    part = e.load(packed[v], e.i64(4 * LANES * place), _INTS)
                    if bits == 4 and half:
                        part = builder.lshr(part, e.whole(4))
                    parts.append(builder.and_(part, nibble) if bits == 4 else part)
                for r in range(rows):
                    place = builder.add(e.bytes(codes_row, r), e.bytes(g, GROUP))
                    place = builder.add(place, e.i64(half * HALF + 4 * word))
                    signed = e.splat(e.load(codes, place, _I32))
                    for v in range(vectors):
                        i = r * vectors + v
                        dots[i] = _dot_bytes(e, dots[i], parts[v], signed)
            for r in range(rows):
                place = builder.add(e.bytes(scales_row, r), builder.add(g, g))
                place = e.bytes(builder.add(place, e.i64(half)), 4)
                scale = e.splat(e.load(scales, place, _F32))
                for v in range(vectors):
                    i = r * vectors + v
                    dot = builder.sitofp(dots[i], _FLOATS)
                    total[i] = e.fma(dot, e.mul(steps[v], scale), total[i])
        for v in range(vectors):
            halves = e.load(packed[v], e.i64(size - 2 * LANES), ir.VectorType(_F16, LANES), 2)
            least = builder.fpext(halves, _FLOATS)
            for r in range(rows):
                row = builder.sdiv(e.bytes(scales_row, r), e.i64(2))
                sum_of = e.splat(e.load(sums, e.bytes(builder.add(row, g), 4), _F32))
                i = r * vectors + v
                total[i] = e.fma(least, sum_of, total[i])
    for i in range(rows * vectors):
        e.store(total[i], out, e.i64(4 * LANES * i))
