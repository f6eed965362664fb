"""Formats numbers for people, the same in views, lines and summaries."""

from __future__ import annotations

__all__ = [
    "clock_text",
    "count_text",
    "latency_text",
    "megabytes_text",
    "plural",
    "seconds_text",
    "size_text",
]

# (lowest count, divisor, unit); with these limits three digits never round to "1000 k".
_STEPS = (
    (999.5e9, 1e12, "T"),
    (999.5e6, 1e9, "G"),
    (999.5e3, 1e6, "M"),
    (9_999.5, 1e3, "k"),
)


def count_text(n: float) -> str:
    """A count in at most seven characters: ``9,999``, ``12.3 k``, ``2.41 M``."""
    for least, divisor, unit in _STEPS:
        if n >= least:
            return f"{_three_digits(n / divisor)} {unit}"
    return f"{n:,.0f}"


def _three_digits(n: float) -> str:
    """Three significant digits without an exponent: ``2.41``, ``12.3``, ``241``."""
    if n < 9.995:
        return f"{n:.2f}"
    return f"{n:.1f}" if n < 99.95 else f"{n:.0f}"


def megabytes_text(n_bytes: float) -> str:
    """Bytes as MB (10**6) with one or two decimals, for columns headed MB/s."""
    megabytes = n_bytes / 1e6
    return f"{megabytes:.2f}" if megabytes < 9.995 else f"{megabytes:,.1f}"


def size_text(n_bytes: float) -> str:
    """Bytes with a decimal unit: ``512 B``, ``3.20 MB``, ``1.75 GB``."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if n_bytes >= size * 0.9995:
            return f"{_three_digits(n_bytes / size)} {unit}"
    return f"{n_bytes:.0f} B"


def seconds_text(seconds: float | None) -> str:
    """A lag: ``0 s``, ``0.4 s``, ``12 s``, ``3m 05s``, ``2h 10m``, ``4d 03h``; ``–`` if unknown."""
    if seconds is None:
        return "–"
    if seconds <= 0:
        return "0 s"
    if seconds < 9.95:
        return f"{max(seconds, 0.1):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h {whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3_600:02d}h"


def latency_text(ms: float | None) -> str:
    """A latency in ms without the unit: ``2.1``, ``38``, ``1,250``; ``–`` if unknown."""
    if ms is None:
        return "–"
    return f"{ms:.1f}" if ms < 9.95 else f"{ms:,.0f}"


def clock_text(seconds: float) -> str:
    """Run time as ``hh:mm:ss``, after a day or more with the days first."""
    whole = int(seconds)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3_600:02d}:{rest % 3_600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {text}" if days else text


def plural(n: int, noun: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
