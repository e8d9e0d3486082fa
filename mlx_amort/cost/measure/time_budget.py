"""What a sweep can afford: the time of a measurement, what is left out for want of it, and the order; no mlx."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure.grid import Lists, center_of, outward
from mlx_amort.cost.profile import Cut, Visit

# A step before the first measurement is guessed at this many times its roofline.
_ROOFLINES_PER_STEP = 4.0
# What a process costs before its first step is settled.
START_S = 8.0
# Compiling, settling: steps that are not timed.
WARM_UP_STEPS = 3
# A measurement of short steps takes more of them, until it has run this long: a median of 5 × 20 ms is mostly noise.
LEAST_TIMED_S = 2.0
MOST_STEPS_FACTOR = 16
# With time left, a configuration is visited up to so many times.
_MOST_VISITS = 3
# The anchor is measured this often, so one measurement may take no more than its share of the budget.
ANCHOR_VISITS = 3
_ANCHOR_SHARE = 0.07
# No configuration beyond the grid may take more than this share of the budget: it would say nothing new.
_PUSHED_SHARE = 0.06
_SEED = 0


def row_seconds(step_s: float, steps: int, start_s: float = START_S) -> float:
    """What measuring one configuration takes: the process, the steps that warm it up, and the timed ones."""
    timed_s = max(steps * step_s, min(LEAST_TIMED_S, MOST_STEPS_FACTOR * steps * step_s))
    return start_s + WARM_UP_STEPS * step_s + timed_s


def roofline_seconds(each: Configuration, c1_roofline_us: float) -> float:
    """A guess of a step's time before anything was measured."""
    return _ROOFLINES_PER_STEP * c1_roofline_us * 1e-6 * each.bytes_per_step


def affordable_base(
    base: Configuration, lists: Lists, c1_roofline_us: float, steps: int, budget_s: float | None
) -> Configuration:
    """The base with B halved until measuring it, as the grid's centre, takes no more than its share."""

    def seconds_of(each: Configuration) -> float:
        return row_seconds(roofline_seconds(center_of(each, lists), c1_roofline_us), steps)

    return _largest_affordable(base, seconds_of, budget_s)


def grown_base(
    base: Configuration,
    wanted: Configuration,
    seconds_of: Callable[[Configuration], float],
    budget_s: float | None,
) -> Configuration:
    """A larger base, towards the wanted one, when the anchor turns out to cost less than was guessed."""
    grown = _largest_affordable(wanted, seconds_of, budget_s)
    return grown if grown.batch >= 2 * base.batch else base


def _largest_affordable(
    base: Configuration, seconds_of: Callable[[Configuration], float], budget_s: float | None
) -> Configuration:
    """`base` with B halved until it costs no more than an anchor's share of the budget."""
    while base.batch > 1 and budget_s is not None and seconds_of(base) > _ANCHOR_SHARE * budget_s:
        base = replace(base, batch=base.batch // 2)
    return base


def cut_to_budget(
    configurations: Iterable[Configuration],
    seconds_of: Callable[[Configuration], float],
    left_s: float | None,
) -> tuple[list[Configuration], list[Cut]]:
    """The configurations that fit the time left, the first ones first; what does not fit is cut with its cost."""
    kept: list[Configuration] = []
    cuts: list[Cut] = []
    for each in configurations:
        cost_s = seconds_of(each)
        if left_s is None or cost_s <= left_s:
            kept.append(each)
            left_s = None if left_s is None else left_s - cost_s
        else:
            left = f"{max(0.0, left_s):.0f} s of the budget left for it"
            cuts.append(Cut(each, f"about {cost_s:.0f} s to measure, {left}"))
    return kept, cuts


def repeats_within(
    configurations: Iterable[Configuration],
    seconds_of: Callable[[Configuration], float],
    left_s: float | None,
) -> list[Configuration]:
    """What is measured again with the time that is left, the cheapest first, up to twice; nothing without a budget.

    A machine that others use is slow for seconds at a time: of rows taken minutes apart the fastest is its own.
    """
    if left_s is None:
        return []
    return cut_to_budget(sorted(configurations, key=seconds_of) * (_MOST_VISITS - 1), seconds_of, left_s)[0]


def mixed_order(
    configurations: Sequence[Configuration],
    anchor: Configuration,
    ascending: Collection[Configuration] = (),
    again: Sequence[Configuration] = (),
) -> list[Visit]:
    """The configurations after the anchor's first measurement, shuffled by a fixed seed, the anchor again on the way.

    Mixed, so that a machine which slows down does not pass for a curved cost. Those of `ascending` come in
    the order of their sizes: one that does not fit spares the machine the next. Those of `again` come a second
    time, after all others.
    """
    rest = [each for each in configurations if each != anchor]
    random.Random(_SEED).shuffle(rest)
    in_order = iter(outward([each for each in rest if each in ascending]))
    rest = [next(in_order) if each in ascending else each for each in rest]
    second = [each for each in again if each != anchor]
    random.Random(_SEED + 1).shuffle(second)
    rest += second
    repeats = min(ANCHOR_VISITS - 1, len(rest))
    visits: list[Visit] = []
    for part in range(repeats):
        start, end = len(rest) * part // repeats, len(rest) * (part + 1) // repeats
        visits += [Visit(each) for each in rest[start:end]]
        visits.append(Visit(anchor, is_anchor=True))
    return visits


def push_to_limit(
    scans: Sequence[Iterator[Configuration]],
    is_hopeless: Callable[[Configuration], bool],
    seconds_of: Callable[[Configuration], float],
    left_s: float | None,
    budget_s: float | None = None,
) -> tuple[list[Configuration], list[Cut]]:
    """The configurations of endless scans, the cheapest first, up to the first of each that memory or time refuses.

    One that memory refuses is among the configurations, to show where the limit is; one that takes more than the time
    left, or than its share of the budget, is cut. Without a budget (left_s None) every scan must be one that memory
    ends.
    """
    pushed: list[Configuration] = []
    cuts: list[Cut] = []
    share_s = math.inf if budget_s is None else _PUSHED_SHARE * budget_s
    ahead = {index: each for index, scan in enumerate(scans) if (each := next(scan, None))}
    while ahead:
        index, each = min(ahead.items(), key=lambda item: (seconds_of(item[1]), item[0]))
        cost_s = seconds_of(each)
        if is_hopeless(each):
            pushed.append(each)
            del ahead[index]
        elif left_s is not None and cost_s > min(left_s, share_s):
            limit = "is its share of the budget" if share_s < left_s else "of the budget are left for it"
            cuts.append(
                Cut(each, f"about {cost_s:.0f} s to measure, {max(0.0, min(left_s, share_s)):.0f} s {limit}")
            )
            del ahead[index]
        else:
            pushed.append(each)
            left_s = None if left_s is None else left_s - cost_s
            ahead[index] = next(scans[index])
    return pushed, cuts
