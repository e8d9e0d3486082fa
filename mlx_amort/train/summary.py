"""What a run came to, as plain values: printed at its end, or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ending = Literal["complete", "stopped", "interrupted", "diverged"]


@dataclass(frozen=True)
class Summary:
    """The outcome of a run so far. None: not measured.

    ending: complete; stopped (by --stop-after); interrupted (by a signal); diverged.
    train_bits: mean of the last 20 steps. val_*: of the newest validation; val_is_whole: it read all of the
    validation part. bytes_per_s: of the median step. train_s: sum over all steps, of earlier sessions too.
    refused_steps: steps not applied because loss or gradient was not finite.
    """

    ending: Ending
    exit_code: int
    run: str
    preset: str | None
    parameters: int
    step: int
    total_steps: int
    bytes: int
    train_bits: float | None
    val_step: int | None
    val_bits: float | None
    val_bytes: int | None
    val_is_whole: bool
    zlib_bits: float
    bytes_per_s: float | None
    train_s: float
    peak_bytes: int | None
    refused_steps: int
    checkpoint: str | None
    plot: str | None
    sample_file: str | None
    sample: str | None
