"""Every storage of weights against a plain product, on sizes that fill no block."""

from __future__ import annotations

import pytest
import torch

from engine.model import linear
from engine.model.linear import (
    PackedLinear,
    PlainLinear,
    activation_dtype,
    can_run_packed,
    choose_storage,
    make_linear,
)

CPU = torch.device("cpu")
SIZES = [(1, 1), (3, 5), (17, 31), (64, 64), (131, 48), (96, 577), (1, 40), (40, 1)]


def storages():
    return ["fp32", "bf16", "bf16 packed"] if can_run_packed() else ["fp32", "bf16"]


@pytest.fixture(params=storages())
def storage(request):
    return request.param


@pytest.mark.parametrize("num_rows", [1, 2, 3, 31, 32, 33, 70])
@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_products(storage, rows, columns, num_rows, with_bias):
    torch.manual_seed(rows * columns + num_rows)
    dtype = activation_dtype(storage)
    weight, x = torch.randn(rows, columns), torch.randn(num_rows, columns).to(dtype)
    bias = torch.randn(rows) if with_bias else None
    y = make_linear(weight, bias, storage, CPU)(x)
    # What a storage holds, multiplied and summed in double.
    right = x.double() @ weight.to(dtype).double().T
    right += 0 if bias is None else bias.to(dtype).double()
    assert y.dtype == dtype
    assert y.shape == (num_rows, rows)
    length = columns**0.5 + 1  # typical size of a sum
    tolerance = 1e-6 * length if storage == "fp32" else 2**-8 * length
    torch.testing.assert_close(y.double(), right, rtol=2**-7, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_of_any_floating_type(storage, dtype):
    torch.manual_seed(0)
    weight = torch.randn(7, 33).to(dtype)
    product = make_linear(weight, None, storage, CPU)
    got = product(torch.eye(33).to(activation_dtype(storage)))
    # Times one: the weights themselves, as the storage rounds them.
    assert torch.equal(got.T, weight.to(activation_dtype(storage)))


def test_weight_that_is_a_view(storage):
    """Rows of a larger matrix, and a transposed one: not contiguous."""
    torch.manual_seed(0)
    whole = torch.randn(40, 20)
    x = torch.randn(5, 13).to(activation_dtype(storage))
    view = whole.T[:13, 3:30].T  # [27, 13]
    assert not view.is_contiguous()
    got = make_linear(view, None, storage, CPU)(x)
    expected = make_linear(view.clone().contiguous(), None, storage, CPU)(x)
    torch.testing.assert_close(got, expected)


def test_no_rows(storage):
    product = make_linear(torch.randn(6, 4), torch.randn(6), storage, CPU)
    assert product(torch.empty(0, 4, dtype=activation_dtype(storage))).shape == (0, 6)


def test_num_bytes(storage):
    width = 4 if storage == "fp32" else 2
    weight, bias = torch.randn(128, 64), torch.randn(128)
    assert make_linear(weight, None, storage, CPU).num_bytes == 128 * 64 * width
    assert make_linear(weight, bias, storage, CPU).num_bytes == (128 * 64 + 128) * width


def test_fp32_shares_the_memory_it_is_given():
    """The tied head is the embedding itself, not a copy."""
    weight = torch.randn(5, 3)
    product = make_linear(weight, None, "fp32", CPU)
    assert isinstance(product, PlainLinear)
    assert product.weight.data_ptr() == weight.data_ptr()


def test_exact_mode_is_fp32_everywhere():
    assert choose_storage(CPU, "exact") == "fp32"
    assert choose_storage(torch.device("cuda"), "exact") == "fp32"
    assert choose_storage(torch.device("cuda"), "fast") == "bf16"


def test_fast_mode_follows_what_the_machine_can(monkeypatch):
    can = {"bf16": True, "packed": True}
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: can["bf16"])
    monkeypatch.setattr(linear, "can_run_packed", lambda: can["packed"])
    assert choose_storage(CPU, "fast") == "bf16 packed"
    can["packed"] = False
    assert choose_storage(CPU, "fast") == "bf16"
    can["bf16"] = False
    assert choose_storage(CPU, "fast") == "fp32"


@pytest.mark.parametrize("failure", [RuntimeError, AttributeError, NotImplementedError, "wrong"])
def test_a_packed_product_that_fails_is_not_used(monkeypatch, failure):
    """An operator that torch does not promise: missing, refusing or wrong, it is left alone."""

    def broken(self, x):
        if failure == "wrong":
            return torch.zeros(x.shape[0], 96, dtype=torch.bfloat16)
        raise failure("not here")

    can_run_packed.cache_clear()
    monkeypatch.setattr(PackedLinear, "__call__", broken)
    try:
        assert can_run_packed() is False
    finally:
        can_run_packed.cache_clear()


def test_products_come_in_few_sizes_and_are_little_larger_than_asked():
    """What oneDNN keeps for each number of rows stays bounded: tens of them, not hundreds."""
    sizes = {linear.padded_rows(n) for n in range(1, 1025)}
    assert len(sizes) < 40
    assert all(n <= linear.padded_rows(n) <= 1.25 * n for n in range(1, 5000))
    assert all(linear.padded_rows(n) == n for n in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32))
