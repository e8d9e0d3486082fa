"""Reverse-mode differentiation of NumPy float64 arrays, small enough to be read in one sitting.

It exists so that an oracle is written once, as a formula, and gives its own gradient;
tests/reference/test_oracles.py holds every operation to central differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class Tensor:
    """A float64 array that remembers the operation it came from."""

    def __init__(
        self,
        value: ArrayLike,
        parents: Sequence[Tensor] = (),
        spread: Callable[[Array], None] | None = None,
    ) -> None:
        self.value: Array = np.asarray(value, dtype=np.float64)
        self.parents = tuple(parents)
        self.spread = spread
        self._gradient: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def gradient(self) -> Array:
        """d(root)/d(self) after `backward`; zeros where the root does not depend on it."""
        if self._gradient is None:
            self._gradient = np.zeros_like(self.value)
        return self._gradient

    def __add__(self, other: Tensor | float) -> Tensor:
        right = as_tensor(other)

        def spread(gradient: Array) -> None:
            _add_reduced(self, gradient)
            _add_reduced(right, gradient)

        return Tensor(self.value + right.value, (self, right), spread)

    def __mul__(self, other: Tensor | float) -> Tensor:
        right = as_tensor(other)

        def spread(gradient: Array) -> None:
            _add_reduced(self, gradient * right.value)
            _add_reduced(right, gradient * self.value)

        return Tensor(self.value * right.value, (self, right), spread)

    def __matmul__(self, right: Tensor) -> Tensor:
        def spread(gradient: Array) -> None:
            _add_reduced(self, gradient @ right.transposed().value)
            _add_reduced(right, self.transposed().value @ gradient)

        return Tensor(self.value @ right.value, (self, right), spread)

    def __getitem__(self, index: Any) -> Tensor:
        def spread(gradient: Array) -> None:
            if isinstance(index, np.ndarray):
                np.add.at(self.gradient, index, gradient)  # an embedding row may be named many times
            else:
                self.gradient[index] += gradient

        return Tensor(self.value[index], (self,), spread)

    def reshape(self, *shape: int) -> Tensor:
        def spread(gradient: Array) -> None:
            self.gradient[...] += gradient.reshape(self.shape)

        return Tensor(self.value.reshape(shape), (self,), spread)

    def transposed(self) -> Tensor:
        """The last two axes exchanged."""

        def spread(gradient: Array) -> None:
            self.gradient[...] += np.swapaxes(gradient, -1, -2)

        return Tensor(np.swapaxes(self.value, -1, -2), (self,), spread)

    def sum(self) -> Tensor:
        def spread(gradient: Array) -> None:
            self.gradient[...] += gradient

        return Tensor(self.value.sum(), (self,), spread)

    def mean_last(self) -> Tensor:
        """Mean over the last axis, which stays with length one."""

        def spread(gradient: Array) -> None:
            self.gradient[...] += gradient / self.shape[-1]

        return Tensor(self.value.mean(axis=-1, keepdims=True), (self,), spread)


def as_tensor(value: Tensor | ArrayLike) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)


def apply_elementwise(x: Tensor, value: Array, slope: Array) -> Tensor:
    """f(x) from its values and its derivative at x."""

    def spread(gradient: Array) -> None:
        x.gradient[...] += gradient * slope

    return Tensor(value, (x,), spread)


def concatenate(parts: Sequence[Tensor], axis: int = 0) -> Tensor:
    edges = np.cumsum([0] + [part.shape[axis] for part in parts])

    def spread(gradient: Array) -> None:
        for part, start, stop in zip(parts, edges[:-1], edges[1:], strict=True):
            part.gradient[...] += gradient[(slice(None),) * axis + (slice(start, stop),)]

    return Tensor(np.concatenate([part.value for part in parts], axis=axis), parts, spread)


def stack(parts: Sequence[Tensor]) -> Tensor:
    """Parts of one shape under a new first axis."""
    return concatenate([part.reshape(1, *part.shape) for part in parts])


def backward(root: Tensor) -> None:
    """Fill `gradient` of everything the scalar `root` was computed from."""
    assert root.value.size == 1, root.shape
    order: list[Tensor] = []
    seen: set[int] = set()
    pending: list[tuple[Tensor, bool]] = [(root, False)]
    while pending:  # a loop and not recursion: a chain over thousands of slots is deeper than Python's stack
        node, is_done = pending.pop()
        if is_done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending.extend((parent, False) for parent in node.parents)
    root.gradient[...] = 1.0
    for node in reversed(order):
        if node.spread is not None:
            node.spread(node.gradient)


def differentiate(
    function: Callable[..., Tensor], inputs: Sequence[ArrayLike], weighting: ArrayLike | None = None
) -> tuple[Array, list[Array]]:
    """Value of function(*inputs), and the gradient of sum(weighting * value) by every input."""
    tensors = [Tensor(np.array(value, dtype=np.float64)) for value in inputs]
    value = function(*tensors)
    backward((value * as_tensor(1.0 if weighting is None else weighting)).sum())
    return value.value, [tensor.gradient for tensor in tensors]


def central_difference(function: Callable[[Array], float], point: ArrayLike, step: float = 1e-5) -> Array:
    """Gradient by (f(x + step) - f(x - step)) / (2 step), one element at a time."""
    x = np.array(point, dtype=np.float64)
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        kept = x[index]
        x[index] = kept + step
        above = function(x)
        x[index] = kept - step
        gradient[index] = (above - function(x)) / (2 * step)
        x[index] = kept
    return gradient


def _add_reduced(tensor: Tensor, gradient: Array) -> None:
    """Undo broadcasting: sum over the axes that the tensor was stretched along, and add."""
    while gradient.ndim > tensor.value.ndim:
        gradient = gradient.sum(axis=0)
    for axis, length in enumerate(tensor.shape):
        if length == 1 and gradient.shape[axis] != 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    tensor.gradient[...] += gradient
