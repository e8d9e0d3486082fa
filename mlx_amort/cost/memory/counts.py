"""The counts of the memory model: how many arrays live together, fitted to measured steps, one table a backend.

`counts/cpu.json` ships with the package; tools/fit_memory.py writes it. A table of the same form in the user's cache
folder, fitted on this machine, takes its place while the version of MLX is the one that it was fitted with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

from mlx_amort.backend.cache_folder import cache_folder
from mlx_amort.errors import UserError
from mlx_amort.files import write_whole
from mlx_amort.ops.constants import FLOAT32_BYTES, Backend

_SHIPPED: Final = Path(__file__).parent / "counts"
_MOST_ARRAYS: Final = 1000.0


@dataclass(frozen=True)
class AttentionCounts:
    """Arrays while attention is differentiated, beside its tiles of scores."""

    one_tile: float  # of at most a block of queries
    one_tile_recomputed: float  # which overlaps with differentiating it: all tiles twice
    two_blocks: float  # the first is the last as well
    first_tiles: float  # of more, while the first tiles are at work
    last_tile: float  # and once the last is


@dataclass(frozen=True)
class RecurrenceCounts:
    """Arrays while the sub-chunks of a recurrence are differentiated."""

    arrays: float  # beside scores and states
    arrays_of_one: float  # in a window of one chunk
    states: float  # of [d, d] per sub-chunk and head, that live together
    recomputed: float  # what recomputing adds, however many pieces
    recomputed_of_one: float
    pieces: float  # what the pieces add that are not at work
    matrices: float  # gradients of matrices that are there with the sub-chunks, in H²: of proj and gate first of all
    sums: float  # sums of the gradients of all five by other pieces, in H²


@dataclass(frozen=True)
class FeedForwardCounts:
    """Arrays while a feed-forward is differentiated."""

    hidden: float  # arrays of width F
    arrays: float
    recomputed: float  # what recomputing adds


@dataclass(frozen=True)
class HeadCounts:
    """Arrays of the final norm and the logits, at two moments of the last half."""

    early_logits: float  # it has allocated its first arrays, and all of the logits' are still there
    early_arrays: float
    early_hidden: float  # its own first arrays, of width F
    late_logits: float  # it has allocated its last
    late_arrays: float
    # Recomputed, the fewer arrays of logits are left late the more operations lie between: so many in one piece, and
    # less by so many with each piece.
    late_logits_recomputed: float
    late_logits_per_piece: float
    late_arrays_recomputed: float


@dataclass(frozen=True)
class WindowCounts:
    """The counts of a window in one compute dtype."""

    attention: AttentionCounts
    recurrence: RecurrenceCounts
    feed_forward: FeedForwardCounts
    head: HeadCounts


@dataclass(frozen=True)
class UpdateCounts:
    """Arrays of its size that live together while a stack is orthogonalised; of AdamW's tensors at the end.

    pure: with weights in bfloat16, where results are rounded stochastically.
    """

    one_square: float  # one square matrix, whose polynomials are as large as itself
    squares: float
    squares_pure: float
    one_rectangle: float
    rectangles: float
    few_rectangles_pure: float  # in at most five stacks
    rectangles_pure: float
    bfloat16_products: float  # of Newton-Schulz, which float32 copies surround
    adamw_largest_pure: float  # of AdamW's largest tensor; in float32 it works in the buffers it replaces
    adamw_second_pure: float


@dataclass(frozen=True, eq=False)
class Counts:
    """All counts of a backend, with where they come from."""

    backend: Backend
    mlx: str
    machine: str
    date: str
    command: str
    float32: WindowCounts
    bfloat16: WindowCounts
    update: UpdateCounts

    def of_compute(self, compute_bytes: int) -> WindowCounts:
        """The counts of a window whose activations have numbers of `compute_bytes`."""
        return self.float32 if compute_bytes == FLOAT32_BYTES else self.bfloat16

    @property
    def source(self) -> str:
        """Where the counts come from, in words."""
        return f"fitted {self.date} on {self.machine}, MLX {self.mlx}"


_Table = TypeVar("_Table")
FITTED: Final = ("float32", "bfloat16", "update")


def counts_of(backend: Backend) -> Counts:
    """The counts of a backend: this machine's own if it has some for this MLX, else those that ship with the package.

    A GPU without a table is taken for a CPU that multiplies bfloat16 as it is. Raises: UserError for a damaged table.
    """
    return _counts_at(backend, own_counts_path(backend))


def own_counts_path(backend: Backend) -> Path:
    """Where counts that were fitted on this machine are kept."""
    return cache_folder() / "counts" / f"{backend}.json"


@lru_cache
def _counts_at(backend: Backend, own: Path) -> Counts:
    if own.exists():
        found = read_counts(own)
        if found.backend == backend and found.mlx == metadata.version("mlx"):
            return found
    shipped = _SHIPPED / f"{backend}.json"
    if shipped.exists():
        return read_counts(shipped)
    cpu = read_counts(_SHIPPED / "cpu.json")
    as_in_float32 = replace(cpu.bfloat16, feed_forward=cpu.float32.feed_forward)
    return replace(cpu, backend=backend, machine=f"the CPU of {cpu.machine}", bfloat16=as_in_float32)


def read_counts(path: Path) -> Counts:
    """A table of counts. Raises: UserError for one that is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return _table_of(Counts, record, "")
    except (OSError, ValueError) as refusal:
        raise UserError(
            str(path),
            f"is not a table of the memory model's counts ({refusal})",
            "delete it, or fit it again",
        ) from refusal


def write_counts(counts: Counts, path: Path) -> None:
    """Write a table, whole or not at all; the next `counts_of` reads it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(asdict(counts), indent=1, ensure_ascii=False) + "\n")
    _counts_at.cache_clear()


def values_of(counts: Counts) -> dict[str, float]:
    """Every fitted count by its name: float32.attention.one_tile."""
    found: dict[str, float] = {}

    def walk(table: Mapping[str, Any], name: str) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                walk(value, f"{name}{key}.")
            else:
                found[f"{name}{key}"] = value

    walk({key: value for key, value in asdict(counts).items() if key in FITTED}, "")
    return found


def with_values(counts: Counts, values: Mapping[str, float]) -> Counts:
    """`counts` with other values for some names."""
    record = asdict(counts)
    for name, value in values.items():
        *tables, key = name.split(".")
        table = record
        for each in tables:
            table = table[each]
        table[key] = value
    return _table_of(Counts, record, "")


def _table_of(kind: type[_Table], record: object, name: str) -> _Table:
    """`record` as the dataclass `kind`. Raises: ValueError for a missing, unknown or impossible value."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(record, dict) or sorted(record) != sorted(names):
        raise ValueError(f"{name.rstrip('.') or 'it'} must have exactly {', '.join(names)}")
    hints = get_type_hints(kind)
    return kind(**{key: _value_of(hints[key], record[key], f"{name}{key}") for key in names})


def _value_of(kind: Any, value: object, name: str) -> object:
    if is_dataclass(kind):
        return _table_of(kind, value, f"{name}.")  # type: ignore[arg-type]
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not 0 <= value <= _MOST_ARRAYS:  # type: ignore[arg-type, operator]
            raise ValueError(f"{name} is {value!r}, and a count is a number from 0 to {_MOST_ARRAYS:g}")
        return float(value)  # type: ignore[arg-type]
    choices = get_args(kind)
    if not isinstance(value, str) or (choices and value not in choices):
        raise ValueError(f"{name} is {value!r}")
    return value
