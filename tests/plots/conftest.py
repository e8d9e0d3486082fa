"""Figures as they are before they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

Draw = Callable[..., Figure]


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Draw:
    """Calls a function of plots with a record or rows and a path, and returns the laid out figure it would save."""
    drawn: list[Figure] = []

    def keep(figure: Figure, path: Path) -> None:
        figure.draw_without_rendering()
        drawn.append(figure)

    monkeypatch.setattr("mlx_amort.plots.figure.save_figure", keep)

    def call(function: Callable[..., None], first: Any, *rest: Any, **options: Any) -> Figure:
        function(first, tmp_path / "figure.png", *rest, **options)
        return drawn.pop()

    return call
