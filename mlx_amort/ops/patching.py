"""Bytes to word-like slots and back.

A boundary byte opens a slot; slot j belongs to the j-th boundary of the row, while there are slots left. Both moves are
row gathers in both directions (each byte owns at most one slot), so their gradients add nothing and are deterministic.
Source: docs/model.md, "Patching"; Slagle 2024 (SpaceByte) for the rule `first`.
"""

from __future__ import annotations

from typing import Literal, cast

import mlx.core as mx

from mlx_amort.errors import assert_never
from mlx_amort.ops.boundary_class import BOUNDARY_CLASS

BoundaryRule = Literal["every", "first"]


def is_boundary(tokens: mx.array, rule: BoundaryRule) -> mx.array:
    """Which bytes of a chunk open a slot; its first byte always does.

    `every`: each byte of the boundary class. `first`: only those whose predecessor is not of that class.
    Shapes: tokens [B, S] -> [B, S] bool. Dtypes: any integer, values below 256.
    """
    boundary = mx.take(mx.array(BOUNDARY_CLASS), tokens)
    first_byte = mx.arange(tokens.shape[1]) == 0
    match rule:
        case "every":
            return boundary | first_byte
        case "first":
            follows = mx.concatenate([mx.zeros_like(boundary[:, :1]), boundary[:, :-1]], axis=1)
            return (boundary & ~follows) | first_byte
        case unknown:
            assert_never(unknown)


def assign_slots(boundary: mx.array, slots: int) -> tuple[mx.array, mx.array, mx.array]:
    """Slots of bytes and bytes of slots.

    Shapes: boundary [B, S] bool -> slot_of_byte [B, S] int32 (`slots` where a byte owns none),
    position [B, N] int32 (0 where a slot is not valid), valid [B, N] bool.
    """
    rows, length = boundary.shape
    ordinal = mx.cumsum(boundary.astype(mx.int32), axis=1) - 1
    slot_of_byte = mx.where(boundary & (ordinal < slots), ordinal, slots)
    positions = mx.broadcast_to(mx.arange(length, dtype=mx.int32), (rows, length))
    # Bytes without a slot all write to the extra column, which is dropped.
    table = mx.put_along_axis(mx.zeros((rows, slots + 1), dtype=mx.int32), slot_of_byte, positions, axis=1)
    valid = mx.arange(slots) < ordinal[:, -1:] + 1
    return slot_of_byte, mx.where(valid, table[:, :slots], 0), valid


def take_rows(x: mx.array, index: mx.array) -> mx.array:
    """x[b, index[b, i]] as one flat row gather. Shapes: x [B, L, H], index [B, I] -> [B, I, H]."""
    rows, length, width = x.shape
    # mx.checkpoint asks for the gradient of every argument, indices too, which mx.take refuses.
    flat = mx.stop_gradient(index + mx.arange(rows, dtype=index.dtype)[:, None] * length)
    return mx.take(x.reshape(rows * length, width), flat, axis=0)


def _slots_to_bytes(g: mx.array, slot_of_byte: mx.array) -> mx.array:
    padded = mx.concatenate([g, mx.zeros_like(g[:, :1])], axis=1)
    return take_rows(padded, slot_of_byte)


def _bytes_to_slots(x: mx.array, position: mx.array, valid: mx.array) -> mx.array:
    return mx.where(valid[..., None], take_rows(x, position), mx.zeros((), dtype=x.dtype))


def gather_slots(x: mx.array, position: mx.array, valid: mx.array, slot_of_byte: mx.array) -> mx.array:
    """Row `position[j]` of `x` for every valid slot j, zero for the others.

    Shapes: x [B, S, H], position and valid [B, N], slot_of_byte [B, S] -> [B, N, H]. Dtypes: as `x`.
    """

    @mx.custom_function
    def gather(x: mx.array, position: mx.array, valid: mx.array, slot_of_byte: mx.array) -> mx.array:
        return _bytes_to_slots(x, position, valid)

    @gather.vjp
    def gather_vjp(primals, cotangent, output):  # type: ignore[no-untyped-def]
        zeros = [mx.zeros_like(p) for p in primals[1:]]
        return (_slots_to_bytes(cotangent, primals[3]), *zeros)

    return cast(mx.array, gather(x, position, valid, slot_of_byte))


def scatter_slots(
    x: mx.array, g: mx.array, position: mx.array, valid: mx.array, slot_of_byte: mx.array
) -> mx.array:
    """`x` with slot j of `g` added at row `position[j]` for every valid slot j.

    Shapes: x [B, S, H], g [B, N, H], position and valid [B, N], slot_of_byte [B, S] -> [B, S, H].
    """

    @mx.custom_function
    def spread(g: mx.array, position: mx.array, valid: mx.array, slot_of_byte: mx.array) -> mx.array:
        return _slots_to_bytes(g, slot_of_byte)

    @spread.vjp
    def spread_vjp(primals, cotangent, output):  # type: ignore[no-untyped-def]
        zeros = [mx.zeros_like(p) for p in primals[1:]]
        return (_bytes_to_slots(cotangent, primals[1], primals[2]), *zeros)

    return x + cast(mx.array, spread(g, position, valid, slot_of_byte))
