"""The configurations a plan may choose from: the measured ones, and those the fit predicts between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlx_amort.amounts import format_size
from mlx_amort.cost.profile_file import Row, count_windows
from mlx_amort.cost.time.cost_model import Fit
from mlx_amort.cost.time.spread import fastest_of, visits_of

# AdamW needs this many times Muon's bytes for one loss: published for a 10M model, from one seed.
PUBLISHED_TOKEN_ADVANTAGE = 1.6


@dataclass(frozen=True)
class Request:
    """What a plan is asked for; sizes in bytes, noise_scale_bytes is T_crit."""

    budget_bytes: int
    min_updates: int | None = None
    noise_scale_bytes: float | None = None
    memory_bytes: int | None = None
    prefer: str | None = None
    token_advantage: float = PUBLISHED_TOKEN_ADVANTAGE


@dataclass(frozen=True)
class Candidate:
    """One configuration and what the budget costs with it.

    step_s is the undisturbed machine's. bytes_per_s and hours, the time of the budget, count what other programs cost
    on average while the profile was measured. quality_hours is the time to the quality Muon has after the budget; with
    a noise scale, to the quality that the budget buys at T = T_crit. `refused` is empty for what may be used.
    """

    batch: int
    chunks: int
    window: int | None
    accum: int
    seq: int
    optimizer: str
    activation_checkpointing: bool
    precision: str | None
    bytes_per_step: int
    steps: int
    hours: float
    quality_hours: float
    step_s: float
    bytes_per_s: float
    ceiling_fraction: float | None
    peak_bytes: int | None
    source: str
    refused: tuple[str, ...] = ()

    @property
    def chunks_per_step(self) -> int:
        return self.accum * self.chunks

    @property
    def windows_per_step(self) -> int:
        return count_windows(self.accum, self.chunks, self.window)

    @property
    def label(self) -> str:
        accum = "" if self.accum == 1 else f"A {self.accum} "
        checkpointed = " checkpointed" if self.activation_checkpointing else ""
        return f"{accum}B {self.batch} K {self.chunks} S {self.seq} {self.optimizer}{checkpointed}"


def best_bytes_per_step(noise_scale_bytes: float, c0_s: float, c1_s_per_byte: float) -> float | None:
    """T* = sqrt(T_crit · c0 / c1), where (1 + T_crit/T)(c0 + c1 T) is least; None unless c0, c1 > 0.

    A cost per chunk or window is left out, as it need not grow with T: candidates are ranked by their times.
    Source: docs/cost_model.md, Choosing. Units: bytes.
    """
    if c0_s <= 0 or c1_s_per_byte <= 0:
        return None
    return math.sqrt(noise_scale_bytes * c0_s / c1_s_per_byte)


def merge_repeats(rows: Sequence[Row]) -> list[Row]:
    """One row a configuration: the fastest visit, as rows are fitted, with the highest peak of all."""
    merged = []
    for visits in visits_of([row for row in rows if row.is_measured]):
        peaks = [row.peak_bytes for row in visits if row.peak_bytes is not None]
        merged.append(replace(fastest_of(visits), peak_bytes=max(peaks, default=None)))
    return merged


def _candidate(
    row: Row, step_s: float, source: str, request: Request, fit: Fit, refused: Sequence[str]
) -> Candidate:
    size = row.bytes_per_step
    bytes_per_s = size / (step_s * fit.disturbance)
    # Of a law that is rejected the ceiling says nothing.
    ceiling = None if fit.is_rejected else fit.ceiling_bytes_per_s
    hours = request.budget_bytes / bytes_per_s / 3600
    advantage = request.token_advantage if row.optimizer == "adamw" else 1.0
    # Bytes to a loss are proportional to T + T_crit; at T = T_crit the budget is what it says.
    critical = request.noise_scale_bytes
    noise = 1.0 if critical is None else (size + critical) / (2.0 * critical)
    reasons = list(refused)
    steps = request.budget_bytes // size
    if steps < 1:
        reasons.append(f"one step of {size:,} bytes is more than the budget")
    elif request.min_updates is not None and request.budget_bytes < request.min_updates * size:
        reasons.append(f"{steps:,} updates are fewer than {request.min_updates:,}")
    if request.memory_bytes is not None:
        if row.peak_bytes is None:
            reasons.append("its peak memory was not measured")
        elif row.peak_bytes > request.memory_bytes:
            peak, most = format_size(row.peak_bytes), format_size(request.memory_bytes)
            reasons.append(f"its peak of {peak} is over {most}")
    if request.prefer is not None and row.optimizer != request.prefer:
        reasons.append(f"{request.prefer} is preferred")
    return Candidate(
        batch=row.batch,
        chunks=row.chunks,
        window=row.window,
        accum=row.accum,
        seq=row.seq,
        optimizer=row.optimizer,
        activation_checkpointing=row.activation_checkpointing,
        precision=row.precision,
        bytes_per_step=size,
        steps=steps,
        hours=hours,
        quality_hours=hours * advantage * noise,
        step_s=step_s,
        bytes_per_s=bytes_per_s,
        ceiling_fraction=None if ceiling is None else size / step_s / ceiling,
        peak_bytes=row.peak_bytes,
        source=source,
        refused=tuple(reasons),
    )


def measured_candidates(rows: Sequence[Row], fit: Fit, request: Request) -> list[Candidate]:
    """Candidates of measured rows, each with the reasons that refuse it."""
    candidates = []
    for row in rows:
        assert row.step_s is not None
        refused = []
        # Context and precision change what is learned: neither is traded for speed unasked.
        if row.seq != fit.setting.seq:
            refused.append(f"S {row.seq} is another context than {fit.setting.seq}")
        if row.precision != fit.setting.precision:
            refused.append(f"precision {row.precision} is not {fit.setting.precision}")
        candidates.append(_candidate(row, row.step_s, "measured", request, fit, refused))
    return candidates


def predicted_candidates(rows: Sequence[Row], fit: Fit, request: Request) -> list[Candidate]:
    """Unmeasured combinations of batches and chunks inside the measured range, timed by the fit."""
    if fit.is_rejected:
        return []
    fitted = [point.row for point in fit.points]
    measured = {(row.batch, row.chunks, row.accum, row.optimizer) for row in fitted}
    sizes = [row.bytes_per_step for row in fitted]
    largest_batch = max(row.batch for row in fitted)
    chunk_counts = sorted({row.chunks for row in fitted})
    batches = {row.batch for row in fitted}
    # The batch that just makes the updates asked for, or comes nearest to T*, is the neighbour worth knowing.
    goals = [request.budget_bytes / request.min_updates] if request.min_updates else []
    if request.noise_scale_bytes is not None:
        for c0_s in fit.c0_s.values():
            best = best_bytes_per_step(request.noise_scale_bytes, c0_s, fit.c1_s_per_byte)
            goals += [] if best is None or not math.isfinite(best) else [best]
    for chunks in chunk_counts:
        batches |= {max(1, int(goal // (fit.setting.seq * chunks))) for goal in goals}
    candidates = []
    for optimizer in fit.c0_s:
        for chunks in chunk_counts:
            for batch in sorted(batches):
                row = Row(batch, chunks, fit.setting.seq, optimizer, None, fit.setting.window)
                row = replace(row, precision=fit.setting.precision)
                row = replace(row, activation_checkpointing=fit.setting.activation_checkpointing)
                inside = min(sizes) <= row.bytes_per_step <= max(sizes) and batch <= largest_batch
                if not inside or (batch, chunks, 1, optimizer) in measured:
                    continue
                row = replace(row, peak_bytes=_peak_bound(row, rows))
                step_s = fit.predict_s(row)
                if step_s > 0:
                    candidates.append(_candidate(row, step_s, "predicted", request, fit, ()))
    return candidates


def _peak_bound(row: Row, rows: Sequence[Row]) -> int | None:
    """The least measured peak of a configuration that needs at least as much memory.

    Peak memory grows with B and with the chunks of a window, never with K or A (docs/memory.md). Recomputed, the rows
    are cut into as many pieces as divide them, so there only equal B is compared.
    """

    def window_of(other: Row) -> int:
        return min(other.window or other.chunks, other.chunks)

    peaks = [
        other.peak_bytes
        for other in rows
        if other.peak_bytes is not None
        and (other.seq, other.optimizer, other.precision) == (row.seq, row.optimizer, row.precision)
        and other.activation_checkpointing == row.activation_checkpointing
        and (other.batch == row.batch if row.activation_checkpointing else other.batch >= row.batch)
        and window_of(other) >= window_of(row)
    ]
    return min(peaks, default=None)
