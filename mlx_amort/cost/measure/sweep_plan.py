"""What a sweep is going to measure: its grid, its anchor, and its visits within the time budget."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_amort.amounts import format_duration
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure.grid import default_grid, doublings, product_grid
from mlx_amort.cost.measure.holdout import LEAST, VISITS
from mlx_amort.cost.measure.sweep_record import SweepRecord
from mlx_amort.cost.measure.time_budget import (
    ANCHOR_VISITS,
    cut_to_budget,
    mixed_order,
    push_to_limit,
    repeats_within,
    roofline_seconds,
    row_seconds,
)
from mlx_amort.cost.profile import Cut, SweepPlan
from mlx_amort.cost.time.diagnostics import SUSPECT_ROUNDS, THRESHOLDS

# Of the time left for the grid, at most so much is kept for what comes after it.
_MOST_RESERVED = 0.5


def configurations_around(record: SweepRecord, base: Configuration) -> list[Configuration]:
    """The grid around `base`, or every combination of the lists that were given."""
    request = record.request
    if request.is_grid:
        model = request.base.model
        return default_grid(base, request.lists, model.patch_stride if model.is_patched else 1)
    return product_grid(base, request.lists)


def middle_of(record: SweepRecord, configurations: Sequence[Configuration]) -> Configuration | None:
    """The one of middling size that is neither known to be too large nor over the budget by itself."""
    roofline = record.profile.roofline
    assert roofline is not None
    too_large = {each.configuration for each in record.profile.measurements if each.step_s is None}
    left = sorted(
        (each for each in configurations if each not in too_large),
        key=lambda each: (each.bytes_per_step, each.label),
    )
    budget_s = record.request.budget_s
    for each in reversed(left[: len(left) // 2 + 1]):
        guess_s = row_seconds(roofline_seconds(each, roofline.c1_us_per_byte), record.request.steps)
        if budget_s is None or guess_s <= budget_s:
            return each
    return left[0] if left else None


def plan_sweep(record: SweepRecord) -> None:
    """Fix what is measured, in which order, and what is left out; a resumed sweep keeps its plan."""
    profile = record.profile
    if profile.plan is not None:
        return
    assert profile.base is not None
    wanted = [each for each in configurations_around(record, profile.base) if profile.first_of(each) is None]
    left_s = record.left_s()
    if left_s is not None:
        # The anchor's repeats, suspects and the held-out configurations are as necessary as the grid; nor are
        # they more: without enough points there is no cost model to hold them against.
        again = ANCHOR_VISITS - 1 + SUSPECT_ROUNDS * THRESHOLDS.most_suspects
        reserved_s = again * record.seconds_of(record.anchor) + holdout_seconds(record)
        left_s -= min(reserved_s, _MOST_RESERVED * max(0.0, left_s))
    kept, cuts = cut_to_budget(wanted, record.seconds_of, left_s)
    pushed: list[Configuration] = []
    repeats: list[Configuration] = []
    if record.request.is_grid:
        pushed, beyond = _push(record, profile.base, kept, left_s)
        cuts += beyond
        if left_s is not None:
            left_s -= sum(record.seconds_of(each) for each in kept + pushed)
        repeats = repeats_within(kept + pushed, record.seconds_of, left_s)
    visits = mixed_order(kept + pushed, record.anchor, ascending=pushed, again=repeats)
    profile.plan = SweepPlan(visits, [], measured_before=len(profile.measurements))
    total_s = sum(record.seconds_of(visit.configuration) for visit in visits)
    if visits:
        record.progress.line(f"{len(visits)} more measurements are planned, about {format_duration(total_s)}")
    for cut in cuts:
        record.note_cut(cut)
    record.save()


def holdout_seconds(record: SweepRecord) -> float:
    """What measuring held-out configurations takes, guessed before they are chosen."""
    return LEAST * VISITS * record.seconds_of(record.anchor)


def _push(
    record: SweepRecord, base: Configuration, kept: list[Configuration], left_s: float | None
) -> tuple[list[Configuration], list[Cut]]:
    """Beyond the grid, both scans up to what time and memory allow, and what they do not."""
    if left_s is not None:
        left_s -= sum(record.seconds_of(each) for each in kept)
    wider, longer = doublings(base, record.request.lists)
    # More chunks need no more memory: without a budget nothing ends them.
    scans = [wider] if left_s is None else [wider, longer]
    is_hopeless, budget_s = record.measurer.is_hopeless, record.request.budget_s
    return push_to_limit(scans, is_hopeless, record.seconds_of, left_s, budget_s)
