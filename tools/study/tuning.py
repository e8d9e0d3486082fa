"""The best learning rate of an optimizer, and how many times the bytes it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import click

MOST_EXTENSIONS = 6


def tune(rates: Sequence[float], bits_of: Callable[[Sequence[float]], Sequence[float]]) -> dict[float, float]:
    """Bits per byte by learning rate, extended by factors of 2 on the best one's side until it is not at an end.

    Raises: click.ClickException when it still is after MOST_EXTENSIONS.
    """
    found = dict(zip(rates, bits_of(rates), strict=True))
    for _ in range(MOST_EXTENSIONS + 1):
        best = best_rate(found)
        if min(found) < best < max(found):
            return dict(sorted(found.items()))
        added = best / 2 if best == min(found) else best * 2
        (found[added],) = bits_of([added])
    raise click.ClickException(f"no best learning rate between {min(found):g} and {max(found):g}")


def best_rate(bits: Mapping[float, float]) -> float:
    """The learning rate with the least bits per byte, the lower of equals."""
    return min(sorted(bits), key=lambda rate: bits[rate])


def token_advantage(steps: int, target: float, curve: Mapping[int, float]) -> str:
    """How many times the bytes of `steps` the curve needs to come down to `target` bits per byte, in words.

    curve: bits by steps. Linear in log(steps) between neighbours; beyond the curve "more than" or "less than" its end.
    """
    points = sorted((count, bits) for count, bits in curve.items() if math.isfinite(bits))
    if not points:
        return "unknown"
    reached = next((index for index, (_, bits) in enumerate(points) if bits <= target), None)
    if reached is None:
        return f"more than {points[-1][0] / steps:.3g}"
    if reached == 0:
        count, bits = points[0]
        return f"{count / steps:.2f}" if bits == target else f"less than {count / steps:.3g}"
    (low, above), (high, below) = points[reached - 1], points[reached]
    share = (above - target) / (above - below)
    return f"{math.exp(math.log(low) + share * math.log(high / low)) / steps:.2f}"
