"""Durations and sizes as people read them."""

from __future__ import annotations


def as_duration(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any: 0:42, 1:02:03."""
    whole = max(0, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def as_size(amount: float) -> str:
    """Bytes with a decimal prefix: 512 MB, 4.2 GB."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= factor:
            scaled = amount / factor
            return f"{scaled:.1f} {prefix}B" if scaled < 10 else f"{scaled:.0f} {prefix}B"
    return f"{amount:.0f} B"
