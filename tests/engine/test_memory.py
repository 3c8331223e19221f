"""Free memory: container limits of both kinds, page cache, "max" (H20)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.memory import free_ram_bytes, num_cores, peak_rss_bytes

MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(tmp_path: Path, cgroup_line: str) -> tuple[Path, Path, Path]:
    write(tmp_path / "meminfo", f"MemTotal: 1 kB\nMemAvailable: {8000 * 1024} kB\n")
    write(tmp_path / "cgroup", cgroup_line)
    return tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "fs"


def level(folder: Path, limit: str, used: int, cache: int) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", str(used))
    write(folder / "memory.stat", f"anon 5\ninactive_file {cache}\n")


@linux
def test_without_a_limit_the_host_decides(tmp_path: Path) -> None:
    places = machine(tmp_path, "0::/app\n")
    level(tmp_path / "fs/app", "max", 100 * MIB, 0)
    assert free_ram_bytes(*places) == 8000 * MIB


@linux
def test_the_narrowest_level_counts_and_page_cache_is_free(tmp_path: Path) -> None:
    places = machine(tmp_path, "0::/pod/app\n")
    level(tmp_path / "fs/pod/app", str(4000 * MIB), 1000 * MIB, 0)
    level(tmp_path / "fs/pod", str(2000 * MIB), 1500 * MIB, 700 * MIB)
    assert free_ram_bytes(*places) == (2000 - 1500 + 700) * MIB


@linux
def test_version_one_limits_count_too(tmp_path: Path) -> None:
    places = machine(tmp_path, "5:cpu:/x\n4:memory:/box\n")
    folder = tmp_path / "fs/memory/box"
    write(folder / "memory.limit_in_bytes", str(1000 * MIB))
    write(folder / "memory.usage_in_bytes", str(400 * MIB))
    write(folder / "memory.stat", f"total_inactive_file {100 * MIB}\n")
    assert free_ram_bytes(*places) == 700 * MIB


def test_this_machine_has_memory_and_cores() -> None:
    assert free_ram_bytes() > 100 * MIB
    assert num_cores() >= 1
    assert peak_rss_bytes() > MIB
