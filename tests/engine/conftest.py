"""Fixtures of the engine tests: GGUF files made byte by byte, and what a good sentence is."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

Tensor = np.ndarray | tuple[tuple[int, ...], int, bytes]  # or (dims, type number, bytes)


class GgufMaker:
    """Lays out GGUF files by the format's description, with nothing of ours or of the gguf package.

    Every part is open to a test that wants it to lie.
    """

    U8, I8, U16, I16, U32, I32, F32, BOOL, TEXT, ARRAY, U64, I64, F64 = range(13)

    @staticmethod
    def start(num_tensors: int, num_keys: int, version: int = 3) -> bytes:
        return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)

    @staticmethod
    def text(text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(raw)) + raw

    def array(self, items: list[Any]) -> bytes:
        parts = [self.value(item) for item in items]
        kind = parts[0][:4] if parts else struct.pack("<I", self.U32)
        return kind + struct.pack("<Q", len(items)) + b"".join(part[4:] for part in parts)

    def value(self, value: Any) -> bytes:
        """Type number and content."""
        if isinstance(value, bool):
            return struct.pack("<I?", self.BOOL, value)
        if isinstance(value, int):
            small = 0 <= value < 1 << 32
            return struct.pack("<II" if small else "<Iq", self.U32 if small else self.I64, value)
        if isinstance(value, float):
            return struct.pack("<If", self.F32, value)
        if isinstance(value, str):
            return struct.pack("<I", self.TEXT) + self.text(value)
        return struct.pack("<I", self.ARRAY) + self.array(value)

    def entry(self, key: str | bytes, value: Any) -> bytes:
        return self.text(key) + self.value(value)

    def tensor(self, name: str | bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
        """A line of the tensor table; dims in the file's order, columns first."""
        table = struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        return self.text(name) + table

    def file(self, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
        alignment = metadata.get("general.alignment", 32)
        table, data = b"", b""
        for name, tensor in tensors.items():
            if isinstance(tensor, np.ndarray):
                tensor = (tensor.shape[::-1], 0, tensor.astype("<f4").tobytes())
            dims, kind, raw = tensor
            table += self.tensor(name, dims, kind, len(data))
            data += raw + bytes(-len(raw) % alignment)
        head = self.start(len(tensors), len(metadata))
        head += b"".join(self.entry(*pair) for pair in metadata.items()) + table
        return head + bytes(-len(head) % alignment) + data

    @staticmethod
    def tiny() -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata and tensors of a whole little model: one layer, 2 heads of 4, 5 words."""
        metadata = {
            "general.architecture": "llama",
            "llama.block_count": 1,
            "llama.context_length": 64,
            "llama.embedding_length": 8,
            "llama.feed_forward_length": 6,
            "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 1,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 100.0,
            "tokenizer.ggml.tokens": ["a", "b", "", "é", "<s>"],
        }
        shapes = {
            "token_embd.weight": (5, 8),
            "output_norm.weight": (8,),
            "blk.0.attn_norm.weight": (8,),
            "blk.0.attn_q.weight": (8, 8),
            "blk.0.attn_k.weight": (4, 8),
            "blk.0.attn_v.weight": (4, 8),
            "blk.0.attn_output.weight": (8, 8),
            "blk.0.ffn_norm.weight": (8,),
            "blk.0.ffn_gate.weight": (6, 8),
            "blk.0.ffn_up.weight": (6, 8),
            "blk.0.ffn_down.weight": (8, 6),
        }
        random = np.random.default_rng(4)
        tensors = {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}
        return metadata, tensors


@pytest.fixture(scope="session")
def gguf_maker() -> GgufMaker:
    return GgufMaker()


@pytest.fixture(scope="session")
def check_sentence() -> Callable[..., None]:
    """check_sentence(error, "name", ...): one line that names the thing and the way out."""

    def check(error: BaseException, *names: str) -> None:
        text = str(error)
        assert all(name in text for name in names), text
        assert text.isprintable(), text
        assert 20 < len(text) < 400, text
        ways = ("fetch", "choose", "take ", "try again", "check", "would not run as it was made")
        assert any(way in text for way in (*ways, "not of the same model")), text

    return check


@pytest.fixture(scope="session")
def cheap() -> Callable[..., Any]:
    """`with cheap():` what happens inside takes under a second of CPU time and under 8 MiB."""

    @contextmanager
    def watch(most_bytes: int = 8 << 20) -> Iterator[None]:
        tracemalloc.start()
        started = time.process_time()
        try:
            yield
        finally:
            seconds = time.process_time() - started
            peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert seconds < 1, f"took {seconds:.2f} s"
        assert peak_bytes < most_bytes, f"took {peak_bytes:,} bytes"

    return watch
