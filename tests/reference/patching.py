"""Which bytes are boundaries and which slots they own, byte by byte in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

ASCII_LETTERS_AND_DIGITS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def has_boundary_class(byte: int) -> bool:
    """Neither an ASCII letter or digit nor a UTF-8 continuation byte."""
    return byte not in ASCII_LETTERS_AND_DIGITS and not 0x80 <= byte <= 0xBF


def boundary_positions(chunk: Sequence[int], rule: str = "every") -> list[int]:
    """Positions of the boundaries of one row's chunk; its first byte is one always."""
    positions = []
    for position, byte in enumerate(chunk):
        if position == 0:
            is_boundary = True
        elif rule == "every":
            is_boundary = has_boundary_class(byte)
        else:
            assert rule == "first", rule
            is_boundary = has_boundary_class(byte) and not has_boundary_class(chunk[position - 1])
        if is_boundary:
            positions.append(position)
    return positions


def owning_positions(chunk: Sequence[int], slots: int, rule: str = "every") -> list[int]:
    """Position of the byte that owns slot 0, 1, ...; boundaries beyond the last slot own none."""
    return boundary_positions(chunk, rule)[:slots]
