"""Which configurations a sweep measures, in which order, and what is left out for want of time; no mlx."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mlx_amort.cost.configuration import Point

Value = TypeVar("Value")

# The published scan, B 4 to 48 around B 24, as multiples of the preset's B; what lies beyond is doubled up to.
_BATCH_FACTORS = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2, 4)
_CHUNK_COUNTS = (1, 2, 4, 8)
_SCAN_CHUNKS = 2
_OTHER = {"muon": "adamw", "adamw": "muon"}

# A step before the first measurement is guessed at this many floors.
_FLOORS_A_STEP = 4.0
# What a process costs before its first step is settled.
START_S = 8.0
# Compiling, settling: steps that are not timed.
WARM_UP_STEPS = 3
# A row of short steps takes more of them, until it has run this long: a median of 5 × 20 ms is mostly noise.
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


@dataclass(frozen=True)
class Lists:
    """Values given on the command line for what a grid varies; empty: the grid's own, or the base's."""

    batches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    activation_checkpointing: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Visit:
    """One measurement of a sweep; the anchor is one point again, to see whether the machine has changed."""

    point: Point
    is_anchor: bool = False


@dataclass(frozen=True)
class Cut:
    """A configuration that the time budget leaves out, and why."""

    point: Point
    reason: str


def product_grid(base: Point, lists: Lists) -> list[Point]:
    """Every combination of the given values, the base's where none are given."""
    combinations = itertools.product(
        lists.batches or (base.batch,),
        lists.chunks or (base.chunks,),
        lists.windows or (base.window,),
        lists.seqs or (base.seq,),
        lists.optimizers or (base.optimizer,),
        lists.precisions or (base.precision,),
        lists.activation_checkpointing or (base.activation_checkpointing,),
    )
    return _unique(
        Point(batch, chunks, window, base.accum, seq, optimizer, precision, recomputes)
        for batch, chunks, window, seq, optimizer, precision, recomputes in combinations
    )


def default_grid(base: Point, lists: Lists, patch_stride: int) -> list[Point]:
    """The published shape around `base`, the most telling configurations first.

    A batch scan at K = 2, a chunk scan at the base's B, the fewest rows at the most chunks, the other optimizer at
    three sizes, one configuration recomputed, one with half the sequence. Given lists replace what is scanned, or
    leave a kind out: nothing is measured at a B or K that is not among the given ones.
    """
    optimizers = lists.optimizers or (base.optimizer, _OTHER[base.optimizer])
    half = max(patch_stride, base.seq // 2 // patch_stride * patch_stride)
    seqs = lists.seqs or tuple(_unique((base.seq, half)))
    recomputing = lists.activation_checkpointing or tuple(_unique((base.activation_checkpointing, True)))
    windows, precisions = lists.windows or (base.window,), lists.precisions or (base.precision,)
    center = _center(base, lists)
    batches, counts = _batches(base, lists), _counts(base, lists)
    batch_scan = [replace(center, batch=batch) for batch in batches]
    chunk_scan = [replace(center, chunks=chunks) for chunks in counts]
    longest = max(counts, key=lambda chunks: (chunks <= 2 * center.chunks, chunks))
    others = [
        replace(point, optimizer=optimizer)
        for optimizer in optimizers[1:]
        for point in (center, batch_scan[0], replace(center, chunks=longest))
    ]
    single = [replace(center, activation_checkpointing=value) for value in recomputing[1:]]
    single += [replace(center, seq=seq) for seq in seqs[1:]]
    single += [replace(center, window=window) for window in windows[1:]]
    single += [replace(center, precision=precision) for precision in precisions[1:]]
    # Few rows over many windows: what a window costs of itself hides in c0 along B, and in c1 along K.
    corner = replace(batch_scan[0], chunks=max(counts))
    # The ends of both scans and the other optimizer make a fit; the middle of the scans makes it sure.
    first = [
        center,
        batch_scan[0],
        replace(center, chunks=longest),
        *others[:2],
        chunk_scan[0],
        corner,
        *single,
    ]
    return _unique([*first, *others, *_outward(batch_scan), *_outward(chunk_scan)])


def doublings(base: Point, lists: Lists) -> list[Iterator[Point]]:
    """Twice the last of the batch scan, and of the chunk scan, without end; nothing beyond given lists."""
    center = _center(base, lists)
    largest, longest = max(_batches(base, lists)), max(_counts(base, lists))
    wider = (replace(center, batch=largest << power) for power in itertools.count(1))
    longer = (replace(center, chunks=longest << power) for power in itertools.count(1))
    return [iter(()) if lists.batches else wider, iter(()) if lists.chunks else longer]


def push_to_limit(
    scans: Sequence[Iterator[Point]],
    is_hopeless: Callable[[Point], bool],
    seconds_of: Callable[[Point], float],
    left_s: float | None,
    budget_s: float | None = None,
) -> tuple[list[Point], list[Cut]]:
    """The points of endless scans, the cheapest first, up to the first of each that memory or time refuses.

    One that memory refuses is among the points, to show where the limit is; one that takes more than the time
    left, or than its share of the budget, is cut. Without a budget (left_s None) every scan must be one that memory
    ends.
    """
    pushed: list[Point] = []
    cuts: list[Cut] = []
    share_s = math.inf if budget_s is None else _PUSHED_SHARE * budget_s
    ahead = {index: point for index, scan in enumerate(scans) if (point := next(scan, None))}
    while ahead:
        index, point = min(ahead.items(), key=lambda item: (seconds_of(item[1]), item[0]))
        cost_s = seconds_of(point)
        if is_hopeless(point):
            pushed.append(point)
            del ahead[index]
        elif left_s is not None and cost_s > min(left_s, share_s):
            limit = "its share of the budget" if share_s < left_s else "of the budget left for it"
            cuts.append(
                Cut(point, f"about {cost_s:.0f} s to measure, {max(0.0, min(left_s, share_s)):.0f} s {limit}")
            )
            del ahead[index]
        else:
            pushed.append(point)
            left_s = None if left_s is None else left_s - cost_s
            ahead[index] = next(scans[index])
    return pushed, cuts


def _center(base: Point, lists: Lists) -> Point:
    """What both scans have in common: the first of every list, K = 2 where it may be."""
    given = lists.activation_checkpointing
    return replace(
        base,
        batch=_center_batch(base, lists),
        chunks=_scan_chunks(lists),
        window=lists.windows[0] if lists.windows else base.window,
        seq=lists.seqs[0] if lists.seqs else base.seq,
        optimizer=lists.optimizers[0] if lists.optimizers else base.optimizer,
        precision=lists.precisions[0] if lists.precisions else base.precision,
        activation_checkpointing=given[0] if given else base.activation_checkpointing,
    )


def _batches(base: Point, lists: Lists) -> tuple[int, ...]:
    return lists.batches or tuple(_unique(max(1, round(base.batch * factor)) for factor in _BATCH_FACTORS))


def _counts(base: Point, lists: Lists) -> tuple[int, ...]:
    return lists.chunks or tuple(sorted({*_CHUNK_COUNTS, base.chunks}))


def _scan_chunks(lists: Lists) -> int:
    return _SCAN_CHUNKS if not lists.chunks or _SCAN_CHUNKS in lists.chunks else lists.chunks[0]


def _center_batch(base: Point, lists: Lists) -> int:
    """The base's B; of given ones the largest up to it, or the least."""
    if not lists.batches:
        return base.batch
    return max((batch for batch in lists.batches if batch <= base.batch), default=min(lists.batches))


def _outward(scan: Sequence[Point]) -> list[Point]:
    """A scan from its cheapest to its dearest: what a budget leaves out is then the dearest."""
    return sorted(scan, key=lambda point: point.bytes_per_step)


def row_seconds(step_s: float, steps: int, start_s: float = START_S) -> float:
    """What measuring one row takes: the process, the steps that warm it up, and the timed ones."""
    timed_s = max(steps * step_s, min(LEAST_TIMED_S, MOST_STEPS_FACTOR * steps * step_s))
    return start_s + WARM_UP_STEPS * step_s + timed_s


def floor_seconds(point: Point, c1_floor_us: float) -> float:
    """A guess of a step's time before anything was measured."""
    return _FLOORS_A_STEP * c1_floor_us * 1e-6 * point.bytes_per_step


def affordable_base(
    base: Point, lists: Lists, c1_floor_us: float, steps: int, budget_s: float | None
) -> Point:
    """The base with B halved until measuring it, as the grid's centre, takes no more than its share."""

    def seconds_of(point: Point) -> float:
        return row_seconds(floor_seconds(_center(point, lists), c1_floor_us), steps)

    return _largest_affordable(base, seconds_of, budget_s)


def grown_base(
    base: Point, wanted: Point, seconds_of: Callable[[Point], float], budget_s: float | None
) -> Point:
    """A larger base, towards the wanted one, when the anchor turns out to cost less than was guessed."""
    grown = _largest_affordable(wanted, seconds_of, budget_s)
    return grown if grown.batch >= 2 * base.batch else base


def _largest_affordable(base: Point, seconds_of: Callable[[Point], float], budget_s: float | None) -> Point:
    """`base` with B halved until it costs no more than an anchor's share of the budget."""
    while base.batch > 1 and budget_s is not None and seconds_of(base) > _ANCHOR_SHARE * budget_s:
        base = replace(base, batch=base.batch // 2)
    return base


def cut_to_budget(
    points: Iterable[Point], seconds_of: Callable[[Point], float], left_s: float | None
) -> tuple[list[Point], list[Cut]]:
    """The points that fit the time left, the first ones first; what does not fit is cut with its cost."""
    kept: list[Point] = []
    cuts: list[Cut] = []
    for point in points:
        cost_s = seconds_of(point)
        if left_s is None or cost_s <= left_s:
            kept.append(point)
            left_s = None if left_s is None else left_s - cost_s
        else:
            left = f"{max(0.0, left_s):.0f} s of the budget left for it"
            cuts.append(Cut(point, f"about {cost_s:.0f} s to measure, {left}"))
    return kept, cuts


def repeats_within(
    points: Iterable[Point], seconds_of: Callable[[Point], float], left_s: float | None
) -> list[Point]:
    """What is measured again with the time that is left, the cheapest first, up to twice; nothing without a budget.

    A machine that others use is slow for seconds at a time: of rows taken minutes apart the fastest is its own.
    """
    if left_s is None:
        return []
    return cut_to_budget(sorted(points, key=seconds_of) * (_MOST_VISITS - 1), seconds_of, left_s)[0]


def mixed_order(
    points: Sequence[Point], anchor: Point, ascending: Collection[Point] = (), again: Sequence[Point] = ()
) -> list[Visit]:
    """The points after the anchor's first measurement, shuffled by a fixed seed, the anchor again on the way.

    Mixed, so that a machine which slows down does not pass for a curved law. Those of `ascending` come in
    the order of their sizes: one that does not fit spares the machine the next. Those of `again` come a second
    time, after all others.
    """
    rest = [point for point in points if point != anchor]
    random.Random(_SEED).shuffle(rest)
    in_order = iter(_outward([point for point in rest if point in ascending]))
    rest = [next(in_order) if point in ascending else point for point in rest]
    second = [point for point in again if point != anchor]
    random.Random(_SEED + 1).shuffle(second)
    rest += second
    repeats = min(ANCHOR_VISITS - 1, len(rest))
    visits: list[Visit] = []
    for part in range(repeats):
        start, end = len(rest) * part // repeats, len(rest) * (part + 1) // repeats
        visits += [Visit(point) for point in rest[start:end]]
        visits.append(Visit(anchor, is_anchor=True))
    return visits


def _unique(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))
