"""The bytes of step n: a pure function of seed, n and the corpora, so a run resumes from the step alone.

Every row of every step has its own counter in a counter-based generator (Philox): no generator state is kept,
and ranks of a parallel run take disjoint rows of one global batch without talking.
Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np

from mlx_amort.data.corpus import Corpus, unit_name
from mlx_amort.data.parts import Units
from mlx_amort.errors import UserError


class ByteStream:
    """Rows drawn from the training parts of a mix of corpora.

    A row lies in one corpus: corpus i with probability weight_i / Σ weight, whatever its size; its start is
    uniform over the training part. `rows` is the global batch; rank r of `world` gets its r-th equal share.
    Raises: UserError when a corpus is too small for one row, or the rows do not divide among the ranks.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        weights: Sequence[float],
        seed: int,
        rows: int,
        row_units: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        assert corpora and len(corpora) == len(weights) and 0 <= rank < world
        for corpus in corpora:
            if corpus.train_units < row_units:
                name = unit_name(corpus.dtype)
                raise UserError(
                    f"corpus '{corpus.name}'",
                    f"its training part has {corpus.train_units:,} {name}s and one row takes {row_units:,} "
                    f"(chunks · seq + 1)",
                    "give a larger text, or lower --chunks or --seq",
                )
        if rows % world:
            raise UserError(
                f"{rows} rows per step (accum · batch)",
                f"do not divide among {world} processes",
                f"make the rows a multiple of {world}",
            )
        self.row_units = row_units
        self.rows = rows // world
        self._first_row = rank * self.rows
        self._corpora = tuple(corpora)
        self._seed = seed
        self._thresholds = np.cumsum(np.asarray(weights, np.float64) / np.sum(weights))

    def places(self, step: int) -> list[tuple[int, int]]:
        """Return (index of the corpus, first unit) of each row of this rank at a step."""
        return [self._place(step, self._first_row + row) for row in range(self.rows)]

    def batch(self, step: int) -> Units:
        """Read the rows of a step. Shapes: [rows, row_units]. Dtypes: uint8 or uint16."""
        units: Units = np.empty((self.rows, self.row_units), self._corpora[0].dtype)
        for row, (index, start) in enumerate(self.places(step)):
            units[row] = self._corpora[index].read(start, self.row_units)
        return units

    def _place(self, step: int, row: int) -> tuple[int, int]:
        # Raw words, scaled here: numpy keeps those the same over versions, its distributions it may change.
        generator = np.random.Philox(key=self._seed, counter=(step << 128) | (row << 64))
        choice, position = (int(word) for word in generator.random_raw(2))
        drawn = int(np.searchsorted(self._thresholds, (choice >> 11) * 2.0**-53, side="right"))
        # The last threshold may fall short of one by rounding.
        index = min(drawn, len(self._corpora) - 1)
        starts = self._corpora[index].train_units - self.row_units + 1
        return index, (position * starts) >> 64


class PrefetchedStream:
    """A stream that reads step n + 1 in a thread while the caller computes step n; any step may be asked for.

    An error of the thread is raised by the call that asks for its step. `close` (or `with`) waits for the
    thread.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead")
        self._ahead: tuple[int, Future[Units]] | None = None

    def batch(self, step: int) -> Units:
        """Return what the stream's `batch(step)` returns, and start on the step after it."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != step:
            ahead = (step, self._thread.submit(self._stream.batch, step))
        units = ahead[1].result()
        self._ahead = (step + 1, self._thread.submit(self._stream.batch, step + 1))
        return units

    def close(self) -> None:
        """Stop reading ahead and wait for the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> PrefetchedStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
