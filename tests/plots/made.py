"""Records of profiles and logs of runs, made up by formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mlx_amort.cost.configuration import Measurement
from mlx_amort.cost.fields import Fields
from mlx_amort.cost.time.fitting import fit_rows

Record = dict[str, Any]

SEQ = 64
C0_S = {"muon": 0.35, "adamw": 0.12}
C1_S_PER_BYTE = 2.3e-5
WINDOW_S = 0.02


def profile(noise: float = 0.0, window_s: float = WINDOW_S, count: int = 40, seed: int = 0) -> Record:
    """A fitted profile of `count` configurations, by default 20 for each optimizer, with one that was chosen."""
    random = np.random.default_rng(seed)
    sizes = [(batch, chunks) for chunks in (1, 2, 4, 8) for batch in (1, 3, 8, 24, 64)]
    rows = [row_of(batch, chunks, name, window_s) for name in C0_S for batch, chunks in sizes]
    for row in rows:
        row["step_s"] *= 1 + noise * random.standard_normal()
        row["samples_s"] = [row["step_s"]]
    return fitted(rows[:count])


def row_of(batch: int, chunks: int, optimizer: str, window_s: float = WINDOW_S) -> Record:
    """A measured row of c0 + a window's cost + c1 · T."""
    size = batch * chunks * SEQ
    step_s = C0_S[optimizer] + window_s * -(-chunks // 2) + C1_S_PER_BYTE * size
    return {
        "batch": batch,
        "chunks": chunks,
        "window": 2,
        "accum": 1,
        "seq": SEQ,
        "optimizer": optimizer,
        "precision": "fp32",
        "activation_checkpointing": False,
        "bytes_per_step": size,
        "step_s": step_s,
        "samples_s": [step_s],
        "peak_bytes": 10**8 + 2 * 10**7 * batch * min(chunks, 2),
        "status": "ok",
    }


def fitted(rows: list[Record]) -> Record:
    """A record of rows with their cost model, a model and a machine, and the row in the middle chosen."""
    chosen = {
        key: rows[len(rows) // 2][key] for key in rows[0] if key not in ("step_s", "samples_s", "peak_bytes")
    }
    return {
        "measurements": rows,
        "cost_model": fit_rows([Measurement.from_fields(Fields(row, "made")) for row in rows]).to_record(),
        "chosen": chosen,
        "model": {"preset": "demo", "parameters": 1234567},
        "machine": {"processor": "a processor", "cores": 2, "backend": "cpu"},
    }


def legend_of(figure: Figure) -> list[str]:
    """The texts of a figure's only legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def x_of(line: Line2D) -> list[float]:
    """The places of a line's points."""
    return [float(value) for value in np.asarray(line.get_xdata(), dtype=np.float64)]


def y_of(line: Line2D) -> list[float]:
    """The values of a line's points."""
    return [float(value) for value in np.asarray(line.get_ydata(), dtype=np.float64)]


def step_row(step: int, step_s: float = 0.1, bits: float | None = 3.0, **more: Any) -> Record:
    """A training row of 512 bytes per step."""
    return {"step": step, "bytes": 512 * step, "loss_bits": bits, "step_s": step_s, "applied": True, **more}


def validation_row(step: int, bits: float, val_bytes: int = 4096, whole: bool = False) -> Record:
    """A validation after a step."""
    return {"step": step, "bytes": 512 * step, "val_bits": bits, "val_bytes": val_bytes, "whole": whole}
