"""When a cost model holds, is in doubt or is rejected: every threshold in one table, and the reasons in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONFIDENCE = 0.95
"""The share of fits whose interval holds the true coefficient."""

SUSPECT_ROUNDS = 2
"""How often a sweep visits its suspects again before it is judged: with three visits of one an outlier shows."""


@dataclass(frozen=True)
class Thresholds:
    """What the judgement rests on; errors, gaps and shares are relative.

    Where a reason names no other source, `python -m tools.simulate_sweeps` shows what the rule buys.
    """

    # Bytes per step must differ by this factor, or c0 and c1 cannot be distinguished.
    smallest_range: float = 1.25
    # Of the fastest step, what all bytes of the largest one must cost to be more than rounding.
    smallest_share_of_bytes: float = 1e-6
    # Cross-validated error from which the model is in doubt: half of the 10 % that a forecast may be off.
    doubtful_error: float = 0.05
    # Cross-validated error from which it is rejected; more wrong models are caught than by any residual.
    rejected_error: float = 0.15
    # Median error of predictions made before measuring; two or three of them spread more than all points.
    doubtful_holdout_error: float = 0.10
    rejected_holdout_error: float = 0.25
    # Median of last visit over first from which the machine was not the same throughout: in doubt, for a
    # changed machine that matters spoils the cross-validated error too.
    doubtful_drift: float = 0.20
    # A further term must leave less than this share of the cross-validated error, and be seen by chance less
    # than once in a hundred fits. Noise meets either alone: the first with four points, the second with five terms.
    term_error_share: float = 0.5
    term_chance: float = 0.01
    # A cost per chunk or window is preferred over a term whose error is smaller by up to this factor: a scan of B and
    # one of K that cross explain both alike, and only the first is known to exist.
    known_cost_preference: float = 1.25
    # How well an update timed alone predicts c0: a step also pays dispatch, and a lone update finds cold caches.
    update_agreement: float = 0.20
    # Studentized residuals beyond chance (Bonferroni), and far enough off to matter.
    outlier_chance: float = 0.01
    outlier_error: float = 0.03
    # The fastest of three visits is the outlier where the next two agree this well and are this much slower.
    lone_visit_agreement: float = 0.10
    lone_visit_gap: float = 0.20
    # Where no outlier is named, this many of the worst predicted points are visited again.
    most_suspects: int = 3
    # Middle half of the samples over their median, above which a visit is made once more.
    largest_sample_spread: float = 0.20


THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class Evidence:
    """What a fit shows of itself.

    share_of_bytes: what all bytes of the largest step cost over the fastest step. worst: the point that the others
    predict worst, in words. further_term: the term asked for beside the model, in words, empty where there is none.
    """

    c0_s: Mapping[str, float]
    c1_s_per_byte: float
    share_of_bytes: float
    cross_validated_error: float
    worst: str
    further_term: str
    holdout_error: float | None
    drift: float | None


def reason_to_reject(evidence: Evidence, thresholds: Thresholds = THRESHOLDS) -> str:
    """Why nothing may be forecast with the model, and what to do; empty where something may."""
    if abs(evidence.share_of_bytes) < thresholds.smallest_share_of_bytes:
        return "step times do not depend on bytes; measure again"
    if evidence.c1_s_per_byte <= 0:
        return (
            f"c1 is {evidence.c1_s_per_byte * 1e6:.3g} µs per byte, as if more bytes took less time; "
            "measure again"
        )
    if evidence.further_term:
        return f"{evidence.further_term}; only measured configurations can be trusted"
    drift = evidence.drift or 0.0
    changed = f"{describe_drift(drift)}; " if drift > thresholds.doubtful_drift else ""
    again = "measure again on an idle machine; if it stays so, the cost is not affine"
    if evidence.cross_validated_error > thresholds.rejected_error:
        error = f"the cross-validated error is {evidence.cross_validated_error:.0%}"
        return f"{changed}{error}, and {evidence.worst}; {again}"
    if (evidence.holdout_error or 0.0) > thresholds.rejected_holdout_error:
        return (
            f"{changed}held-out configurations are missed by {evidence.holdout_error:.0%} (median); {again}"
        )
    return ""


def reasons_to_doubt(evidence: Evidence, thresholds: Thresholds = THRESHOLDS) -> list[str]:
    """Why a model that is not rejected does not hold either."""
    reasons = []
    if (evidence.drift or 0.0) > thresholds.doubtful_drift:
        reasons.append(describe_drift(evidence.drift or 0.0))
    if evidence.cross_validated_error > thresholds.doubtful_error:
        error = f"the cross-validated error is {evidence.cross_validated_error:.1%}"
        reasons.append(f"{error}, and {evidence.worst}")
    for name, c0_s in evidence.c0_s.items():
        if c0_s <= 0:
            reasons.append(f"c0 of {name} is {c0_s:.3g} s, as if an update took no time")
    if (evidence.holdout_error or 0.0) > thresholds.doubtful_holdout_error:
        reasons.append(f"held-out configurations are missed by {evidence.holdout_error:.1%} (median)")
    return reasons


def describe_drift(drift: float) -> str:
    """That the machine did not stay the same while it was measured."""
    return f"the machine changed by {drift:.0%} during the sweep"


def describe_outlier(label: str, error: float) -> str:
    """An outlier (error: predicted / measured - 1), and what may have made it."""
    excess = 1 / (1 + error) - 1
    if excess > 0:
        measured = f"{label} took {excess:.1%} longer than the cost model says"
        return f"{measured}: another program or throttling slowed it; measure it again"
    measured = f"{label} took {-excess:.1%} less than the cost model says"
    return (
        f"{measured}: nothing makes a step faster than the machine is, so the other measurements were slowed, "
        "or this one is wrong; measure it and its neighbours again"
    )
