"""What fits a budget of memory: the refusal of what does not, the nearest configurations that do; arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mlx_amort.amounts import format_size
from mlx_amort.command_line import command, train_command
from mlx_amort.config.values import Config, Precision
from mlx_amort.cost.memory.estimate import estimate
from mlx_amort.data.parts import DISK_DTYPES
from mlx_amort.errors import UserError
from mlx_amort.ops.constants import Backend

MOST_WAYS = 3
LARGEST_BATCH = 1 << 16
_FAR = 1 << 10
_MOST_BATCHES = 100_000
_EVERY_WINDOW = 16
# Rows that divide into any number of pieces (ops/pieces.py).
_DOZEN = 12

_ROOM_SHARES: dict[Backend, float] = {"cpu": 0.2, "metal": 0.25, "cuda": 0.1}
_WHERE = {
    "cpu": "this machine has",
    "metal": "the device's recommended working set is",
    "cuda": "the device has",
}


@dataclass(frozen=True)
class Way:
    """A configuration near another one that needs less, and its peak."""

    config: Config
    peak_bytes: int

    @property
    def command(self) -> str:
        """What to type to train it."""
        return train_command(self.config)


def budget_bytes(machine: Mapping[str, Any], limit_bytes: int | None) -> int:
    """The limit that was given, else the device's working set (Metal, CUDA), else the machine's memory."""
    return limit_bytes or machine.get("device_memory_bytes") or int(machine["memory_bytes"])


def room_bytes(memory_bytes: int, backend: Backend) -> int:
    """What of a machine's memory is left to the system, to other programs and to MLX's cache of freed buffers.

    Shares: a fifth on the CPU, where the cache may take a sixteenth; a quarter on Metal, whose recommended working set
    leaves about as much; a tenth of a CUDA device, which no system shares.
    """
    return round(_ROOM_SHARES[backend] * memory_bytes)


def recommend(config: Config, limit: int, backend: Backend = "cpu") -> Way | None:
    """What to take within `limit` bytes: `config` if it fits, else what changes least; None where nothing fits."""
    peak_bytes = estimate(config, backend).peak_bytes
    if peak_bytes <= limit:
        return Way(config, peak_bytes)
    return next(iter(nearest_fits(config, limit, backend)), None)


def check_fits(
    config: Config, limit: int, backend: Backend = "cpu", is_given: bool = False, escape: str = "--force"
) -> None:
    """Refuse a step whose estimated peak is above `limit` bytes, with commands that fit, ready to paste.

    is_given: the limit is the user's own, not what the machine has. escape: the flag that goes ahead anyway.
    Raises: UserError.
    """
    found = estimate(config, backend)
    if found.peak_bytes <= limit:
        return
    what = f"{config.preset or config.model.trunk} with {config.step.batch} rows"
    allowed = "the limit given is" if is_given else _WHERE[backend]
    why = f"a step needs about {format_size(found.peak_bytes)} of memory, and {allowed} {format_size(limit)}"
    ways = nearest_fits(config, limit, backend)
    if ways:
        width = max(len(way.command) for way in ways)
        commands = [f"{way.command:<{width}}  # {format_size(way.peak_bytes)}" for way in ways]
        same = (
            "same bytes per step"
            if all(_is_same_step(config, way.config) for way in ways)
            else "nearest first"
        )
        raise UserError(what, why, f"{escape} goes ahead; these fit ({same}):", below=commands)
    *_, smallest = _ways(config)
    least = estimate(smallest[-1], backend).peak_bytes
    todo = (
        f"take a smaller preset: recomputed, in bf16-pure and row by row it still needs {format_size(least)}"
    )
    raise UserError(what, why, f"{todo} ({command('memory-estimate')} lists them), or {escape} to go ahead")


def check_data(config: Config, limit: int, escape: str = "--force") -> None:
    """Refuse a step whose ids alone, of all its rows and chunks, are more than `limit` bytes.

    The estimate knows one window's; a step's are held twice, for the next step is read ahead. Raises: UserError.
    """
    step = config.step
    ids = step.accum * step.batch * (config.model.seq * step.chunks + 1)
    needed = 2 * ids * DISK_DTYPES[config.data.dtype].itemsize
    if needed > limit:
        raise UserError(
            f"A {step.accum:,} × B {step.batch:,} × K {step.chunks:,} × S {config.model.seq:,}",
            f"the data of a step alone take {format_size(needed)}, and {format_size(limit)} may be used",
            f"lower --batch, --accum, --chunks or --seq, or {escape} to go ahead",
        )


def nearest_fits(config: Config, limit: int, backend: Backend = "cpu") -> list[Way]:
    """Configurations within `limit` bytes that change least: recomputing, then rows, then window, then precision.

    Each takes the same bytes per step: fewer rows come with as many more micro-batches.
    """
    found: list[Way] = []
    kinds: list[frozenset[str]] = []
    for ways in _ways(config):
        # Where a single row does not fit, no more rows do.
        if estimate(ways[-1], backend).peak_bytes > limit:
            continue
        for way in ways:
            changed = _changes(config, way)
            # What fits with fewer changes makes further ones pointless; of one kind the most rows come first.
            if not changed or any(kind <= changed for kind in kinds):
                continue
            peak_bytes = estimate(way, backend).peak_bytes
            if peak_bytes <= limit:
                found.append(Way(way, peak_bytes))
                kinds.append(changed)
                if len(found) == MOST_WAYS:
                    return found
    return found


def largest_batch(config: Config, limit: int, backend: Backend = "cpu") -> int:
    """Most rows B whose step fits `limit` bytes; 0 when not even one does."""

    def needed(batch: int) -> int:
        return estimate(with_step(config, batch=batch), backend).peak_bytes

    def fits(batch: int) -> bool:
        return needed(batch) <= limit

    least = needed(1)
    if least > limit:
        return 0
    # With checkpointing a B that divides into more pieces may need less than B - 1; in dozens the peak grows with B.
    # It is nearly a straight line in B, or flat where the update needs more: two points tell where to look first.
    rise = needed(_FAR) - least
    guess = int((limit - least) / rise * (_FAR - 1)) // _DOZEN if rise > 0 else LARGEST_BATCH // _DOZEN
    probes = [guess, guess + 1, guess - 1]
    low, high = 0, LARGEST_BATCH // _DOZEN + 1
    while high - low > 1:
        probe = probes.pop(0) if probes else (low + high) // 2
        if not low < probe < high:
            continue
        low, high = (probe, high) if fits(_DOZEN * probe) else (low, probe)
    nearby = range(max(1, _DOZEN * low), min(_DOZEN * (low + 1), LARGEST_BATCH + 1))
    return max(batch for batch in nearby if fits(batch))


def with_step(config: Config, **changes: Any) -> Config:
    """`config` with other values in its step."""
    return replace(config, step=replace(config.step, **changes))


def _ways(config: Config) -> Iterator[list[Config]]:
    """Configurations that need less, from the smallest change to the largest; in a list only the rows differ."""
    step = config.step
    rows = step.batch * step.accum
    # No machine holds more rows than this; a longer walk through absurd numbers takes minutes.
    most = min(step.batch, _MOST_BATCHES)
    batches = [batch for batch in range(most, 0, -1) if rows % batch == 0]
    precisions: list[Precision] = list(dict.fromkeys((step.precision, "bf16-pure")))
    for precision in precisions:
        for window in _shorter_windows(step.effective_window):
            for recomputes in dict.fromkeys((step.activation_checkpointing, True)):
                yield [
                    with_step(
                        config,
                        batch=batch,
                        accum=rows // batch,
                        window=step.window if window == step.effective_window else window,
                        precision=precision,
                        activation_checkpointing=recomputes,
                    )
                    for batch in batches
                ]


def _shorter_windows(window: int) -> list[int]:
    """A window and shorter ones: each of the shortest, and of a long one every half of the one before."""
    longest = window
    halves = []
    while longest > _EVERY_WINDOW:
        halves.append(longest)
        longest //= 2
    return [*halves, *range(longest, 0, -1)]


def _changes(one: Config, other: Config) -> frozenset[str]:
    # Micro-batches follow from the rows.
    keys = [field.name for field in fields(one.step) if field.name != "accum"]
    return frozenset(key for key in keys if getattr(one.step, key) != getattr(other.step, key))


def _is_same_step(one: Config, other: Config) -> bool:
    return one.bytes_per_step == other.bytes_per_step
