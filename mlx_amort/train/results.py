"""What a run shows for itself: validations, the plot, the sample, the summary."""

from __future__ import annotations

import statistics
import time

from mlx_amort.data.validation import validation_targets
from mlx_amort.errors import UserError
from mlx_amort.evaluate import evaluate
from mlx_amort.generate import sample
from mlx_amort.train.checkpoint import complete_checkpoints
from mlx_amort.train.console import Console
from mlx_amort.train.interrupt import Interrupt
from mlx_amort.train.metrics import Row, finite_or_none
from mlx_amort.train.pace import Pace
from mlx_amort.train.run import Run
from mlx_amort.train.summary import Ending, Summary
from mlx_amort.train.validation_budget import amounts_at_end, most_bytes

SECONDS_BETWEEN_PLOTS = 30.0
LAST_STEPS = 20


class _Interrupted(Exception):
    """Carries an interrupt out of a validation under way."""


class Results:
    """Validates, draws and samples for one run, and remembers what came of it."""

    def __init__(self, run: Run, console: Console, interrupt: Interrupt, pace: Pace) -> None:
        self.run = run
        self.console = console
        self.interrupt = interrupt
        self.pace = pace
        self.sample: bytes | None = None
        self._drawn_at = time.monotonic()
        self._has_noted_picture = False
        self._first_step = run.state.step

    def validate(self) -> None:
        """Log bits per byte over the first of what is held out."""
        self._validate(most_bytes(self.run))

    @property
    def is_recorded(self) -> bool:
        """Whether the run is at its end and all that its end leaves is there."""
        run = self.run
        has_sample = run.config.run.sample_bytes == 0 or run.folder.sample.exists()
        return run.state.step >= run.config.total_steps and has_sample and not self._left_to_validate()

    def recall(self) -> None:
        """Take the sample that an earlier session wrote for this one's."""
        if self.run.config.run.sample_bytes and self.run.folder.sample.exists():
            self.sample = self.run.folder.sample.read_bytes()

    def validate_at_end(self) -> None:
        """Log bits per byte over all that is held out, or much of it; figures of the same state stand."""
        for most in self._left_to_validate():
            self._validate(most)

    def write_sample(self) -> None:
        """Let the model go on from `run.sample_prompt`, into sample.txt; say so when it cannot."""
        run, settings = self.run, self.run.config.run
        if self.interrupt.is_set or settings.sample_bytes == 0:
            return
        prompt = settings.sample_prompt.encode()
        written = bytearray(prompt)
        try:
            bytes_drawn = sample(
                run.model,
                run.state.weights,
                prompt,
                settings.sample_bytes,
                settings.sample_temperature,
                0,
                settings.seed,
            )
            for count, byte in enumerate(bytes_drawn, start=1):
                written.append(byte)
                self.console.progress(f"sample  {count:,} of {settings.sample_bytes:,} bytes")
                if self.interrupt.is_set:
                    break
        except UserError as error:
            self.console.note(f"no sample: {error}")
            return
        run.folder.sample.write_bytes(written)
        self.sample = bytes(written)

    def draw(self) -> None:
        """Draw loss and rate from the log; a picture that cannot be drawn is noted once and ends no run."""
        try:
            self._draw()
        except (ImportError, OSError, RuntimeError, UserError, ValueError) as error:
            if not self._has_noted_picture:
                self.console.note(f"no picture {self.run.folder.plot}: {error}; the run goes on without it")
            self._has_noted_picture = True
        self._drawn_at = time.monotonic()

    def _draw(self) -> None:
        # Loading matplotlib takes longer than many steps of a small model.
        from mlx_amort.plots import describe_origin, loss_and_rate

        run, rows = self.run, self.run.log.rows()
        if rows:
            machine = run.machine
            loss_and_rate(
                rows,
                run.folder.plot,
                zlib_bits=run.zlib_bits,
                predicted_step_s=self.pace.predicted_s,
                unit=run.unit,
                title=describe_origin(
                    f"{run.config.preset}, {run.config.model.parameters:,} parameters",
                    f"{machine['device_name']}, {machine['cores']} cores, {machine['backend']}",
                ),
                resumed_after=[resumed["step"] for resumed in run.folder.read_record().get("resumed", [])],
            )

    def draw_now_and_then(self) -> None:
        """Draw when the last picture is old enough for drawing not to slow the run."""
        if time.monotonic() - self._drawn_at > SECONDS_BETWEEN_PLOTS:
            self.draw()

    def summarize(self, ending: Ending) -> Summary:
        """Add up what the run has logged and saved."""
        run, steps = self.run, [row for row in self.run.log.rows() if "loss_bits" in row]
        exit_codes = {"complete": 0, "stopped": 0, "diverged": 1}
        applied = [row["loss_bits"] for row in steps if row["applied"]][-LAST_STEPS:]
        median_s = statistics.median(row["step_s"] for row in steps) if steps else None
        unknown: Row = {"step": None, "val_bits": None, "val_bytes": None, "whole": False}
        validation = next(reversed(run.log.validations()), unknown)
        saved = complete_checkpoints(run.folder.path)
        return Summary(
            ending=ending,
            exit_code=self.interrupt.exit_code if ending == "interrupted" else exit_codes[ending],
            run=str(run.folder.path),
            preset=run.config.preset,
            parameters=run.config.model.parameters,
            step=run.state.step,
            total_steps=run.config.total_steps,
            bytes=run.state.step * run.config.bytes_per_step,
            unit=run.unit,
            train_bits=statistics.fmean(applied) if applied else None,
            val_step=validation["step"],
            val_bits=validation["val_bits"],
            val_bytes=validation["val_bytes"],
            val_is_whole=validation["whole"],
            zlib_bits=run.zlib_bits,
            bytes_per_s=run.config.bytes_per_step / median_s if median_s else None,
            train_s=sum(row["step_s"] for row in steps),
            session_s=sum(row["step_s"] for row in steps if row["step"] > self._first_step),
            predicted_step_s=self.pace.predicted_s,
            predicted_from=self.pace.forecast.source if self.pace.forecast else None,
            is_from_steps=self.pace.forecast is not None and self.pace.forecast.is_from_steps,
            measured_step_s=self.pace.mean_s,
            median_step_s=self.pace.median_s,
            peak_bytes=max((row["peak_bytes"] for row in steps), default=None),
            refused_steps=sum(not row["applied"] for row in steps),
            checkpoint=str(saved[-1]) if saved else None,
            plot=str(run.folder.plot) if run.folder.plot.exists() else None,
            sample_file=str(run.folder.sample) if self.sample is not None else None,
            sample=self.sample.decode("utf-8", errors="replace") if self.sample is not None else None,
        )

    def _left_to_validate(self) -> list[int]:
        run = self.run
        logged = [row for row in run.log.validations() if row["step"] == run.state.step]
        is_whole = any(row["whole"] for row in logged)
        return [] if is_whole else amounts_at_end(run, run.state.step)[len(logged) :]

    def _validate(self, max_bytes: int) -> None:
        run = self.run
        try:
            found = evaluate(
                run.model, run.state.weights, run.corpora, max_bytes=max_bytes, progress=self._progress
            )
        except _Interrupted:
            return
        row = {
            "step": run.state.step,
            "bytes": run.state.step * run.config.bytes_per_step,
            "val_bits": finite_or_none(found.bits_per_byte),
            "val_bytes": found.bytes,
            "whole": found.is_whole,
        }
        run.log.append(row)
        self.console.validated(row, validation_targets(run.corpora))

    def _progress(self, done: int, total: int) -> None:
        if self.interrupt.is_set:
            raise _Interrupted
        self.console.progress(f"validation  {done:,} of {total:,} chunks")
