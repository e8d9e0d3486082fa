"""The configurations a plan may choose from: the measured ones, and those the cost model predicts between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlx_amort.amounts import format_size
from mlx_amort.cost.configuration import Configuration, Measurement
from mlx_amort.cost.time.cost_model import CostModel
from mlx_amort.cost.time.spread import undisturbed_of, visits_of

# AdamW needs this many times Muon's bytes for one loss: published for a 10M model, from one seed.
PUBLISHED_TOKEN_ADVANTAGE = 1.6


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for; sizes in bytes, noise_scale_bytes is T_crit."""

    budget_bytes: int
    min_updates: int | None = None
    noise_scale_bytes: float | None = None
    memory_bytes: int | None = None
    prefer: str | None = None
    token_advantage: float = PUBLISHED_TOKEN_ADVANTAGE

    def to_record(self) -> dict[str, Any]:
        """The request as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Candidate:
    """One configuration and what the budget costs with it.

    step_s is the undisturbed machine's. bytes_per_s and hours, the time of the budget, count what other programs cost
    on average while the profile was measured. quality_hours is the time to the quality Muon has after the budget; with
    a noise scale, to the quality that the budget buys at T = T_crit. `refused` is empty for what may be used.
    """

    configuration: Configuration
    steps: int
    hours: float
    quality_hours: float
    step_s: float
    bytes_per_s: float
    ceiling_fraction: float | None
    peak_bytes: int | None
    source: str
    refused: tuple[str, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """The candidate as JSON."""
        return {
            **self.configuration.to_record(),
            "steps": self.steps,
            "hours": self.hours,
            "quality_hours": self.quality_hours,
            "step_s": self.step_s,
            "bytes_per_s": self.bytes_per_s,
            "ceiling_fraction": self.ceiling_fraction,
            "peak_bytes": self.peak_bytes,
            "source": self.source,
            "refused": list(self.refused),
        }


def best_bytes_per_step(noise_scale_bytes: float, c0_s: float, c1_s_per_byte: float) -> float | None:
    """T* = sqrt(T_crit · c0 / c1), where (1 + T_crit/T)(c0 + c1 T) is least; None unless c0, c1 > 0.

    A cost per chunk or window is left out, as it need not grow with T: candidates are ranked by their times.
    Source: docs/cost_model.md, Choosing. Units: bytes.
    """
    if c0_s <= 0 or c1_s_per_byte <= 0:
        return None
    return math.sqrt(noise_scale_bytes * c0_s / c1_s_per_byte)


def merge_repeats(rows: Sequence[Measurement]) -> list[Measurement]:
    """One measurement of each configuration: the fastest visit, which is fitted, with the highest peak of all."""
    merged = []
    for visits in visits_of([row for row in rows if row.is_measured]):
        peaks = [row.peak_bytes for row in visits if row.peak_bytes is not None]
        merged.append(replace(undisturbed_of(visits), peak_bytes=max(peaks, default=None)))
    return merged


def measured_candidates(
    rows: Sequence[Measurement], model: CostModel, request: PlanRequest
) -> list[Candidate]:
    """Candidates of measured configurations, each with the reasons that refuse it."""
    candidates = []
    for row in rows:
        assert row.step_s is not None
        refused = []
        seq, precision = row.configuration.seq, row.configuration.precision
        # Context and precision change what is learned: neither is traded for speed unasked.
        if seq != model.setting.seq:
            refused.append(f"S {seq} is another context than {model.setting.seq}")
        if precision != model.setting.precision:
            refused.append(f"precision {precision} is not {model.setting.precision}")
        candidates.append(
            _candidate(row.configuration, row.step_s, row.peak_bytes, "measured", request, model, refused)
        )
    return candidates


def predicted_candidates(
    rows: Sequence[Measurement], model: CostModel, request: PlanRequest
) -> list[Candidate]:
    """Unmeasured combinations of batches and chunks inside the measured range, timed by the cost model."""
    if model.is_rejected:
        return []
    fitted = [point.measurement.configuration for point in model.points]
    measured = {(each.batch, each.chunks, each.accum, each.optimizer) for each in fitted}
    sizes = [each.bytes_per_step for each in fitted]
    largest_batch = max(each.batch for each in fitted)
    candidates = []
    for each in _between(fitted, model, request):
        inside = min(sizes) <= each.bytes_per_step <= max(sizes) and each.batch <= largest_batch
        if not inside or (each.batch, each.chunks, 1, each.optimizer) in measured:
            continue
        step_s = model.predict_s(each)
        if step_s > 0:
            peak_bytes = _peak_bound(each, rows)
            candidates.append(_candidate(each, step_s, peak_bytes, "predicted", request, model, ()))
    return candidates


def _between(
    fitted: Sequence[Configuration], model: CostModel, request: PlanRequest
) -> Iterator[Configuration]:
    """Combinations of the fitted chunks and of the batches that were fitted or are asked for."""
    chunk_counts = sorted({each.chunks for each in fitted})
    batches = {each.batch for each in fitted}
    # The batch that just makes the updates asked for, or comes nearest to T*, is the neighbour worth knowing.
    goals = [request.budget_bytes / request.min_updates] if request.min_updates else []
    if request.noise_scale_bytes is not None:
        for c0_s in model.c0_s.values():
            best = best_bytes_per_step(request.noise_scale_bytes, c0_s, model.c1_s_per_byte)
            goals += [] if best is None or not math.isfinite(best) else [best]
    setting = model.setting
    for chunks in chunk_counts:
        batches |= {max(1, int(goal // (setting.seq * chunks))) for goal in goals}
    for optimizer in model.c0_s:
        for chunks in chunk_counts:
            for batch in sorted(batches):
                yield Configuration(
                    batch,
                    chunks,
                    setting.seq,
                    optimizer,
                    window=setting.window,
                    precision=setting.precision,
                    activation_checkpointing=setting.activation_checkpointing,
                )


def _candidate(
    configuration: Configuration,
    step_s: float,
    peak_bytes: int | None,
    source: str,
    request: PlanRequest,
    model: CostModel,
    refused: Sequence[str],
) -> Candidate:
    size = configuration.bytes_per_step
    bytes_per_s = size / (step_s * model.disturbance)
    # The ceiling is that of what was fitted: a checkpointed step has a lower one.
    ceiling = model.ceiling_bytes_per_s if model.predicts(configuration) else None
    hours = request.budget_bytes / bytes_per_s / 3600
    advantage = request.token_advantage if configuration.optimizer == "adamw" else 1.0
    # Bytes to a loss are proportional to T + T_crit; at T = T_crit the budget is what it says.
    critical = request.noise_scale_bytes
    noise = 1.0 if critical is None else (size + critical) / (2.0 * critical)
    return Candidate(
        configuration,
        steps=request.budget_bytes // size,
        hours=hours,
        quality_hours=hours * advantage * noise,
        step_s=step_s,
        bytes_per_s=bytes_per_s,
        ceiling_fraction=None if ceiling is None else size / step_s / ceiling,
        peak_bytes=peak_bytes,
        source=source,
        refused=(*refused, *_reasons_against(configuration, peak_bytes, request)),
    )


def _reasons_against(configuration: Configuration, peak_bytes: int | None, request: PlanRequest) -> list[str]:
    reasons = []
    size = configuration.bytes_per_step
    steps = request.budget_bytes // size
    if steps < 1:
        reasons.append(f"one step of {size:,} bytes is more than the budget")
    elif request.min_updates is not None and request.budget_bytes < request.min_updates * size:
        reasons.append(f"{steps:,} updates are fewer than {request.min_updates:,}")
    if request.memory_bytes is not None:
        if peak_bytes is None:
            reasons.append("its peak memory was not measured")
        elif peak_bytes > request.memory_bytes:
            peak, most = format_size(peak_bytes), format_size(request.memory_bytes)
            reasons.append(f"its peak of {peak} is over {most}")
    if request.prefer is not None and configuration.optimizer != request.prefer:
        reasons.append(f"{request.prefer} is preferred")
    return reasons


def _peak_bound(configuration: Configuration, rows: Sequence[Measurement]) -> int | None:
    """The least measured peak of a configuration that needs at least as much memory.

    Peak memory grows with B and with the chunks of a window, never with K or A (docs/memory.md). Recomputed, the rows
    are cut into as many pieces as divide them, so there only equal B is compared.
    """

    def window_of(other: Configuration) -> int:
        return other.chunks_per_window or other.chunks

    def needs_as_much(other: Configuration) -> bool:
        like = replace(
            other, batch=configuration.batch, chunks=configuration.chunks,
            window=configuration.window, accum=configuration.accum,
        )  # fmt: skip
        if like != configuration or window_of(other) < window_of(configuration):
            return False
        if configuration.activation_checkpointing:
            return other.batch == configuration.batch
        return other.batch >= configuration.batch

    peaks = [
        row.peak_bytes for row in rows if row.peak_bytes is not None and needs_as_much(row.configuration)
    ]
    return min(peaks, default=None)
