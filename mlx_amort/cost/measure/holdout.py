"""Configurations that were not measured, for the fit to predict first: a test that it can fail."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from typing import Any

from mlx_amort.cost.configuration import Point
from mlx_amort.cost.time.cost_model import Fit

MOST = 3
LEAST = 2
# Each is measured so often, by turns: a machine that is slow for a while must not judge the law by one of them.
VISITS = 3
_SEED = 1


def choose_held_out(
    fit: Fit,
    base: Point,
    taken: Collection[Point],
    seconds_of: Callable[[Point], float],
    left_s: float | None,
) -> list[Point]:
    """Two or three points between the fitted ones: a smaller and a larger one, then the other optimizer.

    As many as the time left pays for, but two where there are two: without them nothing is proved. `base`
    gives what the fit does not vary.
    """
    rows = [point.row for point in fit.points]
    sizes = [row.bytes_per_step for row in rows]
    batches = sorted({row.batch for row in rows})
    between = {(low + high) // 2 for low, high in itertools.pairwise(batches)}
    candidates = []
    for batch, chunks, optimizer in itertools.product(
        sorted(between | set(batches)), sorted({row.chunks for row in rows}), sorted(fit.c0_s)
    ):
        point = Point(
            batch=batch,
            chunks=chunks,
            window=fit.setting.window or base.window,
            accum=base.accum,
            seq=fit.setting.seq,
            optimizer=optimizer,
            precision=fit.setting.precision or base.precision,
            activation_checkpointing=fit.setting.activation_checkpointing,
        )
        if point not in taken and min(sizes) <= point.bytes_per_step <= max(sizes):
            candidates.append(point)
    chosen: list[Point] = []
    for group in _groups(candidates, base.optimizer):
        group = [point for point in group if point not in chosen]
        affordable = [point for point in group if left_s is None or VISITS * seconds_of(point) <= left_s]
        if affordable:
            point = random.Random(_SEED).choice(affordable)
        elif group and len(chosen) < LEAST:
            point = min(group, key=seconds_of)
        else:
            continue
        chosen.append(point)
        left_s = None if left_s is None else left_s - VISITS * seconds_of(point)
    return chosen[:MOST]


def _groups(candidates: list[Point], optimizer: str) -> list[list[Point]]:
    """Candidates in the order of preference: smaller half, larger half, the other optimizer, any."""
    own = sorted((p for p in candidates if p.optimizer == optimizer), key=lambda p: p.bytes_per_step)
    half = len(own) // 2
    return [own[:half], own[half:], [p for p in candidates if p.optimizer != optimizer], candidates]


def prediction(point: Point, fit: Fit) -> dict[str, Any]:
    """The entry of `held_out` before it is measured."""
    return {
        **point.to_record(),
        "predicted_s": fit.predict_s(point),
        "measured_s": None,
        "relative_error": None,
    }


def with_measurement(entry: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """The entry after one more measurement, with the fastest of those that are not flagged, as rows are fitted.

    relative_error is predicted / measured - 1, None where it failed.
    """
    visits_s = [*entry.get("visits_s", []), row["step_s"]]
    measured_s = entry.get("measured_s")
    is_flagged, was_flagged = row.get("status") != "ok", entry.get("status") != "ok"
    is_slower = row["step_s"] is None or (measured_s is not None and row["step_s"] >= measured_s)
    if measured_s is not None and (is_flagged > was_flagged or (is_flagged == was_flagged and is_slower)):
        return {**entry, "visits_s": visits_s}
    kept = {key: row.get(key) for key in ("samples_s", "status", "peak_bytes", "note")}
    error = None if row["step_s"] is None else entry["predicted_s"] / row["step_s"] - 1
    return {**entry, **kept, "visits_s": visits_s, "measured_s": row["step_s"], "relative_error": error}
