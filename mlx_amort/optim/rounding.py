"""Stochastic rounding to bfloat16: updates far below its spacing still add up, on average."""

from __future__ import annotations

import mlx.core as mx


def round_stochastic(x: mx.array, key: mx.array) -> mx.array:
    """Return `x` in bfloat16, rounded up with the probability of the part cut off, so that its mean is `x`.

    bfloat16 is the upper half of a float32: sixteen random bits are added to the lower half, which is then
    dropped. What bfloat16 holds exactly is unchanged; infinities and NaN are kept.

    Source: Gupta et al. 2015 (arXiv 1502.02551).
    Dtypes: float32 -> bfloat16.
    """
    noise = mx.random.randint(0, 1 << 16, x.shape, dtype=mx.uint32, key=key)
    cut = mx.bitwise_and(x.view(mx.uint32) + noise, mx.array(0xFFFF0000, dtype=mx.uint32)).view(mx.float32)
    # The sum runs over the sign for some NaN bit patterns.
    return mx.where(mx.isfinite(x), cut, x).astype(mx.bfloat16)


def store(x: mx.array, dtype: mx.Dtype, key: mx.array | None) -> mx.array:
    """Return a float32 result in the dtype it is kept in: float32 as it is, bfloat16 rounded stochastically.

    Raises: ValueError for bfloat16 without a key (plain rounding loses small updates), and for other dtypes.
    """
    if dtype == mx.float32:
        return x
    if dtype != mx.bfloat16:
        raise ValueError(f"weights and optimizer state are float32 or bfloat16, not {dtype}")
    if key is None:
        raise ValueError("bfloat16 weights need a random key to be rounded with")
    return round_stochastic(x, key)


def split_key(key: mx.array | None, count: int) -> list[mx.array] | list[None]:
    """Return `count` independent keys, or as many times None when there is none to split."""
    return [None] * count if key is None else list(mx.random.split(key, count))
