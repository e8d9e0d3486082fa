"""Records of profiles and logs of runs, made up by formulas; what a profile's record holds is fitted here by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

Record = dict[str, Any]

SEQ = 64
C0_S = {"muon": 0.35, "adamw": 0.12}
C1_S_PER_BYTE = 2.3e-5
WINDOW_S = 0.02
T_QUANTILE = 2.0


def profile(noise: float = 0.0, window_s: float = WINDOW_S, count: int = 40, seed: int = 0) -> Record:
    """A fitted profile of `count` configurations, by default 20 for each optimizer, with one that was chosen."""
    random = np.random.default_rng(seed)
    sizes = [(batch, chunks) for chunks in (1, 2, 4, 8) for batch in (1, 3, 8, 24, 64)]
    rows = [row_of(batch, chunks, name, window_s) for name in C0_S for batch, chunks in sizes]
    for row in rows:
        row["step_s"] *= 1 + noise * random.standard_normal()
    return fitted(rows[:count], "window" if window_s else None)


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
        "windows_per_step": -(-chunks // 2),
        "step_s": step_s,
        "peak_bytes": 10**8 + 2 * 10**7 * batch * min(chunks, 2),
        "status": "ok",
    }


def fitted(rows: list[Record], unit: str | None = None, form: str = "affine") -> Record:
    """A record of rows with their cost model, a model and a machine, and the row in the middle chosen."""
    chosen = {**rows[len(rows) // 2], "step_s": None}
    return {
        "measurements": rows,
        "cost_model": cost_model_of(rows, unit, form),
        "holdout": [],
        "chosen": chosen,
        "model": {"preset": "demo", "parameters": 1234567},
        "machine": {"processor": "a processor", "cores": 2, "backend": "cpu"},
    }


def design_of(rows: Sequence[Record], unit: str | None) -> NDArray[np.float64]:
    """Columns of relative least squares: one for each optimizer, T, and units per step, all over the time."""
    columns = [[float(row["optimizer"] == name) for row in rows] for name in optimizers_of(rows)]
    columns.append([row["bytes_per_step"] for row in rows])
    if unit:
        columns.append([row["windows_per_step"] for row in rows])
    step_s = np.array([row["step_s"] for row in rows], dtype=np.float64)
    return np.asarray(np.array(columns, dtype=np.float64).T / step_s[:, None], dtype=np.float64)


def optimizers_of(rows: Sequence[Record]) -> list[str]:
    """The optimizers of rows, in order."""
    return list(dict.fromkeys(row["optimizer"] for row in rows))


def cost_model_of(rows: Sequence[Record], unit: str | None, form: str) -> Record:
    """The cost model of a profile's record: relative least squares, with T_QUANTILE standard errors as intervals."""
    design, names = design_of(rows, unit), optimizers_of(rows)
    found = np.linalg.lstsq(design, np.ones(len(rows)), rcond=None)[0]
    errors = design @ found - 1
    scale = np.sqrt(errors @ errors / (len(rows) - len(found)))
    halves = T_QUANTILE * scale * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    intervals = [[value - half, value + half] for value, half in zip(found, halves, strict=True)]
    c1, place = found[len(names)], len(names)
    points = [
        {
            **row,
            "measured_s": row["step_s"],
            "predicted_s": row["step_s"] * (1 + error),
            "relative_error": error,
            "leave_one_out_error": 1.2 * error,
        }
        for row, error in zip(rows, errors, strict=True)
    ]
    third = {"unit": unit, "s": found[-1], "interval_s": intervals[-1]} if unit else None
    return {
        "c0_s": dict(zip(names, found, strict=False)),
        "c1_us_per_byte": 1e6 * c1,
        "third_term": third,
        "ceiling_bytes_per_s": 1 / c1 if c1 > 0 and form != "rejected" else None,
        "max_relative_error": float(np.abs(errors).max()),
        "leave_one_out_error": 1.2 * float(np.abs(errors).max()),
        "confidence": 0.95,
        "intervals": {
            "c0_s": dict(zip(names, intervals, strict=False)),
            "c1_us_per_byte": [1e6 * bound for bound in intervals[place]],
        },
        "form": form,
        "is_doubtful": False,
        "points": points,
        "slower_visits": [],
        "kept_out": [],
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
