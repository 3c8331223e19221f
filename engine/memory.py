"""How much memory is free, and how many CPU cores there are: measured, container limits included.

Standard library; psutil only where the system has no /proc.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_ram_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    self_cgroup: Path = Path("/proc/self/cgroup"),
    root: Path = _CGROUP,
) -> int:
    """RAM that this process can still take: the host's MemAvailable, or less where a control group
    limits it (limit - usage + what the kernel can drop). v1 and v2; every level counts."""
    if sys.platform != "linux":
        import psutil

        return int(psutil.virtual_memory().available)
    available = _meminfo_bytes(meminfo, "MemAvailable")
    return max(0, min([available, *_cgroup_rooms(self_cgroup, root)]))


def _meminfo_bytes(path: Path, key: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {key}")


def _cgroup_rooms(self_cgroup: Path, root: Path) -> list[int]:
    """Room left at each level of this process's control groups."""
    rooms: list[int] = []
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return rooms
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "memory"
            names = (
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )
        else:
            continue
        folder = base / path.lstrip("/")
        for level in [folder, *folder.parents]:
            room = _room(level, *names)
            if room is not None:
                rooms.append(room)
            if level == base:
                break
    return rooms


def _room(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        stat = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    cache = next((int(row.split()[1]) for row in stat if row.split()[0] == cache_name), 0)
    return int(limit) - (usage - cache)


def num_cores() -> int:
    """Physical cores this process may use (its affinity mask counts)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    import psutil

    physical = psutil.cpu_count(logical=False)
    return max(1, min(allowed or 1, physical or allowed or 1))


def peak_rss_bytes() -> int:
    """Largest resident size this process has had."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
