"""The CPU kernels as they are compiled for machines without VNNI, bf16 products, AVX-512, AVX2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.bytes import way

HERE = Path(__file__).parent
TESTS = {
    "test_products.py": "96-576",
    "test_attention.py": "cpu-3-3-64-16-dtype1 or cpu-1-7-80-7-dtype1",
    "test_cache_ops.py": "cpu-dtype1-8-32",
}
AVX2 = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c"
AVX512 = "+avx512f,+avx512bw,+avx512vl,+avx512dq,+avx512cd"


def run(features: str, *command: str) -> str:
    env = dict(os.environ, NUMBA_CPU_FEATURES=features, NUMBA_CPU_NAME="x86-64")
    ran = subprocess.run(
        [sys.executable, *command], env=env, cwd=HERE.parents[1], capture_output=True, text=True
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    return ran.stdout


@pytest.mark.skipif(way() == "", reason="not an x86 machine with AVX2")
@pytest.mark.parametrize(
    ("features", "expected"),
    [(AVX2, "avx2"), (f"{AVX2},{AVX512}", "avx2"), ("+sse4.2,+popcnt", "")],
    ids=["AVX2", "AVX-512 without VNNI", "SSE4"],
)
def test_lesser_machines(features: str, expected: str) -> None:
    """The same tests, in a process of their own; nothing may call what nobody links."""
    said = run(features, "-c", "from kernels.cpu.bytes import way; print(way())")
    assert said.strip() == expected
    for file, chosen in TESTS.items():
        if expected or file != "test_products.py":  # without AVX2 weights are floats
            options = ("-q", "-p", "no:cacheprovider", "-x")
            said = run(features, "-m", "pytest", str(HERE / file), "-k", chosen, *options)
            assert " passed" in said
