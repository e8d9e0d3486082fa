"""Real workers, tiny: a row with all its columns, one stopped for memory, one that is not even tried."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_amort.backend.machine import _device_memory_bytes
from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration
from mlx_amort.cost.measure import worker_process as process
from mlx_amort.cost.measure.roofline import roofline_of
from mlx_amort.cost.measure.worker_process import Outcome, ProcessMeasurer, usable_memory_bytes
from mlx_amort.ops.constants import Backend

TINY = resolve(
    overrides=[
        "model.layers=1",
        "model.hidden=16",
        "model.ffn=32",
        "model.heads=2",
        "model.seq=16",
        "step.batch=2",
        "step.precision=fp32",
    ]
)
POINT = Configuration.of(TINY)


def test_a_row_has_its_times_and_its_own_peak() -> None:
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).step(POINT, None)
    assert row.status == "ok"
    assert len(row.samples_s) >= 3
    assert row.step_s and row.update_s and row.window_s and row.peak_bytes and row.phases
    assert min(row.samples_s) <= row.step_s <= max(row.samples_s)
    assert 0 < row.update_s < row.step_s and 0 < row.window_s < row.step_s
    assert row.peak_bytes > 4 * TINY.model.parameters
    assert row.compile_s is not None and row.compile_s >= 0
    assert set(row.phases) == {"windows", "update", "data", "rest"}
    assert min(abs(sum(row.phases.values()) - sample) for sample in row.samples_s) < 1e-9
    assert row.configuration.bytes_per_step == TINY.bytes_per_step


def test_rates_of_every_shape_make_a_roofline() -> None:
    rates = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).rates(POINT)
    assert all(product.flops_per_s > 0 for product in rates.products)
    roofline = roofline_of(TINY, rates)
    assert roofline.c1_us_per_byte > 0
    assert roofline.c0_s["muon"] > 0 and roofline.c0_s["adamw"] > 0


def test_a_worker_imports_what_its_parent_does_wherever_it_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy.py", "statistics.py", "mlx_amort/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise ImportError('of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).step(POINT, None)
    assert (row.status, row.note) == ("ok", "")


def test_a_worker_over_its_memory_is_stopped_and_is_a_row() -> None:
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10 << 20).step(POINT, None)
    assert row.status == "did not fit" and "used more than" in row.note
    assert row.step_s is None and row.samples_s == ()


def test_a_worker_over_its_time_is_stopped_and_is_a_row() -> None:
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).step(POINT, 0.1)
    assert row.status == "too slow" and row.step_s is None


def test_what_is_hopeless_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run_worker", None)
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).step(replace(POINT, batch=10**7), None)
    assert row.status == "did not fit" and row.note.startswith("not tried")


@pytest.mark.parametrize(
    ("outcome", "status", "note"),
    [
        (Outcome(None, -signal.SIGKILL, False, False, ""), "did not fit", "killed"),
        (Outcome(None, -signal.SIGKILL, False, True, ""), "too slow", "budget"),
        (Outcome(None, 1, False, False, "Traceback\nValueError: no"), "failed", "ValueError: no"),
        (
            Outcome({"status": "did not fit", "note": "refused"}, 0, False, False, ""),
            "did not fit",
            "refused",
        ),
    ],
)
def test_every_death_is_a_row(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, status: str, note: str
) -> None:
    monkeypatch.setattr(process, "run_worker", lambda *_: outcome)
    row = ProcessMeasurer(TINY, steps=3, memory_bytes=10**10).step(POINT, None)
    assert row.status == status and note in row.note
    assert row.configuration.batch == POINT.batch and row.step_s is None


def test_a_worker_ends_when_its_sweep_does() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from mlx_amort.cost.measure.worker import _die_with_the_sweep as d; d(); "
         "import time; time.sleep(60)"],
        stdin=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None
    child.stdin.close()
    assert child.wait(timeout=30) == 1


def test_an_accelerator_has_its_own_memory() -> None:
    host = {"memory_bytes": 10**9}
    cuda = {**host, "backend": "cuda", "device_memory_bytes": 8 * 10**10}
    assert usable_memory_bytes(cuda, None) == int(0.9 * 8 * 10**10)
    assert usable_memory_bytes(cuda, 123) == 123
    metal = {**host, "backend": "metal", "device_memory_bytes": 7 * 10**8}
    assert usable_memory_bytes(metal, None) == 7 * 10**8
    assert usable_memory_bytes({**metal, "device_memory_bytes": None}, None) == int(0.9e9)


@pytest.mark.parametrize(
    ("backend", "info", "expected"),
    [
        ("cpu", {"device_name": "EPYC"}, None),
        ("metal", {"max_recommended_working_set_size": 11, "memory_size": 16}, 11),
        ("metal", {"memory_size": 16}, None),
        ("cuda", {"total_memory": 80, "free_memory": 70}, 70),
        ("cuda", {"total_memory": 80}, 80),
        ("cuda", {"device_name": "H200"}, None),
    ],
)
def test_device_memory_is_asked_by_backend(
    backend: Backend, info: dict[str, str | int], expected: int | None
) -> None:
    assert _device_memory_bytes(info, backend) == expected


def test_usable_memory_is_the_limit_or_less_than_the_machine() -> None:
    assert usable_memory_bytes({"memory_bytes": 10**12}, 123) == 123
    assert 0 < usable_memory_bytes({"memory_bytes": 10**9}, None) <= 0.9e9
