"""Quantiles of Student's t against printed tables."""

from __future__ import annotations

import pytest

from mlx_amort.cost.time.student_t import t_probability, t_quantile


@pytest.mark.parametrize(
    ("confidence", "degrees", "value"),
    [(0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.95, 8, 2.30600), (0.99, 5, 4.03214), (0.95, 120, 1.97993)],
)
def test_quantiles_are_those_of_the_tables(confidence: float, degrees: int, value: float) -> None:
    assert t_quantile(confidence, degrees) == pytest.approx(value, rel=1e-5)


def test_probability_is_one_at_zero_and_falls() -> None:
    values = [t_probability(t, 7) for t in (0.0, 0.5, 1.0, 4.0, 50.0)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
