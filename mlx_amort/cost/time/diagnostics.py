"""What a fit amounts to, in one plain sentence: it holds, it is in doubt, or it is rejected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.extra_terms import TermTest
from mlx_amort.cost.time.regression import Solution
from mlx_amort.cost.time.spread import scatter_of

# A line that misses by this much (root mean square) explains too little to forecast with.
LARGEST_SCATTER = 0.10
# A point that the others predict this badly leaves the law in doubt, if its samples agree much better.
LARGEST_LEFT_OUT = 0.05
# No law holds that misses more than this of what it has not seen, whatever the noise.
LARGEST_UNSEEN = 0.10
# A law that misses more than this of what it has not seen predicts nothing.
LARGEST_HELD_OUT = 0.25
# Where one configuration differs by more than this from itself, the rows are of different machines.
LARGEST_DRIFT = 0.20
TOO_NOISY = "the samples are too noisy to judge: measure again on an idle machine"
# Of the fastest step, what all bytes of the largest one must cost to be told from rounding.
_NOTHING = 1e-6
_CLEARLY = 3.0


def doubt_of(
    fit: CostModel,
    rows: Sequence[Measurement],
    visits: Sequence[Measurement],
    solution: Solution,
    held_out_error: float | None,
) -> str | None:
    """The sentence that withholds "the law holds": what it has not seen is missed, or c0 is not positive.

    rows: those fitted; visits: all of them, repeats included.
    A left-out point counts from LARGEST_UNSEEN on, and from LARGEST_LEFT_OUT on where noise cannot do it.
    """
    scatter = scatter_of(visits)
    reach = _CLEARLY * (scatter or 0.0)
    reasons, are_noise = [], []
    # Noise of σ leaves residuals of σ·sqrt(1 - h) and left-out errors of σ / sqrt(1 - h) at leverage h: the
    # geometric mean of the two is σ, whatever rests on the point.
    left_out = np.abs(np.nan_to_num(solution.left_out_errors))
    noise = np.sqrt(left_out * np.abs(solution.relative_errors))
    is_missed = (left_out > LARGEST_UNSEEN) | ((left_out > LARGEST_LEFT_OUT) & (noise > reach))
    if is_missed.any():
        worst = int(np.argmax(np.where(is_missed, left_out, 0.0)))
        error = float(solution.left_out_errors[worst])
        samples = "" if scatter is None else f", where measuring again differs by {scatter:.1%}"
        side = "high" if error > 0 else "low"
        reasons.append(
            f"the other points predict {rows[worst].configuration.label} {abs(error):.1%} too {side}{samples}"
        )
        are_noise.append(bool(np.all(noise[is_missed] <= reach)))
    for name, c0_s in fit.c0_s.items():
        if c0_s <= 0:
            reasons.append(f"c0 of {name} is {c0_s:.3g} s, as if an update took no time")
            are_noise.append(reach > 0 and fit.c0_interval_s[name][1] > 0)
    if held_out_error is not None and held_out_error > LARGEST_UNSEEN:
        reasons.append(f"what was held out is missed by {held_out_error:.1%} (median)")
        are_noise.append(held_out_error <= reach)
    if not reasons:
        return None
    told = f"The law is in doubt: {'; '.join(reasons)}"
    if all(are_noise):
        return f"{told}; {TOO_NOISY}."
    return (
        f"{told}. Measure it again on an idle machine, with neighbours in "
        "B and K; if the error stays, a cost is missing from the law and only measured points can be trusted."
    )


def judge(
    fit: CostModel,
    solution: Solution,
    winner: TermTest | None,
    held_out_error: float | None,
) -> tuple[str, str]:
    """The law's name and one plain sentence about it."""
    drift = fit.drift or 0.0
    if drift > LARGEST_DRIFT:
        return "rejected", f"The law is rejected: {describe_drift(drift)}."
    scatter = float(np.sqrt(np.mean(solution.relative_errors**2)))
    most_bytes = max(point.measurement.configuration.bytes_per_step for point in fit.points)
    if abs(fit.c1_s_per_byte) * most_bytes < _NOTHING * min(point.measured_s for point in fit.points):
        same = "step times do not depend on bytes; the measurements are spoiled"
        return "rejected", f"The law is rejected: {same}."
    if fit.c1_s_per_byte <= 0:
        return "rejected", (
            f"The law is rejected: c1 is {fit.c1_s_per_byte * 1e6:.3g} µs a byte, "
            "as if more bytes took less time; the measurements are spoiled."
        )
    if winner is not None:
        return "rejected", (
            f"The law is rejected: the data ask for {winner.phrase} (cross-validated error "
            f"{winner.error_without:.1%} without it, {winner.error_with:.1%} with it), "
            "so do not forecast with this line."
        )
    if scatter > LARGEST_SCATTER:
        return "rejected", (
            f"The law is rejected: the line misses the points by {scatter:.0%} (root mean square); "
            "measure again on an idle machine, and if it stays so the cost is not affine."
        )
    if held_out_error is not None and held_out_error > LARGEST_HELD_OUT:
        return "rejected", (
            f"The law is rejected: what was held out is missed by {held_out_error:.0%} (median); "
            "measure again on an idle machine, and if it stays so the cost is not affine."
        )
    largest = float(np.max(np.abs(solution.relative_errors)))
    left_out = float(np.nanmax(np.abs(solution.left_out_errors)))
    # A point alone with its optimizer lies on the line by construction and proves nothing.
    count = int(np.sum(~np.isnan(solution.left_out_errors)))
    errors = (
        f"every one of {count} points lies within {largest:.1%} of it, "
        f"within {left_out:.1%} when left out of the fit"
    )
    if unit := fit.third_unit:
        return f"affine with a cost per {unit}", (
            f"The law holds with a third term, {fit.third_cost_s * 1e3:.3g} ms a {unit}, "
            f"that the data ask for: {errors}."
        )
    return "affine", f"The affine law holds: {errors}, and no further term is asked for."


def describe_drift(drift: float) -> str:
    """That the machine did not stay one machine while it was measured."""
    return f"the machine changed by {100 * drift:.0f} % during the sweep: nothing can be fitted"
