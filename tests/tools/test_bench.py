"""The bench: what it classifies, pairs and compares; the PyTorch side where PyTorch is installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mlx_amort.config.reading import resolve
from mlx_amort.config.values import Config
from tools.bench.__main__ import main
from tools.bench.generation import compare_contexts
from tools.bench.parts import kind_of
from tools.bench.retained import Stack, compare_retained
from tools.bench.scaling import BASE, configurations, times_by_turns
from tools.bench.side import mlx_side, torch_side
from tools.bench.turns import SIDES, Comparison
from tools.bench.update import compare_updates

MLX = "(/x/site-packages/mlx/lib/libmlx.so)"


def tiny() -> Config:
    values = ("layers=2", "hidden=16", "heads=2", "ffn=32", "seq=32", "patch_stride=4", "trunk=hybrid")
    steps = ("batch=2", "chunks=3", "window=2", "accum=2", "precision=fp32")
    overrides = [*(f"model.{value}" for value in values), *(f"step.{value}" for value in steps)]
    return resolve(overrides=overrides)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("7f sgemm_oncopy_COOPERLAKE (/usr/lib/openblas-pthread/libopenblasp-r0.3.21.so)", "products (BLAS)"),
        ("7f Cf4IBroadcastBDf4OAddAC (/tmp/mlx/0.32.4/cpu/libCf4IBroad.so)", "fused elementwise (compiled)"),
        (
            f"7f mlx::core::(anonymous namespace)::copy_general_general<float, float> {MLX}",
            "copies, transposes",
        ),
        (f"7f mlx::core::strided_reduce<float, float, mlx::core::SumReduce> {MLX}", "reductions and scans"),
        (f"7f mlx::core::binary_op<float, float, mlx::core::detail::Multiply> {MLX}", "other elementwise"),
        (f"7f mlx::core::gather_axis<float, int> {MLX}", "gathers"),
        (f"7f mlx::core::array::release {MLX}", "Python and dispatch"),
        ("ff __schedule ([kernel.kallsyms])", "page faults and system calls"),
        ("7f nothing known (/x/libother.so)", "other"),
    ],
)
def test_a_sample_is_of_the_kind_that_its_symbol_and_library_tell(line: str, kind: str) -> None:
    assert kind_of(line) == kind


def test_ratios_pair_the_turns_and_rows_are_medians() -> None:
    ours = [{"step_s": value, "window_s": value / 2, "update_s": value / 2} for value in (1.0, 2.0, 4.0)]
    theirs = [{"step_s": value, "window_s": value, "update_s": 0.0} for value in (2.0, 2.0, 2.0)]
    comparison = Comparison(tiny(), dict(zip(SIDES, (ours, theirs), strict=True)))
    assert comparison.ratios("step_s") == [2.0, 1.0, 0.5]
    row = comparison.measurement("mlx")
    assert (
        row.step_s == 2.0
        and row.samples_s == (1.0, 2.0, 4.0)
        and row.configuration.bytes_per_step == tiny().bytes_per_step
    )


@pytest.mark.slow
def test_updates_are_compared_with_mlx_s_own() -> None:
    lines: list[str] = []
    compare_updates(tiny(), 2, lines.append, shapes=((64, 64), (64, 256)))
    text = "\n".join(lines)
    assert text.count("ours is faster by") == 2 and "mlx.optimizers, compiled" in text
    errors = [line for line in lines if "singular values" in line]
    assert len(errors) == 2 and "64 × 256" in errors[1]


def test_the_command_lists_its_parts() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("model", "update", "parts"))


def test_both_sides_have_the_same_losses_and_gradients(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the bench's extra is not installed")
    config = tiny()
    loss, ours = mlx_side(config, tmp_path, {}).gradients()
    other, theirs = torch_side(config, tmp_path, 1, {}).gradients()
    assert loss == pytest.approx(other, abs=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert np.abs(gradient - theirs[name]).max() <= 1e-4 * np.abs(theirs[name]).max(), name


def test_scaling_varies_one_thing_at_a_time_and_times_windows_and_updates() -> None:
    base = resolve(overrides=[f"{key}={value}" for key, value in BASE.items()])
    for name, configs in configurations().items():
        if name == "preset":
            continue
        assert base in configs
        models, steps = ({getattr(config, part) for config in configs} for part in ("model", "step"))
        assert sorted((len(models), len(steps))) == [1, len(configs)]
    (times,) = times_by_turns([tiny()], turns=2)
    assert len(times) == 2 and all(window_s > 0 and update_s > 0 for window_s, update_s in times)


@pytest.mark.slow
def test_a_block_keeps_less_than_a_plainly_written_one() -> None:
    told: list[str] = []
    # Several sub-chunks of the recurrence, and blocks enough for their activations to be the peak.
    compare_retained(told.append, Stack(rows=1, length=512, hidden=128, heads=2, depths=(2, 5)))
    rows = [line for line in told if line.startswith(("| attention", "| recurrent"))]
    assert len(rows) == 2
    for line in rows:
        plain, ours = (float(cell.split()[0]) for cell in line.split("|")[2:4])
        assert ours < 0.5 * plain


def test_generation_is_timed_after_both_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.generation.CONTEXTS", (32, 96))
    told: list[str] = []
    compare_contexts(tiny(), 1, told.append)
    assert "after      32 bytes" in told[1] and "after      96 bytes" in told[2]
    assert "long over short" in told[3]
