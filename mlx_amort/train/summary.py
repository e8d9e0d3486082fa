"""What a run came to, as plain values: printed at its end, or as JSON."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Any, Literal

from mlx_amort.optim.schedules import learning_rate
from mlx_amort.train.checkpoint_folders import BEST, complete_checkpoints
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.metrics import StepRow, ValidationRow, is_timed, over_the_same_text
from mlx_amort.train.pace import Pace
from mlx_amort.train.run import Run

Ending = Literal["complete", "stopped", "interrupted", "diverged"]

LAST_STEPS = 20


@dataclass(frozen=True)
class Quality:
    """Bits per byte. train_bits: mean of the last 20 steps. val_*: of the newest validation; val_is_whole: it read all
    of the validation part. best_val_*: of the best one over the same text as the newest that was repeated, and
    last_val_bits the newest over that text.
    """

    train_bits: float | None
    val_step: int | None
    val_bits: float | None
    val_bytes: int | None
    val_is_whole: bool
    best_val_step: int | None
    best_val_bits: float | None
    last_val_bits: float | None
    zlib_bits: float


@dataclass(frozen=True)
class Speed:
    """bytes_per_s: of the median step. train_s: sum over all steps, of earlier sessions too; session_s: over the steps
    of this one. predicted_step_s: by what predicted_from names; is_from_steps: by the run itself.
    bytes_per_s, measured_step_s and median_step_s are of steps that compiled nothing and held no nap, the last two
    of this session's.
    """

    bytes_per_s: float | None
    train_s: float
    session_s: float
    predicted_step_s: float | None
    predicted_from: str | None
    is_from_steps: bool
    measured_step_s: float | None
    median_step_s: float | None


@dataclass(frozen=True)
class Memory:
    """peak_bytes: of all steps; session_peak_bytes: of this session's, which estimated_peak_bytes
    (cost/memory/estimate.py) is held against; cache_bytes: freed buffers that MLX keeps beside the peak.
    """

    peak_bytes: int | None
    session_peak_bytes: int | None
    estimated_peak_bytes: int | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True)
class Files:
    """What the run has left. best_checkpoint: of the best validation (`run.keep_best`)."""

    checkpoint: str | None
    best_checkpoint: str | None
    plot: str | None
    sample_file: str | None
    sample: str | None


@dataclass(frozen=True)
class Summary:
    """The outcome of a run so far. None: not measured.

    unit: what `bytes` and bits are counted in, byte or id.
    ending: complete; stopped (by --stop-after); interrupted (by a signal); diverged.
    skipped_steps: not applied because loss or gradient was not finite. last_lr, next_lr: the rate of the last step, and
    of the one after it in a run of twice the length.
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
    skipped_steps: int
    last_lr: float | None
    next_lr: float
    quality: Quality
    speed: Speed
    memory: Memory
    files: Files

    def to_record(self) -> dict[str, Any]:
        """Plain values, the groups' keys beside the others: what `train --json` prints."""
        record: dict[str, Any] = {}
        for key, value in dataclasses.asdict(self).items():
            record.update(value if isinstance(value, dict) else {key: value})
        return record


@dataclass(frozen=True)
class Session:
    """What of this session the log does not say."""

    pace: Pace
    first_step: int
    interrupt: Interrupt


def summarize(run: Run, session: Session, ending: Ending) -> Summary:
    """Add up what the run has logged and saved."""
    config, steps = run.config, run.log.steps()
    exit_codes = {"complete": 0, "stopped": 0, "diverged": 1}
    double = 2 * config.total_steps
    return Summary(
        ending=ending,
        exit_code=session.interrupt.exit_code if ending == "interrupted" else exit_codes[ending],
        run=str(run.folder.path),
        preset=config.preset,
        parameters=config.model.parameters,
        step=run.state.step,
        total_steps=config.total_steps,
        bytes=run.state.step * config.bytes_per_step,
        unit=run.unit,
        skipped_steps=sum(not row["applied"] for row in steps),
        last_lr=steps[-1].get("lr") if steps else None,
        next_lr=learning_rate(run.state.step, double, config.schedule),
        quality=_quality(steps, run.log.validations(), run.zlib_bits),
        speed=_speed(steps, session, config.bytes_per_step),
        memory=_memory(steps, session),
        files=_files(run, ending),
    )


def _quality(steps: list[StepRow], validations: list[ValidationRow], zlib_bits: float) -> Quality:
    applied = [row["loss_bits"] for row in steps if row["applied"] and row["loss_bits"] is not None][
        -LAST_STEPS:
    ]
    train_bits = statistics.fmean(applied) if applied else None
    if not validations:
        return Quality(train_bits, None, None, None, False, None, None, None, zlib_bits)
    newest = validations[-1]
    # At the end the same text as on the way is read first, and then more: only the former can be compared.
    own = [row for row in validations if row["step"] == newest["step"]]
    compared = max((over_the_same_text(row, validations) for row in own), key=len)
    last = next((row for row in own if row in compared), None)
    best = min(compared, key=lambda row: row["val_bits"] or 0.0, default=None)
    return Quality(
        train_bits=train_bits,
        val_step=newest["step"],
        val_bits=newest["val_bits"],
        val_bytes=newest["val_bytes"],
        val_is_whole=newest["whole"],
        best_val_step=best["step"] if best else None,
        best_val_bits=best["val_bits"] if best else None,
        last_val_bits=last["val_bits"] if last else None,
        zlib_bits=zlib_bits,
    )


def _speed(steps: list[StepRow], session: Session, bytes_per_step: int) -> Speed:
    timed_s = [row["step_s"] for row in steps if is_timed(row)]
    median_s = statistics.median(timed_s) if timed_s else None
    forecast = session.pace.forecast
    return Speed(
        bytes_per_s=bytes_per_step / median_s if median_s else None,
        train_s=sum(row["step_s"] for row in steps),
        session_s=sum(row["step_s"] for row in steps if row["step"] > session.first_step),
        predicted_step_s=session.pace.predicted_s,
        predicted_from=forecast.source if forecast else None,
        is_from_steps=forecast is not None and forecast.is_from_steps,
        measured_step_s=session.pace.mean_s,
        median_step_s=session.pace.median_s,
    )


def _memory(steps: list[StepRow], session: Session) -> Memory:
    own = [row["peak_bytes"] for row in steps if row["step"] > session.first_step]
    return Memory(
        peak_bytes=max((row["peak_bytes"] for row in steps), default=None),
        session_peak_bytes=max(own, default=None),
    )


def _files(run: Run, ending: Ending) -> Files:
    folder = run.folder
    saved = complete_checkpoints(folder.path)
    best = complete_checkpoints(folder.path, BEST)
    has_sample = (
        folder.sample.exists()
        and run.config.run.sample_bytes > 0
        and run.state.step >= run.config.total_steps
        and ending != "diverged"
    )
    return Files(
        checkpoint=str(saved[-1]) if saved else None,
        best_checkpoint=str(best[-1]) if best else None,
        plot=str(folder.plot) if folder.plot.exists() else None,
        sample_file=str(folder.sample) if has_sample else None,
        sample=folder.sample.read_bytes().decode("utf-8", errors="replace") if has_sample else None,
    )
