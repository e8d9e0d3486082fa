"""The outcome of a run as its console prints it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlx_amort.amounts import counted, format_duration, format_size, printable_lines
from mlx_amort.command_line import command
from mlx_amort.train.summary import Memory, Quality, Speed, Summary

SAMPLE_LINES = 6
LARGEST_MEMORY_MISS = 0.1


def summary_lines(summary: Summary) -> Iterator[str]:
    """The outcome in a few lines."""
    yield ""
    where = f"step {summary.step:,} of {summary.total_steps:,}"
    yield f"{_ENDINGS[summary.ending]} at {where} ({summary.bytes:,} {summary.unit}s)"
    yield from (f"  {line}" for line in _quality(summary.quality, summary.unit))
    yield from (f"  {line}" for line in _speed(summary.speed, summary.memory, summary.unit))
    yield from (f"  {line}" for line in _memory(summary.memory))
    yield from (f"  {line}" for line in _forecast(summary.speed))
    if summary.skipped_steps:
        yield f"  skipped     {counted(summary.skipped_steps, 'step')} whose loss or gradient was not finite"
    if summary.files.sample is not None:
        yield "  sample"
        yield from (f"    {line}" for line in printable_lines(summary.files.sample)[:SAMPLE_LINES])
    named = {
        "sample": summary.files.sample_file,
        "plot": summary.files.plot,
        "checkpoint": summary.files.checkpoint,
        "best": summary.files.best_checkpoint,
    }
    yield from (f"  {what:<11} {path}" for what, path in named.items() if path is not None)
    yield from _what_next(summary)


def is_past_its_best(quality: Quality) -> bool:
    """Whether the newest validation is worse than an earlier one over the same text, as it would be shown."""
    best, last = quality.best_val_bits, quality.last_val_bits
    return best is not None and last is not None and f"{last:.4f}" != f"{best:.4f}"


def _quality(quality: Quality, unit: str) -> Iterator[str]:
    bits = f"bits per {unit}"
    if quality.val_step is None:
        yield "quality     not validated yet; --eval-every STEPS validates on the way"
    else:
        part = "all of" if quality.val_is_whole else f"{quality.val_bytes:,} {unit}s of"
        value = "not finite" if quality.val_bits is None else f"{quality.val_bits:.4f} {bits}"
        yield f"quality     {value} over {part} the validation part, at step {quality.val_step:,}"
        if is_past_its_best(quality):
            best, last = quality.best_val_bits or 0.0, quality.last_val_bits or 0.0
            yield (
                f"best        {best:.4f} {bits} at step {quality.best_val_step:,}; over the same text the last is "
                f"{last:.4f}, worse by {last - best:.4f}"
            )
        yield f"zlib -9     {quality.zlib_bits:.4f} {bits} on that part (its first 4 MiB at most)"
    if quality.train_bits is not None:
        yield f"training    {quality.train_bits:.4f} {bits}, mean of the last steps"


def _speed(speed: Speed, memory: Memory, unit: str) -> Iterator[str]:
    if speed.bytes_per_s is not None and memory.peak_bytes is not None:
        span = f"{format_duration(speed.train_s)} in all"
        if speed.session_s != speed.train_s:
            span += f", {format_duration(speed.session_s)} this time"
        rate = f"median {speed.bytes_per_s:,.0f} {unit}s/s, {span}"
        yield f"speed       {rate}, peak memory {format_size(memory.peak_bytes)}"


def _memory(memory: Memory) -> Iterator[str]:
    estimated, measured = memory.estimated_peak_bytes, memory.session_peak_bytes
    if estimated is None or measured is None:
        return
    miss = estimated / measured - 1
    told = f"estimated {format_size(estimated)}, measured {format_size(measured)} ({100 * miss:+.1f} %)"
    if memory.cache_bytes:
        told += f", and {format_size(memory.cache_bytes)} of cache beside it"
    if abs(miss) > LARGEST_MEMORY_MISS:
        told += f"; a miss of more than 10 % is worth a report: {command('memory-estimate', '--measure')} shows it"
    yield f"memory      {told}"


def _forecast(speed: Speed) -> Iterator[str]:
    predicted_s, measured_s = speed.predicted_step_s, speed.measured_step_s
    if predicted_s is None or measured_s is None:
        return
    deviation = f"{100 * (measured_s / predicted_s - 1):+.1f} %; median {speed.median_step_s:.4g} s"
    if speed.is_from_steps:
        yield (
            f"forecast    {predicted_s:.4g} s per step from {speed.predicted_from}, measured {measured_s:.4g} s "
            f"over all ({deviation})"
        )
    else:
        yield (
            f"forecast    predicted {predicted_s:.4g} s per step, measured {measured_s:.4g} s ({deviation}), "
            f"from {speed.predicted_from}"
        )


_ENDINGS = {
    "complete": "done",
    "stopped": "stopped as asked",
    "interrupted": "interrupted and saved",
    "diverged": "diverged",
}


def _what_next(summary: Summary) -> Iterator[str]:
    run = Path(summary.run)
    text = ("--prompt", "TEXT", "--bytes", "500")
    if summary.ending == "diverged":
        if summary.files.checkpoint is not None:
            yield f"  go on       {command('train', '--resume', run, '--lr', 'RATE')}   (a lower one)"
    elif summary.step < summary.total_steps:
        yield f"  go on       {command('train', '--resume', run)}"
    elif not is_past_its_best(summary.quality):
        yield f"  generate    {command('generate', run, *text)}"
        yield from _longer(summary)
    elif summary.files.best_checkpoint is not None:
        yield f"  generate    {command('generate', run, '--best', *text)}"
    else:
        yield f"  generate    {command('generate', run, *text)}"
        yield "  overfitted  train on more text or for fewer steps; --set run.keep_best=true keeps the best state"


def _longer(summary: Summary) -> Iterator[str]:
    yield f"  longer      {command('train', '--resume', Path(summary.run), '--steps', str(2 * summary.total_steps))}"
    if summary.last_lr is not None and summary.next_lr > 1.001 * summary.last_lr:
        yield (
            f"              takes the learning rate from {summary.last_lr:g} back up to {summary.next_lr:g}; "
            f"with --schedule constant --lr {summary.last_lr:g} beside it, it stays"
        )


def divergence(summary: Summary) -> str:
    """What happened to a run that diverged, and where its last good state is, in one line."""
    good = summary.files.checkpoint or "none was saved yet, start again"
    return (
        f"{summary.run}: diverged at step {summary.step}: loss, gradient, weights or optimizer state are not "
        f"finite; resume with a lower --lr from the last good checkpoint: {good}"
    )
