"""The window of docs/memory.md by hand: the document's formulas, order and letters, and the counts of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mlx_amort.config.values import Config

DOCUMENT = Path(__file__).parents[2] / "docs" / "memory.md"


def documented_counts() -> dict[str, float]:
    """The counts in the tables of docs/memory.md, by the names of the counts table: float32.attention.one_tile."""
    found: dict[str, float] = {}
    for line in DOCUMENT.read_text(encoding="utf-8").partition("## The counts")[2].splitlines():
        if line.startswith("## "):
            break
        name, *values = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if len(values) == 2 and "." in name:
            found[f"float32.{name}"], found[f"bfloat16.{name}"] = map(float, values)
        elif len(values) == 1 and name.startswith("update."):
            found[name] = float(values[0])
    return found


class Count(Protocol):
    """A count by its name in the document, in the precision that is worked out."""

    def __call__(self, name: str) -> float: ...


@dataclass(frozen=True)
class Half:
    """A half's line of the document, in bytes; p pieces."""

    entry: float
    keeps: float
    work: float
    work_recomputed: float
    matrices: float
    p: int
    others: float
    sums: float

    def moment(self, is_cut: bool, is_last: bool) -> float:
        if not is_cut:
            return self.keeps + self.work + self.matrices
        piece = (self.keeps - self.entry + self.work_recomputed) / self.p
        return self.entry + piece + self.matrices + (0 if is_last else self.others + self.sums)


class Window:
    """The letters of the document for one configuration."""

    def __init__(self, config: Config) -> None:
        model, step = config.model, config.step
        self.B, self.W, self.S, self.H = step.batch, step.effective_window, model.seq, model.hidden
        self.F, self.h, self.V = model.ffn, model.heads, model.vocabulary
        self.d, self.R, self.N = self.H // self.h, self.B * self.W, self.S // model.patch_stride
        self.is_cut = step.activation_checkpointing
        self.is_wide, self.is_pure = step.precision == "fp32", step.precision == "bf16-pure"
        self.is_patched = model.is_patched
        self.c = 4 if self.is_wide else 2
        counts = documented_counts()
        self.count: Count = lambda name: counts[f"{'float32' if self.is_wide else 'bfloat16'}.{name}"]

    def matrices(self, numbers: int, p: int) -> int:
        return numbers * (4 if self.is_wide else 10 if self.is_pure or (self.is_cut and p == 1) else 8)

    def attention(self, L: int) -> Half:
        R, H, h, count = self.R, self.H, self.h, self.count
        entry, array, p = self.c * R * L * H, 4 * R * L * H, pieces(R, R * L)
        keeps = R * L * (self.c * 7 * H + 4 * (1 + h))

        def tiles(number: int, keys: int) -> int:
            return number * 4 * R * h * min(L, 128) * keys

        if L <= 128:
            work = count("attention.one_tile") * array + tiles(3, L)
            again = count("attention.one_tile_recomputed") * array + tiles(6, L)
        elif L <= 256:
            work = again = count("attention.two_blocks") * array + tiles(3, L + L - 128)
        else:
            last = count("attention.last_tile") * array + tiles(3, 128)
            work = again = max(count("attention.first_tiles") * array + tiles(3, L + L - 128), last)
        own = self.matrices(4 * H * H, p)
        return Half(entry, keeps, work, again, own, p, 2 * entry * (1 - 1 / p), own if p > 1 else 0)

    def recurrence(self, L: int) -> Half:
        R, H, h, W, count = self.R, self.H, self.h, self.W, self.count
        entry, array, p, C = self.c * R * L * H, 4 * R * L * H, pieces(self.B, R * L), min(64, L * W)
        keeps = R * L * (self.c * (14 if self.is_patched else 13) * H + 4 * (1 + 4 * h)) + R * self.c * 9 * H
        of_one = "_of_one" if W == 1 else ""
        scores, of_states = 4 * R * L * h * C, 4 * R * L * H * self.d / C
        work = count(f"recurrence.arrays{of_one}") * array + 7 * scores
        work += count("recurrence.states") * of_states
        others = count(f"recurrence.recomputed{of_one}") + count("recurrence.pieces") * (1 - 1 / p)
        sums = count("recurrence.sums") * H * H * 4 if p > 1 else 0.0
        own = count("recurrence.matrices") * H * H * 4
        return Half(entry, keeps, work, work, own, p, others * array, sums)

    def feed_forward(self, L: int) -> Half:
        R, H, F, count = self.R, self.H, self.F, self.count
        entry, array, p = self.c * R * L * H, 4 * R * L * H, pieces(R, R * L)
        keeps = R * L * (self.c * (2 * H + F) + 4)
        work = count("feed_forward.arrays") * array + count("feed_forward.hidden") * 4 * R * L * F
        again = work + count("feed_forward.recomputed") * array
        own = self.matrices(2 * H * F, p)
        return Half(entry, keeps, work, again, own, p, 2 * entry * (1 - 1 / p), own if p > 1 else 0)

    def with_head(self, half: Half) -> float:
        R, S, H, V, count = self.R, self.S, self.H, self.V, self.count
        p, array, logits = half.p if self.is_cut else 1, 4 * R * S * H, 4 * R * S * V
        more = 1 if not self.is_wide and V % 32 else 0
        early = (count("head.early_logits") + more) * logits + count("head.early_arrays") * array
        early += count("head.early_hidden") * 4 * R * S * self.F / p
        early += 384 * R * S + (half.entry if p > 1 else 0)
        if self.is_cut:
            left = count("head.late_logits_recomputed") - count("head.late_logits_per_piece") * p
            late = (max(2, left) + more) * logits + count("head.late_arrays_recomputed") * array
        else:
            late = (count("head.late_logits") + more) * logits + count("head.late_arrays") * array
        kept = half.entry if self.is_cut else half.keeps
        table = (4 if self.is_wide else 12) * V * H
        return table + max(kept + early, late + half.moment(self.is_cut, is_last=True))


def pieces(rows: int, positions: int) -> int:
    return max([p for p in (1, 2, 3, 4) if rows % p == 0 and positions >= 1024 * p] or [1])


def window_bytes(config: Config, always: int) -> float:
    """Peak of the backward pass on the CPU. Units: bytes; `always` is weights, optimizer and gradients."""
    window, model = Window(config), config.model
    recurrent = sum(kind == "recurrent" for kind in model.block_kinds)
    states = 2 * recurrent * window.B * (4 * window.H * window.d + 9 * window.H * window.c)
    data = window.B * (window.S * window.W + 1) * (2 if window.V > 256 else 1)
    halves: list[Half] = []
    for kind, along in zip(model.block_kinds, model.block_lengths, strict=True):
        L = window.S if along == "bytes" else window.N
        halves += [
            window.attention(L) if kind == "attention" else window.recurrence(L),
            window.feed_forward(L),
        ]
    worst, before = 0.0, 0.0
    for half in halves[:-1]:
        worst = max(worst, before + half.moment(window.is_cut, is_last=False))
        before += half.entry if window.is_cut else half.keeps
    return always + states + data + max(worst, before + window.with_head(halves[-1]))
