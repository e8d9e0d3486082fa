"""Runs against the first of them, at equal bytes, equal seconds and equal quality."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_amort.compare.caveats import differing, few_points, other_amounts, other_corpora, rests_on_seeds
from mlx_amort.compare.comparison_points import (
    ComparisonPoint,
    Figures,
    compare_at,
    compare_training,
    shared_points,
)
from mlx_amort.compare.curves import Curve, over_one_text
from mlx_amort.errors import UserError


@dataclass(frozen=True)
class CommonQuality:
    """The best quality that every run reaches, and where each run first does.

    token_advantage: bytes of the first run / bytes of a run; above 1 the run needs fewer.
    """

    val_bits: float
    bytes: Figures
    seconds: Figures
    token_advantage: Figures


@dataclass(frozen=True)
class Comparison:
    """Runs against the first of them; differences: keys in which each other run's configuration differs.

    is_comparable: whether a run's figures are of the corpora of the first's; where not, there is no difference.
    corpus_warnings: what these differ in, the first of the warnings. training: training losses at equal bytes.
    """

    curves: tuple[Curve, ...]
    at_bytes: tuple[ComparisonPoint, ...]
    at_seconds: tuple[ComparisonPoint, ...]
    training: tuple[ComparisonPoint, ...]
    quality: CommonQuality
    differences: dict[str, list[str]]
    is_comparable: tuple[bool, ...]
    corpus_warnings: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ends(self) -> tuple[Curve, ...]:
        """What each run came to at its end, where any of them validated that over another text than before."""
        ends = tuple(curve.end for curve in self.curves)
        is_told = all(end.text == curve.text for end, curve in zip(ends, self.curves, strict=True))
        return () if is_told else ends

    def to_record(self) -> dict[str, Any]:
        """Plain values for JSON; None where a run has no figure."""
        runs = [
            {
                "name": curve.name,
                "unit": curve.unit,
                "parameters": None if curve.config is None else curve.config.model.parameters,
                "seed": None if curve.config is None else curve.config.run.seed,
                "bytes": list(curve.bytes),
                "val_bits": list(curve.val_bits),
                "seconds": None if curve.seconds is None else list(curve.seconds),
                "val_bytes": None if curve.text is None else curve.text[0],
                "whole": None if curve.text is None else curve.text[1],
                "end": {
                    "bytes": curve.end.bytes[-1],
                    "val_bits": curve.end.val_bits[-1],
                    "val_bytes": None if curve.end.text is None else curve.end.text[0],
                    "whole": None if curve.end.text is None else curve.end.text[1],
                },
            }
            for curve in self.curves
        ]
        return {
            "runs": runs,
            "at_bytes": _point_records(self.at_bytes, "bytes", "val_bits"),
            "at_seconds": _point_records(self.at_seconds, "seconds", "val_bits"),
            "training_at_bytes": _point_records(self.training, "bytes", "train_bits"),
            "last_common_quality": dataclasses.asdict(self.quality),
            "differences": self.differences,
            "warnings": list(self.warnings),
        }


def _point_records(points: Sequence[ComparisonPoint], by: str, bits: str) -> list[dict[str, Any]]:
    return [{by: point.at, bits: list(point.bits), "relative": list(point.relative)} for point in points]


def compare(curves: Sequence[Curve], at_bytes: Sequence[float] | None = None) -> Comparison:
    """Compare runs at the bytes named, else at a few of their validations within the range all share.

    Raises: UserError for less than two runs, and runs that count in different units.
    """
    if len(curves) < 2:
        raise UserError("compare", "needs at least two runs", "name the folders of two or more")
    units = {curve.unit: curve.name for curve in curves}
    if len(units) > 1:
        raise UserError(
            f"{units['byte']} and {units['id']}",
            "one counts bits per byte, the other bits per token id",
            "compare runs on corpora of one kind",
        )
    curves = over_one_text(curves)
    by_run = [other_corpora(curves[0], curve) for curve in curves]
    is_comparable = tuple(not warnings for warnings in by_run)
    corpus_warnings = tuple(warning for warnings in by_run for warning in warnings)
    points = list(at_bytes) if at_bytes is not None else shared_points(curves, "bytes")
    quality = max(min(curve.val_bits) for curve in curves)
    reached = tuple(curve.reaches("bytes", quality) for curve in curves)
    first = reached[0]
    compared = tuple(compare_at(curves, "bytes", at, is_comparable) for at in points)
    return Comparison(
        tuple(curves),
        compared,
        tuple(compare_at(curves, "seconds", at, is_comparable) for at in shared_points(curves, "seconds")),
        compare_training(curves, is_comparable),
        CommonQuality(
            quality,
            reached,
            tuple(curve.reaches("seconds", quality) for curve in curves),
            tuple(
                first / seen if first and seen and has_same else None
                for seen, has_same in zip(reached, is_comparable, strict=True)
            ),
        ),
        {curve.name: differing(curves[0], curve) for curve in curves[1:]},
        is_comparable,
        corpus_warnings,
        (
            *corpus_warnings,
            *other_amounts(curves),
            *(few_points(curves, compared) if at_bytes is None and all(is_comparable) else ()),
            *rests_on_seeds(curves, compared),
        ),
    )
