"""Measurements made up for tests of the arithmetic."""

from __future__ import annotations

from mlx_amort.cost.configuration import Configuration, Measurement


def made(
    batch: int,
    chunks: int,
    seq: int,
    optimizer: str,
    step_s: float | None,
    window: int | None = None,
    accum: int = 1,
    precision: str | None = None,
    peak_bytes: int | None = None,
) -> Measurement:
    """A measurement that took `step_s`."""
    configuration = Configuration(batch, chunks, seq, optimizer, window, accum, precision)
    return Measurement(configuration, step_s, peak_bytes=peak_bytes)
