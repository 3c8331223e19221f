"""Intrinsics of the attention kernels: tiles of products, softmax, keys scored where they lie."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.extending import intrinsic

from kernels.cpu.emit import (
    F32,
    FLOATS,
    I16,
    I32,
    I64,
    INTS,
    LANES,
    Emitter,
    Registers,
    emitting,
    load_floats,
    store_floats,
)


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
            factor = e.splat(e.load(keep, e.i64(4 * (i // vectors)), F32))
            sums[i] = e.mul(e.load(c, place, FLOATS), factor)
    kind, vector = (I32, INTS) if pairs else (F32, FLOATS)
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
    row = [e.load(scores, e.i64(4 * LANES * v), FLOATS) for v in range(vectors)]
    before = e.load(highest, start, F32)
    best = e.highest(functools.reduce(e.max, row))
    best = e.builder.select(e.builder.fcmp_ordered(">", best, before), best, before)
    # A row that has seen no key yet: -inf less -inf would be NaN.
    lowest = ir.Constant(F32, -1e30)
    centre = e.builder.select(e.builder.fcmp_ordered(">", best, lowest), best, lowest)
    exps = [e.exp(e.builder.fsub(part, e.splat(centre))) for part in row]
    factor = e.exp(e.splat(e.builder.fsub(before, centre)))
    factor = e.builder.extract_element(factor, I32(0))
    old = e.builder.fmul(e.load(weight, start, F32), factor)
    e.store(e.builder.fadd(old, e.sum(functools.reduce(e.add, exps))), weight, start)
    e.store(best, highest, start)
    e.store(factor, keep, start)
    for v, part in enumerate(exps):
        if pairs:
            e.store(e.narrow(part), shares, e.i64(2 * LANES * v), align=2)
        else:
            e.store(part, shares, e.i64(4 * LANES * v))


@intrinsic
def transpose_words(typingctx: Any, rows: Any, offset: Any, target: Any, target_row: Any) -> Any:
    """16 words of 4 bytes of 16 rows each -> target[word, row].

    Args:
        rows: address of 16 addresses, int64. offset: bytes into each of the rows.
        target: address. target_row: its stride in words.
    """
    return emitting((rows, offset, target, target_row), 0, _transpose_words)


def _transpose_words(e: Emitter, rows: Any, offset: Any, target: Any, target_row: Any) -> None:
    table = [e.load(e.load(rows, e.i64(8 * i), I64), offset, INTS) for i in range(LANES)]
    step = 1
    while step < LANES:  # rows a power of two apart swap their halves
        low = [i if not i & step else i - step + LANES for i in range(LANES)]
        high = [i + step if not i & step else i + LANES for i in range(LANES)]
        for i in range(LANES):
            if not i & step:
                a, b = table[i], table[i + step]
                table[i] = e.builder.shuffle_vector(a, b, ir.Constant(INTS, low))
                table[i + step] = e.builder.shuffle_vector(a, b, ir.Constant(INTS, high))
        step *= 2
    for i, column in enumerate(table):
        e.store(column, target, e.bytes(e.builder.mul(target_row, e.i64(i)), 4))


@intrinsic(prefer_literal=True)
def score_keys(
    typingctx: Any,
    query: Any,
    keys: Any,
    ahead: Any,
    scores: Any,
    words: Any,
    has_half: Any,
    pairs: Any,
) -> Any:
    """scores[i] = query · the key at keys[i], for 16 keys.

    Args:
        query: address of the row of float32, or bf16. keys: address of 16 addresses, int64.
        ahead: address of 16 addresses of the keys that are needed next: they are asked for.
        scores: address of 16 float32.
        words: of 4 bytes in a row, a multiple of 16 or, where the constant `has_half` is 1, of 8.
        pairs: a constant, 1 where they are pairs of bf16.
    """
    return emitting((query, keys, ahead, scores, words, has_half, pairs), 2, _score_keys)


def _score_keys(
    e: Emitter,
    query: Any,
    keys: Any,
    ahead: Any,
    scores: Any,
    words: Any,
    has_half: int,
    pairs: int,
) -> None:
    kind = INTS if pairs else FLOATS
    half = ir.VectorType(kind.element, LANES // 2)

    def load_half(row: Any, offset: Any) -> Any:
        loaded, zeros = e.load(row, offset, half), ir.Constant(half, [0] * (LANES // 2))
        return e.builder.shuffle_vector(loaded, zeros, ir.Constant(INTS, list(range(LANES))))

    table = Registers(e.builder, LANES)
    for i in range(LANES):
        table[i] = e.number(0.0)

    def add(load: Callable[[Any, Any], Any], offset: Any) -> None:
        wanted = load(query, offset)
        for i in range(LANES):
            e.prefetch(e.builder.add(e.load(ahead, e.i64(8 * i), I64), offset), 64)
            key = load(e.load(keys, e.i64(8 * i), I64), offset)
            total = table[i]
            table[i] = e.dot_pairs(total, wanted, key) if pairs else e.fma(wanted, key, total)

    chunks = e.builder.sdiv(words, e.i64(LANES))
    with e.count(chunks) as chunk:
        add(lambda row, offset: e.load(row, offset, kind), e.bytes(chunk, 4 * LANES))
    if has_half:
        add(load_half, e.bytes(chunks, 4 * LANES))
    sums = [table[i] for i in range(LANES)]
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
    low = e.builder.shuffle_vector(a, b, ir.Constant(INTS, first))
    high = e.builder.shuffle_vector(a, b, ir.Constant(INTS, second))
    return e.add(low, high)


@intrinsic(prefer_literal=True)
def add_rows(
    typingctx: Any, shares: Any, shares_row: Any, values: Any, ahead: Any, offset: Any, total: Any,
    total_row: Any, keep: Any, count: Any, rows: Any, vectors: Any, pairs: Any,
) -> Any:  # fmt: skip
    """total[r] = keep[r] * total[r] + sum over t < count of shares[r, t] * the row at values[t].

    Args:
        shares: address of [rows, >= count] float32. values: address of `count` addresses, int64.
        ahead: address of as many of the rows that are needed next: they are asked for.
        offset: bytes into each of those rows of 16 * vectors float32, or bf16 where `pairs` is 1.
        total: address of [rows, >= 16 * vectors] float32. keep: address of `rows` float32.
        shares_row, total_row: strides in elements. rows, vectors, pairs: constants.
    """
    args = (
        shares, shares_row, values, ahead, offset, total, total_row, keep, count,
        rows, vectors, pairs,
    )  # fmt: skip
    return emitting(args, 3, _add_rows)


def _add_rows(
    e: Emitter, shares: Any, shares_row: Any, values: Any, ahead: Any, offset: Any, total: Any,
    total_row: Any, keep: Any, count: Any, rows: int, vectors: int, pairs: int,
) -> None:  # fmt: skip
    sums = Registers(e.builder, rows * vectors)
    places = [
        e.bytes(e.builder.add(e.bytes(total_row, r), e.i64(LANES * v)), 4)
        for r in range(rows)
        for v in range(vectors)
    ]
    for i, place in enumerate(places):
        factor = e.splat(e.load(keep, e.i64(4 * (i // vectors)), F32))
        sums[i] = e.mul(e.load(total, place, FLOATS), factor)
    halves = ir.VectorType(I16, LANES)
    with e.count(count) as t:
        row = e.builder.add(e.load(values, e.bytes(t, 8), I64), offset)
        later = e.builder.add(e.load(ahead, e.bytes(t, 8), I64), offset)
        e.prefetch(later, LANES * vectors * (2 if pairs else 4))
        parts = []
        for v in range(vectors):
            if pairs:
                parts.append(e.widen(e.load(row, e.i64(2 * LANES * v), halves, align=2)))
            else:
                parts.append(e.load(row, e.i64(4 * LANES * v), FLOATS))
        for r in range(rows):
            place = e.bytes(e.builder.add(e.bytes(shares_row, r), t), 4)
            share = e.splat(e.load(shares, place, F32))
            for v in range(vectors):
                sums[r * vectors + v] = e.fma(share, parts[v], sums[r * vectors + v])
    for i, place in enumerate(places):
        e.store(sums[i], total, place)


@intrinsic(prefer_literal=True)
def interleave(typingctx: Any, first: Any, second: Any, target: Any, vectors: Any) -> Any:
    """16 * vectors bf16 of two rows -> as many pairs. Addresses, and a constant."""
    return emitting((first, second, target, vectors), 1, _interleave)


def _interleave(e: Emitter, first: Any, second: Any, target: Any, vectors: int) -> None:
    halves = ir.VectorType(I16, LANES)
    for v in range(vectors):
        place = e.i64(2 * LANES * v)
        low, high = (
            e.builder.zext(e.load(row, place, halves, align=2), INTS) for row in (first, second)
        )
        pairs = e.builder.or_(low, e.builder.shl(high, e.whole(16)))
        e.store(pairs, target, e.i64(4 * LANES * v))


@intrinsic(prefer_literal=True)
def turn(typingctx: Any, x: Any, half: Any, cos: Any, sin: Any, bf16: Any) -> Any:
    """16 pairs of a head turned in place: x[i], x[i + half] by the angles of cos and sin.

    Args:
        x, cos, sin: addresses; of float32, x of bf16 where the constant `bf16` is 1.
        half: number of values from one of a pair to the other.
    """
    return emitting((x, half, cos, sin, bf16), 1, _turn)


def _turn(e: Emitter, x: Any, half: Any, cos: Any, sin: Any, bf16: int) -> None:
    start = e.i64(0)
    places = (start, e.bytes(half, 2 if bf16 else 4))
    first, second = (load_floats(e, x, place, bf16) for place in places)
    c, s = e.load(cos, start, FLOATS), e.load(sin, start, FLOATS)
    turned = (
        e.builder.fsub(e.mul(first, c), e.mul(second, s)),
        e.add(e.mul(second, c), e.mul(first, s)),
    )
    for place, value in zip(places, turned, strict=True):
        store_floats(e, value, x, place, bf16)


@intrinsic(prefer_literal=True)
def move(typingctx: Any, source: Any, target: Any, from_bf16: Any, to_bf16: Any) -> Any:
    """16 values from one address to another; the constants say which of them holds bf16."""
    return emitting((source, target, from_bf16, to_bf16), 2, _move)


def _move(e: Emitter, source: Any, target: Any, from_bf16: int, to_bf16: int) -> None:
    value = load_floats(e, source, e.i64(0), from_bf16)
    store_floats(e, value, target, e.i64(0), to_bf16)
