"""Codes of every kind against the `gguf` package's own dequantisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from engine.model.codes import Codes, has_codes, join, read_codes

ROWS, COLUMNS = 5, 512
# What may differ, of the largest weight: K-quants multiply scales, Q6_K joins two of them.
EXACT, NEAR = 0.0, 2**-11
KINDS = {
    "Q4_0": (4, EXACT),
    "Q4_1": (4, EXACT),
    "Q5_0": (8, EXACT),
    "Q5_1": (8, EXACT),
    "Q8_0": (8, EXACT),
    "IQ4_NL": (8, EXACT),
    "Q4_K": (4, NEAR),
    "Q5_K": (8, NEAR),
    "Q6_K": (8, 1 / 250),
}
SCALES_AT = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def stored(kind):
    """Bytes of a matrix with every code in it: [rows, bytes of a row]."""
    noise = np.random.default_rng(len(kind))
    per_block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = noise.integers(0, 256, (ROWS * COLUMNS // per_block, block_bytes), dtype=np.uint8)
    for at in SCALES_AT.get(kind, (0,)):
        scale = noise.uniform(0.001, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(ROWS, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_what_the_package_reads(kind):
    data = stored(kind)
    bits, limit = KINDS[kind]
    codes = read_codes(torch.from_numpy(data).flatten(), kind, (ROWS, COLUMNS))
    right = torch.from_numpy(dequantize(data, GGMLQuantizationType[kind]))
    assert codes is not None
    assert codes.bits == bits
    assert codes.floats().shape == right.shape
    assert float((codes.floats() - right).abs().max()) <= limit * float(right.abs().max())


def test_what_has_no_codes():
    assert has_codes("Q4_0", (8, 64))
    assert not has_codes("Q4_0", (64,))  # a vector
    assert not has_codes("Q4_0", (8, 48))  # no whole groups
    assert not has_codes("F16", (8, 64))
    assert not has_codes("Q2_K", (8, 256))


def test_scales_beyond_float16_are_left_to_floats():
    data = stored("Q4_K")
    data[:, :2] = np.array([60_000], np.float16).view(np.uint8)
    data[:, 4:16] = 63
    assert read_codes(torch.from_numpy(data).flatten(), "Q4_K", (ROWS, COLUMNS)) is None


def test_rows_in_another_order_and_joined():
    parts = [
        read_codes(torch.from_numpy(stored(kind)).flatten(), kind, (ROWS, COLUMNS))
        for kind in ("Q4_1", "Q8_0")
    ]
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(parts[0].rows(order).floats(), parts[0].floats()[order])
    both = join(parts)
    assert both.bits == 8
    assert torch.equal(both.floats(), torch.cat([part.floats() for part in parts]))
    assert join([parts[0], parts[0]]).bits == 4


def test_wide_codes_are_the_same_weights():
    codes = read_codes(torch.from_numpy(stored("Q4_1")).flatten(), "Q4_1", (ROWS, COLUMNS))
    assert isinstance(codes, Codes)
    assert torch.equal(codes.wide().floats(), codes.floats())
