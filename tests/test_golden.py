"""tools/check_golden.py on the cases of tests/golden (and ../shared/golden where it is), right and spoilt."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.reference.make_golden import main as make_golden

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "check_golden.py"
OWN = ROOT / "tests" / "golden"
CASES = [*sorted(OWN.glob("*.npz")), *sorted((ROOT.parent / "shared" / "golden").glob("*.npz"))]
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def check_golden() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_golden", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_golden"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_model_passes(check_golden: ModuleType, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_golden.main([str(path)]) == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"PASS {path}")
    with np.load(path) as case:
        shown = {line.split()[0] for line in lines[:-1]}
        held = {key for key in case.files if key.startswith(("grad/", "state/", "loss_nats", "logits"))}
    assert shown == held


def test_there_are_cases_of_every_trunk() -> None:
    trunks = set()
    for path in OWN.glob("*.npz"):
        with np.load(path) as case:
            trunks.add(str(case["trunk"]))
    assert trunks == {"dense", "recurrent", "patched", "hybrid"}


def _spoil(tmp_path: Path, change: Callable[[Arrays], object], source: str = "hybrid") -> Path:
    with np.load(OWN / f"{source}.npz") as case:
        arrays = {key: case[key] for key in case.files}
    change(arrays)
    np.savez(tmp_path / "spoilt.npz", **arrays)
    return tmp_path / "spoilt.npz"


@pytest.mark.parametrize(
    "key",
    [
        "loss_nats",
        "logits",
        "grad/tok",
        "grad/blocks.2.decay_w",
        "state/S",
        "state/conv",
        "param/blocks.2.conv",
    ],
)
def test_a_deviation_of_half_a_percent_fails(
    check_golden: ModuleType, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _spoil(tmp_path, lambda arrays: arrays.update({key: arrays[key] * 1.005}))
    assert check_golden.main([str(path), str(OWN / "dense.npz")]) == 1
    out = capsys.readouterr().out
    assert f"FAIL {path}" in out and f"PASS {OWN / 'dense.npz'}" in out


def test_not_a_number_fails(
    check_golden: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _spoil(tmp_path, lambda arrays: arrays.update({"param/pos": arrays["param/pos"] * np.nan}))
    assert check_golden.main([str(path)]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_a_gradient_that_is_zero_is_compared_on_the_scale_of_the_others(check_golden: ModuleType) -> None:
    reference = {"grad/a": np.full(4, 0.01), "grad/b": np.zeros(4), "state/S": np.zeros(2)}
    rms = 0.01 / np.sqrt(2)
    rounding = check_golden.measure_errors({**reference, "grad/b": np.full(4, 1e-9)}, reference)
    assert rounding["grad/b"] == pytest.approx(1e-9 / rms) and rounding["state/S"] == 0
    wrong = check_golden.measure_errors({**reference, "grad/b": np.full(4, 1e-4)}, reference)
    assert wrong["grad/b"] > check_golden.TOLERANCE


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda arrays: arrays.pop("tokens"), "lacks tokens"),
        (lambda arrays: arrays.pop("config"), "lacks config"),
        (lambda arrays: arrays.pop("param/blocks.3.gate"), "param/blocks.3.gate is missing"),
        (lambda arrays: arrays.pop("grad/pos"), "grad/pos is missing"),
        (lambda arrays: arrays.pop("state/S"), "state/S is missing"),
        (lambda arrays: arrays.update(trunk=np.array("hybird")), "hybird"),
        (lambda arrays: arrays.update(tokens=arrays["tokens"][:, :-1]), "tokens has shape"),
        (lambda arrays: arrays.update(config=arrays["config"][:5]), "config is not the seven sizes"),
        (lambda arrays: arrays.update(config=arrays["config"] + 0.5), "not a whole number"),
        (lambda arrays: arrays.update(config=arrays["config"] * np.nan), "not a whole number"),
        (lambda arrays: arrays.update(config=arrays["config"] * 10**12), "not a whole number from 1"),
        (lambda arrays: arrays.update(config=arrays["config"] * 0), "not a whole number from 1"),
        (lambda arrays: arrays.update(config=arrays["config"] + 0j), "config holds complex128"),
        (lambda arrays: arrays.update(config=arrays["config"].astype(str)), "config holds <U"),
        (lambda arrays: arrays.update(trunk=np.array(3)), "trunk is not one word"),
        (lambda arrays: arrays.update(trunk=np.array("a\nb")), "trunk is not one word"),
        (lambda arrays: arrays.update(boundary_rule=np.array(["every"])), "boundary_rule is not one word"),
        (lambda arrays: arrays.update(patch_stride=np.array(4.0)), "patch_stride holds float64"),
        (lambda arrays: arrays.update(patch_stride=np.array([4])), "patch_stride has shape"),
        (lambda arrays: arrays.update(patch_stride=np.array(0)), "patch_stride=0"),
        (lambda arrays: arrays.update(tokens=arrays["tokens"].astype(np.int64) - 300), "reach from"),
        (lambda arrays: arrays.update(tokens=arrays["tokens"].astype(np.int64) + 300), "reach from"),
        (lambda arrays: arrays.update(tokens=arrays["tokens"] * 1.0), "tokens holds float64"),
        (lambda arrays: arrays.update({"param/tok": arrays["param/tok"] + 0j}), "param/tok holds complex"),
        (lambda arrays: arrays.update({"param/tok": np.array(1.0)}), "param/tok has shape"),
        (lambda arrays: arrays.update({"param/pos": arrays["param/pos"].astype(int)}), "param/pos holds int"),
        (lambda arrays: arrays.update({"grad/pos": arrays["grad/pos"].astype(str)}), "grad/pos holds <U"),
        (lambda arrays: arrays.update(loss_nats=np.array("big")), "loss_nats holds <U"),
        (lambda arrays: arrays.update(loss_nats=np.ones(2)), "loss_nats has shape"),
    ],
)
def test_an_incomplete_case_is_one_line_and_exit_2(
    check_golden: ModuleType,
    tmp_path: Path,
    change: Callable[[Arrays], object],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check_golden.main([str(_spoil(tmp_path, change))]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert complaint in captured.err


@pytest.mark.parametrize("content", [None, b"", b"not an archive", b"PK\x03\x04 cut off"])
def test_a_file_that_is_no_case_is_one_line_and_exit_2(
    check_golden: ModuleType, tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.npz"
    if content is not None:
        path.write_bytes(content)
    assert check_golden.main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {path}: ") and captured.err.count("\n") == 1


def test_a_damaged_archive_is_one_line_and_exit_2(
    check_golden: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (OWN / "dense.npz").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(30):
        spoilt = bytearray(whole)
        for place in generator.integers(0, len(whole), 40):
            spoilt[place] ^= int(generator.integers(1, 256))
        (tmp_path / "case.npz").write_bytes(spoilt)
        assert check_golden.main([str(tmp_path / "case.npz")]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--heads", "3"], "error: --heads 3: does not divide --hidden 16; "),
        (["--batch", "0"], "error: --batch 0: must be at least 1; "),
        (["--seq", "18"], "error: --seq 18: is not divisible by --patch-stride 4; "),
        (["--trunk", "hybird"], "error: --trunk hybird: no such trunk; "),
        (["--patch-stride", "1", "--text", "exact"], "error: --text exact: needs two bytes a slot; "),
        (["--seed", "-1"], "error: --seed -1: must be at least 0; "),
    ],
)
def test_making_a_case_of_no_model_is_refused(
    tmp_path: Path, arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert make_golden([str(tmp_path / "case.npz"), *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith(complaint) and told.count("\n") == 1
    assert not (tmp_path / "case.npz").exists()


def test_command_line() -> None:
    command = [sys.executable, str(TOOL)]
    passed = subprocess.run([*command, str(OWN / "dense.npz")], capture_output=True, text=True, check=False)
    assert passed.returncode == 0 and passed.stdout.splitlines()[-1].startswith("PASS"), passed.stderr
    nothing = subprocess.run(command, capture_output=True, text=True, check=False)
    assert nothing.returncode == 2 and "Traceback" not in nothing.stderr
