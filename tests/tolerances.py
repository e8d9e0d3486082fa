"""How far float32 and bfloat16 results may lie from the float64 oracles: the only place where it is said.

Every figure is an upper bound on `relative_error`, which is RMS(computed - reference) / RMS(reference). Each
stands for one kind of computation and has its reason; a test that misses its figure is a bug to find, not a
figure to raise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

TOLERANCES: dict[str, float] = {
    # a handful of float32 roundings (6e-8 each), or a rational erf good to 5e-7
    "elementwise": 2e-6,
    # sums of some tens of float32 products
    "sums": 2e-6,
    # weights from an exp() good to 1e-6 absolute (the CPU path's), and gradients that are differences of them
    "softmax": 2e-5,
    # sums of products with up to a hundred decays, in another order than the oracle's
    "recurrence": 1e-5,
    # exponents of tens to a thousand (cumulated log decays, large scores): exp() keeps their absolute error
    "large_exponents": 2e-5,
    # four to six blocks one after another; gradients pass through each twice
    "model": 1e-4,
    # two orders of the same float32 computation, sums included
    "reordered": 1e-5,
    # bfloat16 keeps 8 bits: 2e-3 a rounding, amplified through norms and blocks
    "bf16_operation": 1e-2,
    "bf16_model": 5e-2,
    # float64 central differences of step 1e-5 on values near 1
    "central_difference": 1e-7,
    # golden files store float32
    "stored_float32": 1e-5,
}


def relative_error(computed: Any, reference: ArrayLike, floor: float = 0.0) -> float:
    """RMS(computed - reference) / max(RMS(reference), floor), the divisor being 1 where both are zero.

    `floor` is the natural scale of a quantity whose reference vanishes, as the gradient of a shut gate does.
    """
    expected = np.asarray(reference, dtype=np.float64)
    actual = np.array(computed).astype(np.float64)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    scale = max(float(np.sqrt(np.mean(expected**2))), floor) or 1.0
    return float(np.sqrt(np.mean((actual - expected) ** 2))) / scale


def assert_close(
    computed: Any, reference: ArrayLike, kind: str, name: str = "value", floor: float = 0.0
) -> None:
    """Fail with the tensor's name and its error when that exceeds the kind's figure, or is not a number."""
    error = relative_error(computed, reference, floor)
    assert error <= TOLERANCES[kind], f"{name}: error {error:.2e} exceeds {TOLERANCES[kind]:.0e} ({kind})"
