"""Loss and rate of runs of any length, resumed or not, and runs side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from mlx_amort import plots
from mlx_amort.plots.lettering import with_one_prefix
from tests.plots.conftest import Draw
from tests.plots.made import legend_of, step_row, validation_row, x_of, y_of

PNG = b"\x89PNG\r\n\x1a\n"


def lines_of(axis: Axes, label: str) -> list[Line2D]:
    return [line for line in axis.get_lines() if str(line.get_label()).startswith(label)]


@pytest.mark.parametrize("steps", [1, 2, 3, 200])
def test_loss_and_rate_is_drawn_for_any_length(steps: int, tmp_path: Path) -> None:
    rows = [step_row(step, bits=8.0 / step) for step in range(1, steps + 1)]
    rows[-1]["loss_bits"] = float("nan") if steps > 2 else 8.0
    rows.append(validation_row(steps, 3.0))
    plots.loss_and_rate(rows, tmp_path / "plots" / "loss.png", zlib_bits=2.9, predicted_step_s=0.11)
    assert (tmp_path / "plots" / "loss.png").read_bytes().startswith(PNG)


def test_steps_that_compile_and_the_first_of_a_session_are_no_part_of_the_rate(draw: Draw) -> None:
    rows = [step_row(1, 60.0), *(step_row(step) for step in range(2, 41))]
    rows[20] |= {"step_s": 30.0, "compiled": True}
    rows[30]["step_s"] = 50.0
    _, rates = draw(plots.loss_and_rate, rows, resumed_after=[30]).axes
    (each,) = lines_of(rates, "rate of each step")
    assert x_of(each) == [row["bytes"] for row in rows if row["step"] not in (1, 21, 31)]
    np.testing.assert_allclose(y_of(each), 5120.0)
    for median in lines_of(rates, "rate, running median"):
        np.testing.assert_allclose(y_of(median), 5120.0)


def test_a_run_of_compiling_steps_alone_says_so(draw: Draw) -> None:
    figure = draw(plots.loss_and_rate, [step_row(1, 60.0), step_row(2, 9.0, compiled=True)])
    assert "no step yet that did not compile" in legend_of(figure)


def test_each_session_has_its_own_prediction_and_a_resume_is_marked(draw: Draw) -> None:
    first = [step_row(step, predicted_s=None if step < 5 else 0.1) for step in range(1, 31)]
    second = [step_row(step, 0.2, predicted_s=None if step < 35 else 0.2) for step in range(31, 61)]
    # Where no caller says when it was resumed, the forecast that begins anew does.
    for resumed_after in ([], [30]):
        figure = draw(plots.loss_and_rate, [*first, *second], resumed_after=resumed_after)
        losses, rates = figure.axes
        promised = [(x_of(line), y_of(line)) for line in lines_of(rates, "predicted")]
        assert promised == [([1024.0, 15360.0], [5120.0] * 2), ([16384.0, 30720.0], [2560.0] * 2)]
        assert len(lines_of(losses, "resumed")) == len(lines_of(rates, "resumed")) == 1
        assert {"resumed", "predicted in session 2: 2,560 bytes/s"} <= set(legend_of(figure))


def test_the_last_session_is_promised_what_its_rows_do_not_say(draw: Draw) -> None:
    figure = draw(plots.loss_and_rate, [step_row(step) for step in range(1, 9)], predicted_step_s=0.2)
    assert "predicted: 2,560 bytes/s" in legend_of(figure)


def test_the_fall_from_eight_bits_flattens_nothing_and_no_spike_is_cut_off_silently(draw: Draw) -> None:
    rows = [step_row(step, bits=2.5 + 5.5 / step) for step in range(1, 401)]
    rows[300]["loss_bits"] = 7.0
    rows[200]["step_s"] = 0.001
    figure = draw(plots.loss_and_rate, rows)
    losses, rates = figure.axes
    assert losses.get_ylim()[1] < 4.0
    (above,) = lines_of(losses, "training above the panel, up to 8")
    assert x_of(above) == [512.0, 301 * 512.0]
    (fast,) = lines_of(rates, "rate above the panel, up to 512,000")
    assert x_of(fast) == [201 * 512.0]


def test_validations_of_two_texts_are_told_apart_and_their_figures_lie_beside_the_panels(draw: Draw) -> None:
    rows = [step_row(step) for step in range(1, 41)]
    rows += [validation_row(20, 3.5), validation_row(40, 3.02), validation_row(40, 3.03, 20000, True)]
    figure = draw(plots.loss_and_rate, rows)
    losses = figure.axes[0]
    assert not losses.texts and not figure.axes[1].texts
    (curve,) = lines_of(losses, "validation over 4,096 bytes: 3.020")
    (ring,) = lines_of(losses, "validation over all 20,000 bytes: 3.030")
    assert ring.get_markersize() > curve.get_markersize() + 3 and ring.get_markerfacecolor() == "none"
    (legend,) = figure.legends
    assert not any(legend.get_window_extent().overlaps(axis.get_window_extent()) for axis in figure.axes)


def test_ticks_of_an_axis_have_one_unit() -> None:
    assert with_one_prefix([0, 250, 750, 1250]) == ["0", "250", "750", "1,250"]
    assert with_one_prefix([0, 500e3, 1e6, 1.5e6]) == ["0", "0.5M", "1.0M", "1.5M"]
    assert with_one_prefix([7500, 10000, 12500]) == ["7.5k", "10.0k", "12.5k"]
    assert with_one_prefix([2e9]) == ["2G"] and with_one_prefix([0.25]) == ["0.25"]


def test_a_single_validation_is_no_lone_dot(draw: Draw) -> None:
    steps = [512.0 * step for step in range(1, 101)]
    often = plots.RunCurve("often", [1e4, 5e4], [4.0, 3.0])
    once = plots.RunCurve(
        "once", [5e4], [3.1], [60.0], steps, [3.0 + 50 / (step + 9) for step in range(100)], steps
    )
    figure = draw(lambda runs, path: plots.compare(runs, path, 3.1), [often, once])
    panel = figure.axes[0]
    assert "once: one validation, 3.100" in legend_of(figure) and "training, smoothed" in legend_of(figure)
    levels = [line for line in panel.get_lines() if y_of(line) == [3.1, 3.1]]
    assert len(levels) == 2
    # Only one of them has seconds.
    assert not lines_of(figure.axes[1], "often")
