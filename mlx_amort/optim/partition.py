"""Which optimizer owns a parameter, decided by its name alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal

Owner = Literal["muon", "adamw"]

STATE_NAMES: Final[Mapping[Owner, tuple[str, ...]]] = {"muon": ("momentum",), "adamw": ("first", "second")}
"""Names of the arrays of a parameter's size that its owner keeps: Muon its momentum, AdamW two moments."""
BUFFERS: Final[Mapping[Owner, int]] = {owner: len(names) for owner, names in STATE_NAMES.items()}

# The matrices of the blocks, by the last part of the name: they map hidden vectors to hidden vectors.
_BLOCK_MATRICES: Final = frozenset({"qkv", "gate", "proj", "up", "down", "decay_w"})
# Norms, the bias, and the embeddings of positions: pulling these to zero regularises nothing.
_WITHOUT_DECAY: Final = frozenset({"n1", "n2", "n_out", "o_norm", "decay_b", "pos", "slot"})


def owners(shapes: Mapping[str, tuple[int, ...]], optimizer: str) -> dict[str, Owner]:
    """Return each parameter's owner: Muon for the blocks' matrices, AdamW for the rest; `adamw` owns all.

    Raises: ValueError for an optimizer of another name, or for a block matrix that is not one.
    """
    if optimizer not in ("muon", "adamw"):
        raise ValueError(f"optimizer {optimizer!r} is neither 'muon' nor 'adamw'")
    return {name: _owner(name, shape, optimizer) for name, shape in shapes.items()}


def _owner(name: str, shape: tuple[int, ...], optimizer: str) -> Owner:
    if optimizer == "adamw" or _last_part(name) not in _BLOCK_MATRICES:
        return "adamw"
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {shape}, and Muon orthogonalises matrices")
    return "muon"


def state_numbers(shapes: Mapping[str, tuple[int, ...]], optimizer: str) -> int:
    """Numbers in the optimizer's state: every parameter's buffers. As wide as the weights."""
    return sum(BUFFERS[owner] * math.prod(shapes[name]) for name, owner in owners(shapes, optimizer).items())


def has_weight_decay(name: str) -> bool:
    """Return whether weight decay pulls at a parameter: not at norms, biases, or embeddings of positions."""
    return _last_part(name) not in _WITHOUT_DECAY


def _last_part(name: str) -> str:
    return name.rpartition(".")[2]
