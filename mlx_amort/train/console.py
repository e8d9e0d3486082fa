"""What a run prints: a header, one line that moves (plain lines where there is no terminal), a summary."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TextIO

from mlx_amort.amounts import format_duration, format_size
from mlx_amort.command_line import command
from mlx_amort.config.model import Trunk
from mlx_amort.errors import printable
from mlx_amort.streams import MovingLine, write
from mlx_amort.train.header import header_lines
from mlx_amort.train.metrics import StepRow, ValidationRow, is_timed
from mlx_amort.train.pace import Change, Forecast, Pace
from mlx_amort.train.run import Run
from mlx_amort.train.summary import Summary
from mlx_amort.train.summary_lines import summary_lines
from mlx_amort.train.validation_budget import bytes_to_validate

SECONDS_BETWEEN_LINES = 5.0
RECENT_STEPS = 16
# Kernels that MLX's CPU backend compiles for the steps of a trunk in float32, counted once (mlx 0.32.4), and for Muon.
_KERNELS: dict[Trunk, int] = {"dense": 42, "patched": 50, "recurrent": 65, "hybrid": 78}
_KERNELS_OF_MUON = 14


class Console:
    """Prints progress to one stream and the outcome to another.

    A stream that was closed (a pipe to head) or is full falls silent; training does not die of it.
    quiet: of progress only what went wrong. json: the outcome is one JSON object.
    """

    def __init__(
        self, progress: TextIO, outcome: TextIO, is_quiet: bool = False, as_json: bool = False
    ) -> None:
        self._outcome = outcome
        self._is_quiet = is_quiet
        self._as_json = as_json
        self._moving = MovingLine(progress, SECONDS_BETWEEN_LINES)
        self._waiting: str | None = None
        self._recent: deque[StepRow] = deque(maxlen=RECENT_STEPS)
        self._last_step = 0
        self._compiling, self._about_kernels = "", 0
        self._unit = "byte"

    def say(self, text: str) -> None:
        """Print a line."""
        self._line(text)

    def header(self, run: Run, last_step: int, pace: Pace) -> None:
        """Say what was resolved, what is forecast, and that the first step takes longer than the others."""
        self._last_step, self._unit = last_step, run.unit
        for note in filter(None, (run.lock_note, run.checkpoint_note)):
            self.note(f"note        {note}")
        for line in header_lines(run):
            self._line(line)
        if run.state.step < last_step:
            for line in forecast_lines(run, last_step, pace):
                self._line(line)
        self._line("")
        if run.state.step < last_step:
            self._moving.hurry()
            self._compiling = f"step {run.state.step:,}/{last_step:,}  compiling"
            muon = _KERNELS_OF_MUON if run.config.optimizer.name == "muon" else 0
            self._about_kernels = _KERNELS[run.config.model.trunk] + muon
            self.progress(self._compiling)
            self._moving.hurry()

    def compiling(self, kernels: int) -> None:
        """Show how many kernels are ready; how many there will be is known only about."""
        of = f" of about {self._about_kernels}" if kernels < self._about_kernels else ""
        self.progress(f"{self._compiling} kernel {kernels}{of}")

    def step(self, row: StepRow) -> None:
        """Show a step that was taken."""
        self._recent.append(row)
        self.progress(step_line(self._recent, self._last_step, self._unit))

    def pace_changed(self, change: Change, run: Run, pace: Pace) -> None:
        """Show the forecast that the first steps made, or that the steps leave it, or keep to it again."""
        assert pace.forecast is not None
        if change == "forecast":
            if run.state.step == self._last_step:
                return
            for line in forecast_lines(run, self._last_step, pace):
                self._line(line)
        elif change == "left":
            self._line(f"step {run.state.step:,}  {pace.forecast.warn(pace.recent_s)}")
            if run.state.step < self._last_step:
                now = dataclasses.replace(pace.forecast, step_s=pace.recent_s)
                self._line(f"end         now {_end(run, self._last_step, now)}")
        else:
            self._line(f"step {run.state.step:,}  steps take {pace.recent_s:.4g} s, as predicted again")

    def steps_ended(self) -> None:
        """Leave the line of the last step standing."""
        if self._waiting is not None:
            self._line(self._waiting)

    def progress(self, text: str) -> None:
        """Show how far something is: at once on a terminal, else at most every few seconds."""
        if self._is_quiet:
            return
        self._waiting = None if self._moving.show(text) else text

    def validated(self, row: ValidationRow, held_out: int) -> None:
        """Report a validation."""
        part = "all" if row["whole"] else "the first"
        bits = "not finite" if row["val_bits"] is None else f"{row['val_bits']:.4f} bits per {self._unit}"
        of = "" if row["whole"] else f" of {held_out:,}"
        over = f"{part} {row['val_bytes']:,} held-out {self._unit}s{of}"
        self._line(f"step {row['step']:,}  validation {bits} over {over}")

    def skipped(self, row: StepRow) -> None:
        """Report a step that was not applied."""
        what = "loss" if row["loss_bits"] is None else "gradient"
        self.note(f"step {row['step']:,} skipped: its {what} is not finite; weights are as before")

    def note(self, text: str) -> None:
        """Say something that matters even to who asked for quiet."""
        self._line(text, is_important=True)

    def summary(self, summary: Summary) -> None:
        """Print the outcome."""
        self._moving.clear()
        if self._as_json:
            write(self._outcome, json.dumps(summary.to_record(), indent=2) + "\n")
        else:
            write(self._outcome, "".join(f"{printable(line)}\n" for line in summary_lines(summary)))

    def _line(self, text: str, is_important: bool = False) -> None:
        if self._is_quiet and not is_important:
            return
        self._moving.stay(printable(text))
        self._waiting = None


def step_line(recent: Sequence[StepRow], last_step: int, unit: str = "byte") -> str:
    """One step's line: bits per byte (or id) are the mean of the recent steps, the rate that of their median.

    Until a step is taken that compiles nothing, nothing is known of the rate.
    """
    row = recent[-1]
    finite = [earlier["loss_bits"] for earlier in recent if earlier["loss_bits"] is not None]
    bits = f"{statistics.fmean(finite):.3f}" if finite else "not finite"
    timed_s = [earlier["step_s"] for earlier in recent if is_timed(earlier)]
    pace = ""
    if timed_s:
        step_s = statistics.median(timed_s)
        rate = row["bytes"] / row["step"] / step_s
        pace = f"{rate:,.0f} {unit}s/s  {format_duration((last_step - row['step']) * step_s)} left  "
    return f"step {row['step']:,}/{last_step:,}  {bits} bits per {unit}  {pace}peak {format_size(row['peak_bytes'])}"


def forecast_lines(run: Run, last_step: int, pace: Pace) -> Iterator[str]:
    """What a step will take and when the run will end, or how to learn it."""
    if pace.forecast is None:
        why = f": {pace.why_none}" if pace.why_none else ""
        yield f"forecast    after the first steps{why}; what measures one is"
        yield f"            {command('profile', '--grid', '--config', run.folder.config)}"
    else:
        yield f"forecast    {pace.forecast.describe(run.unit)}"
        if pace.forecast.warning:
            yield f"warning     {pace.forecast.warning}"
        yield f"end         {_end(run, last_step, pace.forecast)}"


def _end(run: Run, last_step: int, forecast: Forecast) -> str:
    step = run.state.step
    validation_bytes = bytes_to_validate(run.config, run.held_out, step, last_step)
    return forecast.describe_end(last_step - step, validation_bytes, datetime.now())
