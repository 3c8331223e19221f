"""How counts and memory are written: thousands with commas, MiB, and GiB from 1,024 MiB."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def count_text(number: int) -> str:
    """ "4,096"."""
    return f"{number:,}"


def memory_text(num_bytes: int) -> str:
    """ "85.5 MiB", "994 MiB", "3.64 GiB"; never smaller units than MiB."""
    if num_bytes == 0:
        return "0 MiB"
    if num_bytes >= 1024 * MIB:
        return f"{_three_digits(num_bytes / GIB)} GiB"
    return f"{_three_digits(num_bytes / MIB)} MiB"


def block_size_text(num_bytes: int) -> str:
    """The size of one block: "360 KiB", "2.25 MiB"."""
    if num_bytes >= MIB:
        return memory_text(num_bytes)
    return f"{num_bytes / KIB:,.4g} KiB"


def _three_digits(value: float) -> str:
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
