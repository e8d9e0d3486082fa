"""The estimates of a profile's rows are those of the configurations that its record describes."""

from __future__ import annotations

import json
from pathlib import Path

from mlx_amort.config.reading import resolve
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.cost.memory.profile_estimates import estimates_of
from mlx_amort.cost.profile import Profile
from mlx_amort.cost.profile_file import read_profile

PROFILE = Path(__file__).parents[2] / "files_of_0_1" / "profile" / "profile.json"


def test_every_row_of_a_profile_has_the_estimate_of_its_configuration() -> None:
    record = json.loads(PROFILE.read_text(encoding="utf-8"))
    found = estimates_of(read_profile(PROFILE))
    assert len(found) == len(record["rows"]) > 1
    for row, own in zip(record["rows"], found, strict=True):
        sizes = ("trunk", "layers", "hidden", "ffn", "heads", "patch_stride", "boundary_rule")
        overrides = [f"model.{key}={record['model'][key]}" for key in sizes]
        overrides += [f"model.seq={row['seq']}", f"optimizer.name={row['optimizer']}"]
        overrides += [f"step.{key}={row[key]}" for key in ("batch", "chunks", "window", "accum", "precision")]
        config = resolve(record["model"]["preset"], overrides=overrides)
        assert own == estimate(config, record["machine"]["backend"]).peak_bytes
        assert row["peak_bytes"] is None or 0.9 < own / row["peak_bytes"] < 1.1


def test_a_csv_has_none() -> None:
    assert estimates_of(Profile([Measurement(Configuration(4, 1, 8, "muon"))])) == [None]
