"""Products with 4- and 8-bit weights against the same weights as floats."""

from __future__ import annotations

import pytest
import torch

bytes_of = pytest.importorskip("kernels.cpu.bytes")
products = pytest.importorskip("kernels.cpu.products")

SHAPES = [(1, 32), (31, 64), (50, 96), (96, 576), (577, 160)]


def matrix(rows, columns, bits, seed=0):
    """(packed, the same as floats)"""
    noise = torch.Generator().manual_seed(seed + bits)
    groups = columns // 32
    codes = torch.randint(0, 256, (rows, groups, 4 * bits), generator=noise).to(torch.uint8)
    codes[0] = 255  # full scale: what saturates shows here
    scale = (torch.rand(rows, groups, generator=noise) / 50).half()
    least = (torch.rand(rows, groups, generator=noise) - 0.5).half()
    values = torch.cat((codes & 15, codes >> 4), 2) if bits == 4 else codes
    floats = values.float() * scale.float().unsqueeze(-1) + least.float().unsqueeze(-1)
    return products.pack(codes, scale, least, bits), floats.flatten(1)


def rounded(x):
    """Activations as the kernel sees them: 127 steps each way for every 16."""
    groups = x.float().unflatten(1, (-1, 16))
    step = groups.abs().amax(-1, keepdim=True) * torch.tensor(1 / 127)
    factor = 1 / step.clamp(min=1e-30)  # as the kernel divides: many values lie between two steps
    return ((groups * factor).round() * step).flatten(1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_product_and_look_up(rows, columns, bits):
    packed, floats = matrix(rows, columns, bits)
    every = torch.arange(rows)
    torch.testing.assert_close(products.unpack_rows(packed, every, bits), floats)
    bias = torch.linspace(-1, 1, rows)
    for num_rows in (1, 2, 3, 5, 6, 7, 13, 40):
        noise = torch.Generator().manual_seed(num_rows)
        x = torch.randn(num_rows, columns, generator=noise)
        x[0] = 1.0
        right = rounded(x) @ floats.T
        got = products.multiply(x, packed, bits, rows, None)
        limit = 1e-5 * float(right.abs().max())
        torch.testing.assert_close(got, right, rtol=1e-5, atol=limit)
        got = products.multiply(x.bfloat16(), packed, bits, rows, bias)
        assert got.dtype == torch.bfloat16
        right = rounded(x.bfloat16()) @ floats.T + bias
        torch.testing.assert_close(got.float(), right, rtol=2**-8, atol=limit)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_sixteen_bits_of_an_activation(rows, columns, bits):
    """Nothing that float32 would show is lost: half a step of 254 * 127 in each direction."""
    packed, floats = matrix(rows, columns, bits)
    for num_rows in (1, 2, 3, 4, 7, 40):
        x = torch.randn(num_rows, columns, generator=torch.Generator().manual_seed(num_rows))
        x[0] = 0.0
        exact = x @ floats.T
        fine = products.multiply(x, packed, bits, rows, None, fine=True)
        coarse = products.multiply(x, packed, bits, rows, None)
        steps = x.unflatten(1, (-1, 16)).abs().amax(-1, keepdim=True) / (127 * 254)
        most = (steps.expand(-1, -1, 16).flatten(1) / 2) @ floats.abs().T
        assert ((fine - exact).abs() <= 1.1 * most + 1e-5 * exact.abs().max()).all()
        assert (fine - exact).abs().max() < (coarse - exact).abs().max() / 20 or num_rows == 1
        assert (fine[0] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_does_not_hang_on_its_company(bits):
    packed, _ = matrix(64, 96, bits)
    x = torch.randn(23, 96, generator=torch.Generator().manual_seed(1))
    together = products.multiply(x, packed, bits, 64, None)
    for row in (0, 9, 22):
        alone = products.multiply(x[row : row + 1], packed, bits, 64, None)
        assert torch.equal(alone[0], together[row])


def test_rows_of_zeros_and_what_is_not_a_number():
    packed, _ = matrix(48, 64, 4)
    x = torch.ones(4, 64)
    x[1] = 0.0
    x[2, 5] = float("nan")
    x[3, 7] = float("inf")
    y = products.multiply(x, packed, 4, 48, None)
    assert y[0].isfinite().all()
    assert (y[1] == 0).all()
    assert not y[2].isfinite().any()
    assert not y[3].isfinite().any()


def test_strided_rows_and_no_rows():
    packed, _ = matrix(40, 64, 8)
    x = torch.randn(6, 128, generator=torch.Generator().manual_seed(1))
    wanted = products.multiply(x[:, :64].contiguous(), packed, 8, 40, None)
    assert torch.equal(products.multiply(x[:, :64], packed, 8, 40, None), wanted)
    assert products.multiply(x[:0, :64], packed, 8, 40, None).shape == (0, 40)


def test_a_wrong_width_is_refused():
    packed, _ = matrix(40, 64, 8)
    with pytest.raises(ValueError, match="groups"):
        products.multiply(torch.ones(1, 96), packed, 8, 40, None)
