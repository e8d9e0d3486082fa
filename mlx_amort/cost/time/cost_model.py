"""The cost model: step_s = c0[optimizer] + c1 * bytes_per_step, and what is doubtful about it."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.time.diagnostics import CONFIDENCE, THRESHOLDS
from mlx_amort.cost.time.extra_terms import TermTest
from mlx_amort.cost.time.selection import Setting
from mlx_amort.errors import UserError, did_you_mean


@dataclass(frozen=True)
class FittedPoint:
    """A fitted measurement; errors are predicted / measured - 1, left out None where the model needs the point."""

    measurement: Measurement
    predicted_s: float
    relative_error: float
    leave_one_out_error: float | None
    is_outlier: bool = False

    @property
    def measured_s(self) -> float:
        assert self.measurement.step_s is not None
        return self.measurement.step_s

    def to_record(self) -> dict[str, Any]:
        """The point as JSON."""
        return {
            **_record_of(self.measurement.configuration),
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "relative_error": self.relative_error,
            "leave_one_out_error": self.leave_one_out_error,
            "is_outlier": self.is_outlier,
        }


@dataclass(frozen=True)
class CostModel:
    """A fitted cost model with its doubts.

    Units: c0_s and third_cost_s in seconds, c1_s_per_byte in seconds per byte. `third_unit` is "chunk" or
    "window" where the data ask for a cost of it, else None and its cost 0. holdout_error: median error of
    configurations that were predicted first, None without any. `form` is "affine", "affine with a cost per
    chunk" (or window), or "rejected" where the model must not be used to forecast; is_doubtful where it may,
    within `uncertainty`. disturbance: see cost/time/spread.py. outliers: what was kept out, for it alone would
    have rejected the model.
    """

    c0_s: dict[str, float]
    c1_s_per_byte: float
    third_unit: str | None
    third_cost_s: float
    c0_interval_s: dict[str, tuple[float, float]]
    c1_interval_s_per_byte: tuple[float, float]
    third_cost_interval_s: tuple[float, float] | None
    points: tuple[FittedPoint, ...]
    cross_validated_error: float
    terms: tuple[TermTest, ...]
    warnings: tuple[str, ...]
    setting: Setting
    kept_out: tuple[tuple[Measurement, str], ...]
    slower_visits: tuple[tuple[Measurement, float], ...]
    drift: float | None
    disturbance: float
    holdout_error: float | None
    form: str
    is_doubtful: bool
    verdict: str
    outliers: tuple[Configuration, ...] = ()

    @property
    def is_rejected(self) -> bool:
        return self.form == "rejected"

    @property
    def describe_visits(self) -> str:
        """How much slower the visits were that were not fitted; empty without repeats."""
        if not self.slower_visits:
            return ""
        excesses = [excess for _, excess in self.slower_visits]
        visits = (
            "of a configuration measured several times the fastest visit is fitted: "
            f"the other {len(excesses)} visits were "
            f"{min(excesses):.1%} to {max(excesses):.1%} slower, median {statistics.median(excesses):.1%}"
        )
        if self.is_rejected:
            return visits
        more = f"{self.disturbance - 1:.1%} longer than the cost model says, the mean over all visits"
        return f"{visits}; a run is expected to take {more}"

    @property
    def ceiling_bytes_per_s(self) -> float | None:
        """1 / c1, or None where c1 is not positive or the model is rejected."""
        return 1.0 / self.c1_s_per_byte if self.c1_s_per_byte > 0 and not self.is_rejected else None

    @property
    def max_relative_error(self) -> float:
        return max(abs(point.relative_error) for point in self.points)

    @property
    def leave_one_out_error(self) -> float:
        """The largest error of a point predicted from the other configurations alone."""
        return max(abs(p.leave_one_out_error) for p in self.points if p.leave_one_out_error is not None)

    @property
    def uncertainty(self) -> float:
        """How far a forecast may be off: what the model missed of points that it had not seen."""
        return max(self.leave_one_out_error, self.holdout_error or 0.0)

    @property
    def suspects(self) -> tuple[Configuration, ...]:
        """What to visit again before the model is judged: the outliers, in either direction.

        Where none stands out though they do not agree, those that the others predict worst.
        """
        outliers = [point.measurement.configuration for point in self.points if point.is_outlier]
        if self.outliers or outliers or self.cross_validated_error <= THRESHOLDS.doubtful_error:
            return (*self.outliers, *outliers)
        ranked = sorted(self.points, key=lambda point: -abs(point.leave_one_out_error or 0.0))
        return tuple(point.measurement.configuration for point in ranked[: THRESHOLDS.most_suspects])

    def predicts(self, configuration: Configuration) -> bool:
        """Whether the model may be asked about a configuration: it is not rejected, and was fitted to such ones."""
        return not self.is_rejected and self.setting.differs(configuration) is None

    def predict_s(self, configuration: Configuration) -> float:
        """Step time c0 + n · third_cost + c1 · T in seconds; n is A·K of a chunk's cost, A·⌈K/W⌉ of a window's.

        Raises: UserError for an optimizer that was not fitted.
        """
        optimizer = configuration.optimizer
        if optimizer not in self.c0_s:
            raise UserError(
                f"optimizer {optimizer!r}", "was not measured", did_you_mean(optimizer, self.c0_s)
            )
        counts = {"chunk": configuration.chunks_per_step, "window": configuration.windows_per_step, None: 0}
        own_s = self.c0_s[optimizer] + counts[self.third_unit] * self.third_cost_s
        return own_s + self.c1_s_per_byte * configuration.bytes_per_step

    def to_record(self) -> dict[str, Any]:
        """The cost model as JSON: the `cost_model` of profile.json and what `mlx-amort fit --json` prints."""
        third = None
        if self.third_cost_interval_s is not None:
            interval_s = list(self.third_cost_interval_s)
            third = {"unit": self.third_unit, "s": self.third_cost_s, "interval_s": interval_s}
        return {
            "c0_s": self.c0_s,
            "c1_us_per_byte": self.c1_s_per_byte * 1e6,
            "third_term": third,
            "ceiling_bytes_per_s": self.ceiling_bytes_per_s,
            "max_relative_error": self.max_relative_error,
            "leave_one_out_error": self.leave_one_out_error,
            "cross_validated_error": self.cross_validated_error,
            "holdout_error": self.holdout_error,
            "confidence": CONFIDENCE,
            "intervals": {
                "c0_s": {name: list(interval) for name, interval in self.c0_interval_s.items()},
                "c1_us_per_byte": [bound * 1e6 for bound in self.c1_interval_s_per_byte],
            },
            "form": self.form,
            "is_doubtful": self.is_doubtful,
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "terms": [term.to_record() for term in self.terms],
            "setting": asdict(self.setting),
            "points": [point.to_record() for point in self.points],
            "drift": self.drift,
            "disturbance": self.disturbance,
            "slower_visits": [
                {**_record_of(visit.configuration), "measured_s": visit.step_s, "slower_by": excess}
                for visit, excess in self.slower_visits
            ],
            "kept_out": [
                {**_record_of(other.configuration), "reason": reason} for other, reason in self.kept_out
            ],
        }


def _record_of(configuration: Configuration) -> dict[str, Any]:
    counts = {
        "chunks_per_step": configuration.chunks_per_step,
        "windows_per_step": configuration.windows_per_step,
    }
    return configuration.to_record() | counts
