"""Which backend is chosen where."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kernels.dispatch import BackendError, choose

CPU = torch.device("cpu")


def test_cpu_backend_is_the_default_on_a_cpu():
    assert choose(CPU, torch.bfloat16).backend == "cpu"
    assert choose(CPU, torch.float32, "reference").backend == "reference"


def test_backends_live_side_by_side():
    first, second = choose(CPU, torch.float32, "reference"), choose(CPU, torch.float32, "cpu")
    assert first.paged_decode is not second.paged_decode
    assert choose(CPU, torch.float32, "reference") == first


def test_gpu_backend_is_refused_with_a_way_out():
    with pytest.raises(BackendError, match="reference"):
        choose(CPU, torch.float32, "gpu")


def test_unusual_dtype_takes_the_reference():
    assert choose(CPU, torch.float16).backend == "reference"
    with pytest.raises(BackendError, match="float16"):
        choose(CPU, torch.float16, "cpu")


def test_without_numba_the_reference_runs():
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from kernels.dispatch import choose, BackendError\n"
        "assert choose(torch.device('cpu'), torch.float32).backend == 'reference'\n"
        "try: choose(torch.device('cpu'), torch.float32, 'cpu')\n"
        "except BackendError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "numba" in done.stdout
