"""What a comparison must not be read without: other corpora, other amounts of text, one seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mlx_amort.amounts import percent
from mlx_amort.compare.comparison_points import ComparisonPoint
from mlx_amort.compare.curves import Curve
from mlx_amort.config.reading import SECTIONS, differing_keys
from mlx_amort.config.values import Config, RunConfig

SMALL_DIFFERENCE = 0.05
"""Two seeds of one configuration may differ by as much."""
BOOKKEEPING = (
    "eval_every",
    "save_every",
    "keep_checkpoints",
    "sample_bytes",
    "sample_prompt",
    "sample_temperature",
    "memory_limit_bytes",
)
"""Keys of `run` that decide no figure."""


def differing(first: Curve, other: Curve) -> list[str]:
    """The keys in which two configurations differ, with both values."""
    if first.config is None or other.config is None:
        return []
    found = [str(change) for change in differing_keys(first.config, other.config, SECTIONS)]
    if first.config.preset != other.config.preset:
        found.insert(0, f"preset: {first.config.preset} and {other.config.preset}")
    return found


def other_corpora(first: Curve, other: Curve) -> list[str]:
    """What makes the figures of two runs those of different corpora."""
    if first.config is None or other.config is None:
        return []
    warnings, names = [], f"{first.name} and {other.name}"
    if first.fingerprints != other.fingerprints:
        warnings.append(f"{names} were validated on other corpora: their figures do not compare")
    one, two = first.config.data, other.config.data
    if (one.validation is None) != (two.validation is None):
        warnings.append(
            f"only one of {names} has a validation corpus of its own: they are of different texts"
        )
    elif one.validation is None and one.validation_fraction != two.validation_fraction:
        warnings.append(
            f"{names} hold out {one.validation_fraction:g} and {two.validation_fraction:g} of their corpora: "
            "their figures are of different texts"
        )
    elif one.validation is None and one.validation_split != two.validation_split:
        warnings.append(
            f"{names} hold out {one.validation_split} and {two.validation_split} of their corpora: "
            "their figures may be of different texts"
        )
    return warnings


def other_amounts(curves: Sequence[Curve]) -> list[str]:
    """What makes the figures those of different amounts of text."""
    warnings = []
    unknown = [curve.name for curve in curves if curve.text is None]
    if unknown:
        warnings.append(f"{', '.join(unknown)}: a CSV does not tell what it was validated on")
    known = [curve for curve in curves if curve.text is not None]
    for other in known[1:]:
        first = known[0]
        assert first.text is not None and other.text is not None
        if not other_corpora(first, other) and first.text != other.text:
            warnings.append(
                f"{first.name} and {other.name} were validated over {first.text[0]:,} and {other.text[0]:,} "
                f"{first.unit}s: their figures are of different amounts of text"
            )
    return warnings


def rests_on_seeds(curves: Sequence[Curve], points: Sequence[ComparisonPoint]) -> list[str]:
    """Small differences at the last point of comparison that one seed cannot show."""
    warnings = []
    for index, other in enumerate(curves[1:], start=1):
        told = [(point.at, found) for point in points if (found := point.relative[index]) is not None]
        if not told:
            continue
        _, difference = max(told)
        names = f"{other.name} against {curves[0].name}"
        if other.config is not None and _without_seed(other) == _without_seed(curves[0]):
            seeds = {curve.config.run.seed for curve in (curves[0], other) if curve.config}
            cause = "the seed" if len(seeds) > 1 else "repeating the run"
            warnings.append(
                f"{names}: the configurations are equal, so the difference of {percent(difference)} comes from {cause}"
            )
        elif abs(difference) < SMALL_DIFFERENCE and 1 in (
            _seed_count(curves, run) for run in (curves[0], other)
        ):
            warnings.append(
                f"{names}: a difference of {percent(difference)} rests on one seed; below "
                f"{SMALL_DIFFERENCE:.0%} compare several seeds of each configuration"
            )
    return warnings


def few_points(curves: Sequence[Curve], points: Sequence[ComparisonPoint]) -> list[str]:
    """Why runs can be compared at one point of their validations or at none, and the flag that would have helped."""
    if len(points) > 1:
        return []
    where = "at one point only" if points else "nowhere"
    warnings = []
    for curve in curves:
        if curve.config is not None and len(curve.bytes) == 1:
            why = f"{curve.name} was validated once, so validations meet {where}"
            every = curve.config.run.eval_every
            fewer = "" if every is None else f", fewer than {every:,},"
            warnings.append(f"{why}; --eval-every STEPS{fewer} validates on the way")
    if warnings or any(curve.config is None for curve in curves):
        return warnings
    ranges = " and ".join(f"{curve.bytes[0]:,.0f} to {curve.bytes[-1]:,.0f}" for curve in curves)
    return [
        f"validations were made at {ranges} {curves[0].unit}s, so they meet {where}; the same --eval-every and more "
        "steps in each run make them meet"
    ]


def _without_seed(curve: Curve) -> Config | None:
    """A run's configuration without its seed, and without what decides no figure."""
    if curve.config is None:
        return None
    defaults: dict[str, Any] = {key: getattr(RunConfig(), key) for key in BOOKKEEPING}
    return dataclasses.replace(curve.config, run=dataclasses.replace(curve.config.run, seed=0, **defaults))


def _seed_count(curves: Sequence[Curve], run: Curve) -> int:
    """How many seeds of this run's configuration are compared; a CSV counts as one."""
    alike = [curve.config for curve in curves if _without_seed(curve) == _without_seed(run)]
    return max(1, len({config.run.seed for config in alike if config is not None}))
