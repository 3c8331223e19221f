"""Mutations: how the fuzzer damages bytes, numbers, JSON, and what a GGUF says.

Everything random comes from the `random.Random` that is passed in.
"""

from __future__ import annotations

import copy
import json
import struct
from random import Random
from typing import Any

from tiny_models import GgufParts, dumped, safetensors

NUMBERS = (
    0, 1, 2, 3, 7, 31, 33, 255, 256, 4096, 65_535, 65_536, 1 << 20, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, -(1 << 63), 0.0, -0.5, 1e-30, 1e30, 1e308, "", "a", "\u2581", "\n\x07",
    "\ud800", "x" * 3000, [], [[]], [0], [-1], ["a", 1, None], {}, {"": 0}, {"content": 1},
    {"type": "BPE"}, "<s>", "../x", "/etc/hosts", "F64", "default", "llama", "gemma2", [1.5, 2],
)  # fmt: skip
GGUF_VALUES: tuple[Any, ...] = (
    True, False, -1, -5, -(1 << 63), 0.0, -0.5, 1e-30, 1e308, float("inf"), float("nan"), "", "a",
    "\n\x07", "x" * 3000, [], [0], [-1, 2], ["a"], ["", ""], [0.5] * 5, [True], "gpt2", "llama",
)  # fmt: skip


# --- bytes --------------------------------------------------------------------------------------


def of_bytes(random: Random, data: bytes) -> bytes:
    """One to four of: flipped bits, a run set to one byte, a cut, an insertion, a repetition."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 4))):
        if not out:
            break
        # Half of the damage goes to the first kilobyte, where headers lie.
        most = len(out) if random.random() < 0.5 else min(len(out), 1024)
        at = random.randrange(most)
        length = random.choice((1, 1, 2, 4, 8, 64))
        match random.randrange(6):
            case 0 | 1:
                out[at] ^= 1 << random.randrange(8)
            case 2:
                out[at : at + length] = bytes([random.choice((0, 255, 127, 34, 123))]) * length
            case 3:
                del out[at : at + length if random.random() < 0.5 else None]
            case 4:
                out[at:at] = random.randbytes(length)
            case 5:
                out[at:at] = out[at : at + length * 4]
    return bytes(out)


def of_numbers(random: Random, data: bytes, spots: list[tuple[int, str]]) -> bytes:
    """One to three of a header's numbers become hostile, or slightly wrong."""
    out = bytearray(data)
    for at, layout in random.choices(spots, k=random.choice((1, 1, 2, 3))):
        size = struct.calcsize(layout)
        (old,) = struct.unpack_from("<Q", out[at : at + size] + bytes(8))
        near = (old + 1, old - 1, old * 2, old ^ 1, len(data), len(data) - at, old + 32)
        value = random.choice((*NUMBERS, *near, random.getrandbits(8 * size)))
        out[at : at + size] = (value % (1 << 64)).to_bytes(8, "little")[:size]
    return bytes(out)


# --- what a GGUF says ---------------------------------------------------------------------------


def of_gguf(random: Random, parts: GgufParts) -> None:
    """One to three entries or tensors are changed, taken away, renamed or given twice."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if random.random() < 0.65:
            _entry(random, parts.metadata)
        else:
            _tensor(random, parts)


def _entry(random: Random, metadata: dict[str, Any]) -> None:
    key = random.choice(list(metadata))
    value = metadata[key]
    match random.randrange(6):
        case 0:
            del metadata[key]
        case 1 | 2:
            metadata[key] = random.choice((*GGUF_VALUES, *NUMBERS))
        case 3:
            metadata[random.choice(list(metadata))] = value
        case 4 if isinstance(value, list) and value:
            changed = list(value)
            changed[random.randrange(len(changed))] = random.choice(
                [item for item in (*GGUF_VALUES, *NUMBERS) if type(item) is type(value[0])]
                or [value[0]]
            )
            metadata[key] = changed
        case 5 if isinstance(value, list) and value:
            metadata[key] = random.choice((value[:-1], value + value[:1], value * 40, value[::-1]))
        case _:
            metadata["general.alignment"] = random.choice((*NUMBERS, "a", -1))


def _tensor(random: Random, parts: GgufParts) -> None:
    name = random.choice(list(parts.tensors))
    dims, kind, raw = parts.tensors.pop(name)
    match random.randrange(6):
        case 0:
            return
        case 1:
            dims = random.choice((dims[::-1], (*dims, 1), dims[:1], tuple(n * 2 for n in dims)))
        case 2:
            kind = random.choice((*range(40), 255))
        case 3:
            raw = random.choice((raw[:-1], raw * 2, b"", bytes([255]) * len(raw)))
        case 4:
            others = (f"{name}x", name.replace("0", "1"), "", "\n", "rope_freqs.weight")
            name = random.choice(others)
        case _:
            dims = tuple(random.choice(NUMBERS) for _ in dims)
    parts.tensors[name] = (dims, kind, raw)


# --- files of a folder --------------------------------------------------------------------------


def of_file(random: Random, name: str, data: bytes) -> bytes:
    """Damage a file of a model folder by what it is."""
    if random.random() < 0.25:
        return of_bytes(random, data)
    if name.endswith(".json"):
        return _written(random, of_json(random, json.loads(data)))
    if name.endswith(".safetensors"):
        return _table(random, data)
    return of_bytes(random, data)


def of_json(random: Random, value: Any) -> Any:
    """One to three nodes are replaced, taken away, moved or wrapped."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 2, 3))):
        holders = list(_holders(value))
        if not holders:
            return random.choice(VALUES)
        holder, key = random.choice(holders)
        match random.randrange(7):
            case 0:
                del holder[key]
            case 1 | 2 | 3:
                holder[key] = copy.deepcopy(random.choice((*VALUES, *NUMBERS)))
            case 4:
                other, other_key = random.choice(holders)
                holder[key] = copy.deepcopy(other[other_key])
            case 5:
                holder[key] = [copy.deepcopy(holder[key])]
            case 6 if isinstance(holder, dict):
                holder[random.choice((f"{key}x", "", "type", "__metadata__"))] = holder.pop(key)
    return value


def _holders(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in pairs:
            found.append((node, key))
            if isinstance(child, dict | list):
                waiting.append(child)
    return found


def _written(random: Random, value: Any) -> bytes:
    raw = dumped(value)
    match random.randrange(12):
        case 0:
            return b"\xef\xbb\xbf" + raw
        case 1:
            return raw.replace(b"1", b"1" * random.choice((20, 400, 5000)), 1)
        case 2:
            return raw.replace(b": ", b": " + b"[" * 30_000, 1)
        case 3:
            return b"{" + raw[1:-1] + b", " + raw[1:] if raw[:1] == b"{" else raw
        case 4:
            return raw.replace(b"0", random.choice((b"NaN", b"-Infinity", b"1e999", b"-0.0")), 1)
    return raw


def _table(random: Random, data: bytes) -> bytes:
    """The header of a safetensors file, as JSON; its length may lie."""
    (length,) = struct.unpack_from("<Q", data)
    table = of_json(random, json.loads(data[8 : 8 + length]))
    if random.random() < 0.2:
        raw = _written(random, table)
        return struct.pack("<Q", len(raw)) + raw + data[8 + length :]
    if random.random() < 0.1:
        return struct.pack("<Q", random.choice(NUMBERS)) + data[8:]
    return safetensors(table, data[8 + length :])
