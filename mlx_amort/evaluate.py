"""Quality: bits per byte over held-out bytes, with the state carried along each stream."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np

from mlx_amort.data.corpus import Corpus, ProgressCallback
from mlx_amort.data.validation import validation_chunks, validation_streams, validation_targets
from mlx_amort.model.byte_lm import ByteLM, StreamState, Weights
from mlx_amort.ops.embedding import cross_entropy

# Streams a validation part is cut into. Fixed, because every cut starts a state from zero and so moves the
# figure: runs with different batches stay comparable.
EVALUATION_ROWS = 8


@dataclass(frozen=True)
class CorpusQuality:
    """What one corpus costs: the sum of nats over `bytes` held-out bytes (ids of a uint16 corpus)."""

    name: str
    nats: float
    bytes: int

    @property
    def bits_per_byte(self) -> float:
        """nats / ln 2 / bytes."""
        return self.nats / math.log(2) / self.bytes


@dataclass(frozen=True)
class Evaluation:
    """The figures of every corpus, and of all their bytes together; `is_whole`: no held-out byte left out."""

    corpora: tuple[CorpusQuality, ...]
    is_whole: bool

    @property
    def bytes(self) -> int:
        """How many bytes were predicted."""
        return sum(corpus.bytes for corpus in self.corpora)

    @property
    def bits_per_byte(self) -> float:
        """Mean over all bytes: a corpus counts by its size, not by its weight in training."""
        return math.fsum(corpus.nats for corpus in self.corpora) / math.log(2) / self.bytes


def evaluate(
    model: ByteLM,
    weights: Weights,
    corpora: Sequence[Corpus],
    rows: int = EVALUATION_ROWS,
    max_bytes: int | None = None,
    progress: ProgressCallback | None = None,
) -> Evaluation:
    """Bits per byte over the validation parts: every held-out byte but a corpus's first is predicted once.

    Each part is cut into `rows` streams (data/validation.py) that start from a zero state. With `max_bytes`
    only the leading chunks of every stream are walked, the same ones at each call: as many as fit, shared
    among the corpora by size, and at least one of each. `progress` is called with (chunks done, chunks in all).

    Dtypes: nats are float32 per byte, summed in float64.
    """
    seq = model.config.seq
    whole = [validation_chunks([corpus], rows, seq) for corpus in corpora]
    walked = [_leading_chunks(corpus, corpora, rows, seq, max_bytes) for corpus in corpora]
    nats_of = _compiled_nats(model)
    qualities: list[CorpusQuality] = []
    done = 0
    for corpus, chunks in zip(corpora, walked, strict=True):
        nats, count = 0.0, 0
        for chunk in itertools.islice(validation_streams([corpus], rows, seq), chunks):
            if chunk.is_start:
                state = model.zero_state(rows)
            nats_of_bytes, state = nats_of(weights, mx.array(chunk.tokens), state)
            mx.eval(nats_of_bytes, state)
            nats += float(np.array(nats_of_bytes)[chunk.is_counted].sum(dtype=np.float64))
            count += int(chunk.is_counted.sum())
            done += 1
            if progress is not None:
                progress(done, sum(walked))
        qualities.append(CorpusQuality(corpus.name, nats, count))
    return Evaluation(tuple(qualities), is_whole=walked == whole)


@lru_cache(maxsize=1)
def _compiled_nats(model: ByteLM) -> Callable[..., Any]:
    """The forward of one chunk, compiled; kept, because a run comes back here with the same model."""

    def nats(weights: Weights, tokens: mx.array, state: StreamState) -> tuple[mx.array, StreamState]:
        logits, state = model.forward(weights, tokens[:, :-1], state)
        return cross_entropy(logits, tokens[:, 1:]), state

    return mx.compile(nats)


def _leading_chunks(
    corpus: Corpus, corpora: Sequence[Corpus], rows: int, seq: int, max_bytes: int | None
) -> int:
    whole = validation_chunks([corpus], rows, seq)
    all_targets = validation_targets(corpora)
    if max_bytes is None or max_bytes >= all_targets:
        return whole
    share = max_bytes * validation_targets([corpus]) // all_targets
    return max(1, min(whole, share // (rows * seq)))
