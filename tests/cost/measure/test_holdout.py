"""What is kept of a configuration that was predicted, however often it is measured."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_amort.cost.measure.holdout import with_measurement


def measured(*visits: tuple[float | None, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"predicted_s": 1.2, "measured_s": None, "relative_error": None}
    for step_s, status in visits:
        entry = with_measurement(entry, {"step_s": step_s, "status": status, "samples_s": []})
    return entry


@pytest.mark.parametrize(
    ("visits", "step_s", "status"),
    [
        ([(1.5, "ok"), (1.4, "ok"), (1.6, "ok")], 1.4, "ok"),
        # A flagged visit is judged only where there is no other.
        ([(1.4, "scattered"), (1.5, "ok"), (1.6, "ok")], 1.5, "ok"),
        ([(1.5, "ok"), (1.4, "scattered")], 1.5, "ok"),
        ([(1.5, "scattered"), (1.4, "scattered")], 1.4, "scattered"),
        ([(None, "did not fit"), (1.5, "ok")], 1.5, "ok"),
        ([(1.5, "ok"), (None, "killed")], 1.5, "ok"),
    ],
)
def test_the_fastest_visit_that_is_not_flagged_counts(
    visits: list[tuple[float | None, str]], step_s: float, status: str
) -> None:
    entry = measured(*visits)
    assert (entry["measured_s"], entry["status"]) == (step_s, status)
    assert entry["relative_error"] == pytest.approx(1.2 / step_s - 1)
    assert entry["visits_s"] == [visit for visit, _ in visits]
