"""What is kept of a configuration that was predicted, however often it is measured."""

from __future__ import annotations

import pytest

from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.profile import Prediction

CONFIGURATION = Configuration(4, 2, 64, "muon")


def measured(*visits: tuple[float | None, str]) -> Prediction:
    prediction = Prediction(CONFIGURATION, 1.2)
    for step_s, status in visits:
        prediction = prediction.visited(Measurement(CONFIGURATION, step_s, status=status))
    return prediction


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
    prediction = measured(*visits)
    assert prediction.best is not None
    assert (prediction.best.step_s, prediction.best.status) == (step_s, status)
    assert prediction.relative_error == pytest.approx(1.2 / step_s - 1)
    assert prediction.visits_s == tuple(visit for visit, _ in visits)
