"""What a run came to, as plain values: printed at its end, or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ending = Literal["complete", "stopped", "interrupted", "diverged"]


@dataclass(frozen=True)
class Summary:
    """The outcome of a run so far. None: not measured.

    unit: what `bytes` and bits are counted in, byte or id.
    ending: complete; stopped (by --stop-after); interrupted (by a signal); diverged.
    train_bits: mean of the last 20 steps. val_*: of the newest validation; val_is_whole: it read all of the
    validation part. bytes_per_s: of the median step. train_s: sum over all steps, of earlier sessions too; session_s:
    over the steps of this one.
    predicted_step_s: by what predicted_from names; is_from_steps: by the run itself.
    measured_step_s, median_step_s: mean and median of this session's steps without its first, which compiles.
    refused_steps: steps not applied because loss or gradient was not finite.
    estimated_peak_bytes: by cost/memory/estimate.py; session_peak_bytes: of this session's steps, which it is held
    against; cache_bytes: freed buffers that MLX keeps beside the peak.
    """

    ending: Ending
    exit_code: int
    run: str
    preset: str | None
    parameters: int
    step: int
    total_steps: int
    bytes: int
    unit: str
    train_bits: float | None
    val_step: int | None
    val_bits: float | None
    val_bytes: int | None
    val_is_whole: bool
    zlib_bits: float
    bytes_per_s: float | None
    train_s: float
    session_s: float
    predicted_step_s: float | None
    predicted_from: str | None
    is_from_steps: bool
    measured_step_s: float | None
    median_step_s: float | None
    peak_bytes: int | None
    refused_steps: int
    checkpoint: str | None
    plot: str | None
    sample_file: str | None
    sample: str | None
    estimated_peak_bytes: int | None = None
    session_peak_bytes: int | None = None
    cache_bytes: int | None = None
