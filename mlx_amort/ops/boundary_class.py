"""The class of bytes that open a slot, which the model's patching and the data card share; no mlx."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt


def _is_in_boundary_class(byte: int) -> bool:
    is_letter_or_digit = byte < 0x80 and chr(byte).isalnum()
    return not is_letter_or_digit and not 0x80 <= byte <= 0xBF


BOUNDARY_CLASS: Final[npt.NDArray[np.bool_]] = np.array([_is_in_boundary_class(byte) for byte in range(256)])
"""Whether a byte is neither an ASCII letter or digit nor a UTF-8 continuation byte. Shapes: [256]."""
