"""What 0.1 wrote is read: its run loads, is resumed, evaluated and generated from as by 0.1; its profile is found.

tests/files_of_0_1 was written by 0.1 on two cores of an AMD EPYC: a run stopped at step 12 of 18, and in
expected.json and generated.bin what 0.1 itself made of it from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_amort.backend import describe_machine
from mlx_amort.config.reading import resolve
from mlx_amort.config.values import StepConfig
from mlx_amort.cost.profile_file import read_profile
from mlx_amort.cost.profile_store import is_profile_of
from mlx_amort.data.opening import open_corpora
from mlx_amort.evaluate import evaluate
from mlx_amort.generate import sample
from mlx_amort.model.byte_lm import ByteLM
from mlx_amort.train.checkpoint import load_latest, versions
from mlx_amort.train.checkpoint_folders import WEIGHTS
from mlx_amort.train.header import header_lines
from mlx_amort.train.resume import resumed_run, saved_config
from tests.train.tiny import go_on, train_quietly

FILES = Path(__file__).parents[1] / "files_of_0_1"
EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text(encoding="utf-8"))
# Six updates of a small model in another order of the same float32 sums; 1e-8 between two BLAS libraries.
REORDERED = 1e-5


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run; its corpus, which it names without a folder, is in the current one."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


def weights_sha256(file: Path) -> str:
    """A hash of the names and bits of all arrays, in the order of the names."""
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.array(weights[name]).tobytes())
    return digest.hexdigest()


def is_same_machine(run: Path) -> bool:
    """Whether this machine computes what the one did that 0.1 ran on, as far as it can be told."""
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    here = describe_machine()
    is_known_blas = here["blas"].startswith(("reference BLAS", "OpenBLAS 0.3.34"))
    is_known_machine = all(record["machine"][key] == here[key] for key in ("processor", "cores"))
    has_versions = all(record["versions"][name] == versions()[name] for name in ("mlx", "numpy"))
    return is_known_blas and is_known_machine and has_versions


def test_its_names_are_read_as_they_are_now(run: Path) -> None:
    assert saved_config(run).step.tbptt == "consecutive"
    assert load_latest(run).config.step.tbptt == "consecutive"
    assert resolve(overrides=["step.tbptt=sliding"]).step == StepConfig(tbptt="consecutive")
    assert resolve(file=run / "config.yaml").step.tbptt == "consecutive"


def test_it_is_resumed_to_where_0_1_got(run: Path) -> None:
    resumed = resumed_run(run, lambda config: config, ["test"])
    assert (resumed.state.step, resumed.changed) == (12, ())
    assert "gradient through 2 (consecutive); fp32" in "\n".join(header_lines(resumed))
    train_quietly(resumed)
    losses = {str(row["step"]): row["loss_bits"] for row in resumed.log.rows() if "loss_bits" in row}
    after = {step: loss for step, loss in losses.items() if int(step) > 12}
    assert after == pytest.approx(EXPECTED["resumed_loss_bits"], rel=REORDERED)
    validations = [row["val_bits"] for row in resumed.log.rows() if "val_bits" in row]
    assert validations[-1] == pytest.approx(EXPECTED["validation_bits"], rel=REORDERED)
    written = [run / "config.yaml", *run.glob("checkpoints/*/checkpoint.json")]
    assert len(written) == 2
    for file in written:
        assert "sliding" not in file.read_text(encoding="utf-8")


def test_bit_for_bit(run: Path) -> None:
    if not is_same_machine(run):
        pytest.skip("another machine or other libraries: resuming is compared within a tolerance only")
    go_on(run)
    found = weights_sha256(run / "checkpoints" / "step-00000018" / WEIGHTS)
    assert found in EXPECTED["weights_sha256"].values()


def test_it_is_evaluated_as_by_0_1(run: Path) -> None:
    loaded = load_latest(run)
    model = ByteLM(loaded.config.model, loaded.config.step.precision)
    found = evaluate(model, loaded.state.weights, open_corpora(loaded.config.data).held_out)
    assert found.is_whole
    assert found.bytes == EXPECTED["evaluated_bytes"]
    assert found.bits_per_byte == pytest.approx(EXPECTED["evaluated_bits_per_byte"], rel=REORDERED)


def test_it_writes_what_0_1_wrote(run: Path) -> None:
    loaded = load_latest(run)
    model = ByteLM(loaded.config.model, loaded.config.step.precision)
    drawn = bytes(sample(model, loaded.state.weights, b"The ", 40, temperature=0.8, top_k=0, seed=3))
    assert drawn == Path("generated.bin").read_bytes()


def test_its_profile_is_one_of_the_same_model() -> None:
    profile = read_profile(FILES / "profile")
    settings = ["model.layers=1", "model.hidden=32", "model.ffn=64", "model.heads=2", "model.seq=64"]
    config = resolve("demo", overrides=settings)
    assert is_profile_of(profile, config, profile.machine)
    last = replace(config, step=replace(config.step, tbptt="last"))
    assert not is_profile_of(profile, last, profile.machine)
