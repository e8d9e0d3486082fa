"""Which configurations a sweep measures: every combination of lists, or a grid around one; no mlx."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from mlx_amort.cost.configuration import Configuration

Value = TypeVar("Value")

# The published scan, B 4 to 48 around B 24, as multiples of the preset's B; what lies beyond is doubled up to.
_BATCH_FACTORS = (1 / 6, 1 / 3, 1 / 2, 2 / 3, 1, 4 / 3, 2, 4)
_CHUNK_COUNTS = (1, 2, 4, 8)
_SCAN_CHUNKS = 2
_OTHER = {"muon": "adamw", "adamw": "muon"}


@dataclass(frozen=True)
class Lists:
    """Values given on the command line for what a grid varies; empty: the grid's own, or the base's."""

    batches: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    seqs: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    activation_checkpointing: tuple[bool, ...] = ()


def product_grid(base: Configuration, lists: Lists) -> list[Configuration]:
    """Every combination of the given values, the base's where none are given."""
    combinations = itertools.product(
        lists.batches or (base.batch,),
        lists.chunks or (base.chunks,),
        lists.windows or (base.window,),
        lists.seqs or (base.seq,),
        lists.optimizers or (base.optimizer,),
        lists.precisions or (base.precision,),
        lists.activation_checkpointing or (base.activation_checkpointing,),
    )
    return _unique(
        Configuration(batch, chunks, seq, optimizer, window, base.accum, precision, recomputes)
        for batch, chunks, window, seq, optimizer, precision, recomputes in combinations
    )


def default_grid(base: Configuration, lists: Lists, patch_stride: int) -> list[Configuration]:
    """The published shape around `base`, the most telling configurations first.

    A batch scan at K = 2, a chunk scan at the base's B, the fewest rows at the most chunks, the other optimizer at
    three sizes, one configuration recomputed, one with half the sequence. Given lists replace what is scanned, or
    leave a kind out: nothing is measured at a B or K that is not among the given ones.
    """
    optimizers = lists.optimizers or (base.optimizer, _OTHER[base.optimizer])
    half = max(patch_stride, base.seq // 2 // patch_stride * patch_stride)
    seqs = lists.seqs or tuple(_unique((base.seq, half)))
    recomputing = lists.activation_checkpointing or tuple(_unique((base.activation_checkpointing, True)))
    windows, precisions = lists.windows or (base.window,), lists.precisions or (base.precision,)
    center = center_of(base, lists)
    batches, counts = _batches(base, lists), _counts(base, lists)
    batch_scan = [replace(center, batch=batch) for batch in batches]
    chunk_scan = [replace(center, chunks=chunks) for chunks in counts]
    longest = max(counts, key=lambda chunks: (chunks <= 2 * center.chunks, chunks))
    others = [
        replace(each, optimizer=optimizer)
        for optimizer in optimizers[1:]
        for each in (center, batch_scan[0], replace(center, chunks=longest))
    ]
    single = [replace(center, activation_checkpointing=value) for value in recomputing[1:]]
    single += [replace(center, seq=seq) for seq in seqs[1:]]
    single += [replace(center, window=window) for window in windows[1:]]
    single += [replace(center, precision=precision) for precision in precisions[1:]]
    # Few rows over many windows: what a window costs of itself hides in c0 along B, and in c1 along K.
    corner = replace(batch_scan[0], chunks=max(counts))
    # The ends of both scans and the other optimizer make a fit; the middle of the scans makes it sure.
    first = [
        center,
        batch_scan[0],
        replace(center, chunks=longest),
        *others[:2],
        chunk_scan[0],
        corner,
        *single,
    ]
    return _unique([*first, *others, *outward(batch_scan), *outward(chunk_scan)])


def doublings(base: Configuration, lists: Lists) -> list[Iterator[Configuration]]:
    """Twice the last of the batch scan, and of the chunk scan, without end; nothing beyond given lists."""
    center = center_of(base, lists)
    largest, longest = max(_batches(base, lists)), max(_counts(base, lists))
    wider = (replace(center, batch=largest << power) for power in itertools.count(1))
    longer = (replace(center, chunks=longest << power) for power in itertools.count(1))
    return [iter(()) if lists.batches else wider, iter(()) if lists.chunks else longer]


def center_of(base: Configuration, lists: Lists) -> Configuration:
    """What both scans have in common: the first of every list, K = 2 where it may be."""
    given = lists.activation_checkpointing
    return replace(
        base,
        batch=_center_batch(base, lists),
        chunks=_scan_chunks(lists),
        window=lists.windows[0] if lists.windows else base.window,
        seq=lists.seqs[0] if lists.seqs else base.seq,
        optimizer=lists.optimizers[0] if lists.optimizers else base.optimizer,
        precision=lists.precisions[0] if lists.precisions else base.precision,
        activation_checkpointing=given[0] if given else base.activation_checkpointing,
    )


def _batches(base: Configuration, lists: Lists) -> tuple[int, ...]:
    return lists.batches or tuple(_unique(max(1, round(base.batch * factor)) for factor in _BATCH_FACTORS))


def _counts(base: Configuration, lists: Lists) -> tuple[int, ...]:
    return lists.chunks or tuple(sorted({*_CHUNK_COUNTS, base.chunks}))


def _scan_chunks(lists: Lists) -> int:
    return _SCAN_CHUNKS if not lists.chunks or _SCAN_CHUNKS in lists.chunks else lists.chunks[0]


def _center_batch(base: Configuration, lists: Lists) -> int:
    """The base's B; of given ones the largest up to it, or the least."""
    if not lists.batches:
        return base.batch
    return max((batch for batch in lists.batches if batch <= base.batch), default=min(lists.batches))


def outward(scan: Sequence[Configuration]) -> list[Configuration]:
    """A scan from its cheapest to its dearest: what a budget leaves out is then the dearest."""
    return sorted(scan, key=lambda each: each.bytes_per_step)


def _unique(values: Iterable[Value]) -> list[Value]:
    return list(dict.fromkeys(values))
