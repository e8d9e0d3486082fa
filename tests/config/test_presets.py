"""Presets: the published counts, the published recipe, and one owner for every parameter."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mlx_amort.config.presets
from mlx_amort.config.presets import preset_names
from mlx_amort.config.reading import dump, from_dict, resolve
from mlx_amort.config.yaml_text import read_yaml
from mlx_amort.errors import UserError
from mlx_amort.optim.partition import owners

COUNTS = {
    ("veritate_10m", "dense"): 10_081_600,
    ("veritate_10m", "recurrent"): 10_952_384,
    ("veritate_10m", "patched"): 15_040_320,
    ("veritate_10m", "hybrid"): 15_911_104,
    ("veritate_80m", "dense"): 85_936_896,
    ("veritate_80m", "hybrid"): 121_751_184,
    ("veritate_200m", "dense"): 202_671_104,
    ("veritate_200m", "hybrid"): 270_510_336,
    ("veritate_400m", "dense"): 473_560_320,
    ("veritate_400m", "hybrid"): 592_848_096,
    ("veritate_800m", "dense"): 794_777_088,
    ("veritate_800m", "hybrid"): 976_039_840,
    ("veritate_1b3", "dense"): 1_210_681_344,
    ("veritate_1b3", "hybrid"): 1_514_591_616,
    ("huge", "dense"): 9_574_656,
    ("mega", "dense"): 76_177_920,
    ("behemoth", "dense"): 404_030_464,
    ("titan", "dense"): 1_361_069_568,
}


@pytest.mark.parametrize(("preset", "trunk"), COUNTS)
def test_published_counts(preset: str, trunk: str) -> None:
    assert resolve(preset, overrides=[f"model.trunk={trunk}"]).model.parameters == COUNTS[preset, trunk]


def test_mega_with_the_vocabulary_of_its_document() -> None:
    overrides = ["model.vocabulary=49152", "data.dtype=uint16"]
    assert resolve("mega", overrides=overrides).model.parameters == 101_212_672


def test_all_presets_are_there_and_keep_their_trunk() -> None:
    assert set(preset_names()) == {preset for preset, _ in COUNTS} | {"demo"}
    for preset in preset_names():
        dense = preset in ("huge", "mega", "behemoth", "titan")
        assert resolve(preset).model.trunk == ("dense" if dense else "hybrid")


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_resolves_has_a_length_and_survives_a_dump(preset: str, tmp_path: Path) -> None:
    config = resolve(preset)
    assert config.total_steps > 0
    (tmp_path / "config.yaml").write_text(dump(config), encoding="utf-8")
    assert from_dict(read_yaml(tmp_path / "config.yaml")) == config


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("preset", preset_names())
def test_every_parameter_has_one_owner(preset: str, optimizer: str) -> None:
    shapes = resolve(preset).model.parameter_shapes()
    owned = owners(shapes, optimizer)
    assert owned.keys() == shapes.keys()
    assert set(owned.values()) == ({"muon", "adamw"} if optimizer == "muon" else {"adamw"})


def test_the_published_recipe_of_the_270m_run() -> None:
    config = resolve("veritate_200m")
    step, schedule, optimizer = config.step, config.schedule, config.optimizer
    assert (step.batch, step.chunks, step.window, config.bytes_per_step) == (24, 4, 2, 98_304)
    assert (optimizer.name, optimizer.weight_decay, optimizer.clip_norm) == ("muon", 0.1, 1.0)
    assert (schedule.name, schedule.base_lr, schedule.decay_fraction) == ("wsd", 3e-4, 0.2)
    assert schedule.final_lr == pytest.approx(3e-5)
    assert (config.run.bytes, config.total_steps) == (2_006_000_000, 20_406)
    smaller = resolve("veritate_80m").step
    assert (smaller.batch, smaller.chunks, smaller.window) == (12, 2, 2)


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="preset veritate_200: no such preset; did you mean 'veritate_200m'"):
        resolve("veritate_200")


def test_presets_beside_the_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "shipped.yaml").write_text("model:\n  layers: 3\n", encoding="utf-8")
    monkeypatch.setattr(mlx_amort.config.presets, "__file__", str(tmp_path / "config" / "presets.py"))
    assert preset_names() == ("shipped",)
    assert resolve("shipped").model.layers == 3


def test_the_wheel_carries_the_presets(tmp_path: Path) -> None:
    pytest.importorskip(
        "hatchling", reason="builds a wheel without the network only where hatchling is installed"
    )
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ""})
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"mlx_amort/presets/{preset}.yaml" for preset in preset_names()} <= set(names)
    assert "mlx_amort/py.typed" in names
