"""The shape of a model, what makes it valid, and the blocks and parameters that follow from it by arithmetic.

Legend: `S` bytes of a chunk, `N` slots, `H` width, `h` heads, `d` head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from mlx_amort.config.checks import (
    check_at_least,
    check_at_most,
    check_choices,
    divisors,
    nearest_multiples,
)
from mlx_amort.errors import UserError, assert_never
from mlx_amort.ops.constants import CONVOLUTION_TAPS

Trunk = Literal["hybrid", "dense", "recurrent", "patched"]
BoundaryRule = Literal["every", "first"]
BlockKind = Literal["attention", "recurrent"]
BlockLength = Literal["bytes", "slots"]

BYTE_VALUES = 256
LARGEST_VOCABULARY = 65_536
LOCAL_BLOCKS = 2
# Far beyond any model, and small enough for what follows from them to be counted at once.
LARGEST_LAYERS = 10_000
LARGEST_WIDTH = 2**20
LARGEST_LENGTH = 2**24


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a byte language model; a trunk is two switches: patched or not, recurrent or attention."""

    trunk: Trunk = "hybrid"
    vocabulary: int = 256
    layers: int = 8
    hidden: int = 320
    ffn: int = 1280
    heads: int = 8
    seq: int = 512
    patch_stride: int = 4
    boundary_rule: BoundaryRule = "every"
    scale_residual_init: bool = False

    def __post_init__(self) -> None:
        check_choices("model", self)
        check_at_least("model", self, 1, "layers", "hidden", "ffn", "heads", "seq", "patch_stride")
        check_at_most("model", self, LARGEST_LAYERS, "layers")
        check_at_most("model", self, LARGEST_WIDTH, "hidden", "ffn", "heads")
        check_at_most("model", self, LARGEST_LENGTH, "seq", "patch_stride")
        if not 2 <= self.vocabulary <= LARGEST_VOCABULARY:
            raise UserError(
                f"model.vocabulary={self.vocabulary}",
                f"must be between 2 and {LARGEST_VOCABULARY}",
                "bytes need 256, a uint16 corpus as many as its tokenizer has",
            )
        if self.hidden % self.heads:
            raise UserError(
                f"model.heads={self.heads}",
                f"does not divide model.hidden={self.hidden}",
                f"choose one of {divisors(self.hidden)}",
            )
        if self.is_patched and self.vocabulary != BYTE_VALUES:
            raise UserError(
                f"model.vocabulary={self.vocabulary}",
                f"the {self.trunk} trunk finds its patches by byte value and needs {BYTE_VALUES}",
                "choose model.trunk=dense or recurrent for a larger vocabulary",
            )
        if self.is_patched and self.seq % self.patch_stride:
            raise UserError(
                f"model.seq={self.seq}",
                f"is not divisible by model.patch_stride={self.patch_stride}",
                f"{nearest_multiples(self.seq, self.patch_stride)} would do",
            )

    @property
    def is_patched(self) -> bool:
        """Whether the global blocks run on patch slots instead of on every byte."""
        match self.trunk:
            case "patched" | "hybrid":
                return True
            case "dense" | "recurrent":
                return False
            case unknown:
                assert_never(unknown)

    @property
    def global_mixer(self) -> BlockKind:
        """How the global blocks mix; the recurrence carries state over chunks."""
        match self.trunk:
            case "recurrent" | "hybrid":
                return "recurrent"
            case "dense" | "patched":
                return "attention"
            case unknown:
                assert_never(unknown)

    @property
    def is_recurrent(self) -> bool:
        """Whether the global blocks mix by gated linear recurrence and so carry state over chunks."""
        return self.global_mixer == "recurrent"

    @property
    def head_width(self) -> int:
        """Width d = H / h of one head."""
        return self.hidden // self.heads

    @property
    def slots(self) -> int:
        """Patch slots N = S / patch_stride of a chunk (meaningful when `is_patched`)."""
        return self.seq // self.patch_stride

    @property
    def block_kinds(self) -> tuple[BlockKind, ...]:
        """The mixer of every block, in block order."""
        local: list[BlockKind] = ["attention"] * self._local_blocks
        return (*local, *[self.global_mixer] * self.layers, *local)

    @property
    def block_lengths(self) -> tuple[BlockLength, ...]:
        """What every block runs along, in block order: the chunk's bytes or its slots."""
        length: BlockLength = "slots" if self.is_patched else "bytes"
        local: list[BlockLength] = ["bytes"] * self._local_blocks
        return (*local, *[length] * self.layers, *local)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter; matrices are [out, in], so y = x Wᵀ."""
        shapes = self._embedding_shapes()
        for index, kind in enumerate(self.block_kinds):
            shapes.update({f"blocks.{index}.{name}": shape for name, shape in self._block_shapes(kind)})
        shapes["n_out"] = (self.hidden,)
        return shapes

    @property
    def parameters(self) -> int:
        """How many numbers are trained; the output head is the byte embedding and counts once."""
        outside = sum(math.prod(shape) for shape in self._embedding_shapes().values()) + self.hidden
        kinds = self.block_kinds
        return outside + sum(
            kinds.count(kind) * sum(math.prod(shape) for _, shape in self._block_shapes(kind))
            for kind in get_args(BlockKind)
        )

    def _embedding_shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "tok": (self.vocabulary, self.hidden),
            "pos": (self.seq, self.hidden),
        }
        if self.is_patched:
            shapes["slot"] = (self.slots, self.hidden)
        return shapes

    @property
    def _local_blocks(self) -> int:
        return LOCAL_BLOCKS if self.is_patched else 0

    def _block_shapes(self, kind: BlockKind) -> Iterator[tuple[str, tuple[int, ...]]]:
        width = self.hidden
        yield "n1", (width,)
        yield "qkv", (3 * width, width)
        match kind:
            case "attention":
                pass
            case "recurrent":
                yield "conv", (3 * width, CONVOLUTION_TAPS)
                yield "decay_w", (self.heads, width)
                yield "decay_b", (self.heads,)
                yield "o_norm", (self.head_width,)
                yield "gate", (width, width)
            case unknown:
                assert_never(unknown)
        yield "proj", (width, width)
        yield "n2", (width,)
        yield "up", (self.ffn, width)
        yield "down", (width, self.ffn)
