"""Runs and CSVs as they lie on a disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from mlx_amort.config.values import Config
from mlx_amort.train.run_folder import RunFolder


def write_csv(path: Path, points: dict[float, float]) -> Path:
    lines = [f"{seen:.0f},{bits}" for seen, bits in points.items()]
    path.write_text("\n".join(["bytes,val_bits", *lines]) + "\n", encoding="utf-8")
    return path


def write_run(
    folder: Path,
    config: Config,
    bits: Sequence[float | None],
    val_bytes: int = 500,
    fingerprint: str = "f",
    step_s: float = 0.5,
) -> Path:
    """A run's folder with a validation after every second step."""
    folder.mkdir()
    RunFolder(folder).write(config, {"corpora": [{"name": "t", "units": 9, "fingerprint": fingerprint}]})
    rows: list[dict[str, object]] = []
    for number, found in enumerate(bits, start=1):
        for step in (2 * number - 1, 2 * number):
            seen = step * config.bytes_per_step
            rows.append(
                {
                    "step": step,
                    "bytes": seen,
                    "loss_bits": 2.0,
                    "step_s": step_s,
                    "applied": True,
                    "peak_bytes": 9,
                }
            )
        if found is not None:
            rows.append(
                {"step": step, "bytes": seen, "val_bits": found, "val_bytes": val_bytes, "whole": False}
            )
    RunFolder(folder).metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def with_seed(config: Config, seed: int) -> Config:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, seed=seed))


def append_rows(folder: Path, *rows: dict[str, object]) -> Path:
    with RunFolder(folder).metrics.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def validation(step: int, seen: int, bits: float, val_bytes: int, whole: bool) -> dict[str, object]:
    return {"step": step, "bytes": seen, "val_bits": bits, "val_bytes": val_bytes, "whole": whole}
