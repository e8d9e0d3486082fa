"""A file of 16-bit token ids: with or without the header of llm.c's shards, and what is often taken for one.

A shard begins with 256 little-endian int32: a magic number, a version, and how many ids follow.
Source: llm.c, dev/data/data_common.py (Karpathy et al. 2024), `write_datafile`.
"""

from __future__ import annotations

import numpy as np

from mlx_amort.data.kinds import is_text, sure_kind_of
from mlx_amort.errors import UserError

HEADER_BYTES = 1024
ID_BYTES = 2
# Magic number -> (the only version that was written, bytes of an id).
SHARD_MAGICS = {20240520: (1, 2), 20240801: (7, 4)}
# Other files that llm.c writes with such a header.
OTHER_MAGICS = {
    20240326: "a model of llm.c",
    20240327: "a debug state of llm.c",
    20240328: "a tokenizer of llm.c",
    20240522: "an evaluation of llm.c",
}
# The high halves of 32-bit ids: no tokenizer has more than so many times 65,536 ids.
LARGEST_HIGH_HALF = 15
LEAST_IDS_JUDGED = 16
LEAST_LETTERS_JUDGED = 64
_WRITE_16_BITS = "write ids below 65,536 as uint16"


def id_header_bytes(what: str, head: bytes, size_bytes: int) -> int:
    """Return how many bytes stand before the first id: HEADER_BYTES for a shard with a header, else 0.

    what: the corpus, for messages. Raises: UserError when the header contradicts the file, and for what holds
    no 16-bit ids.
    """
    header = np.frombuffer(head[: len(head) // 4 * 4], "<i4")[:3]
    if len(header) == 3:
        magic = int(header[0])
        if int(header[:1].byteswap()[0]) in SHARD_MAGICS:
            raise UserError(what, "is a big-endian shard of token ids", "write it as little-endian")
        if magic in OTHER_MAGICS:
            raise UserError(what, f"is {OTHER_MAGICS[magic]}, not token ids", "name a file of ids")
        if magic in SHARD_MAGICS:
            return _checked_header(what, magic, int(header[1]), int(header[2]), size_bytes)
    _check_is_ids(what, head)
    return 0


def _checked_header(what: str, magic: int, version: int, ids: int, size_bytes: int) -> int:
    known, id_bytes = SHARD_MAGICS[magic]
    shard = f"is a shard of token ids (header {magic})"
    if version != known:
        raise UserError(what, f"{shard} of version {version}, where {known} is known", "write it again")
    if id_bytes != ID_BYTES:
        raise UserError(what, f"{shard}, which has {8 * id_bytes}-bit ids", _WRITE_16_BITS)
    following = (size_bytes - HEADER_BYTES) / ID_BYTES
    if ids != following:
        shown = f"{max(0.0, following):,.1f}".removesuffix(".0")
        raise UserError(
            what, f"{shard} that counts {ids:,} ids where {shown} follow", "copy or write it again"
        )
    return HEADER_BYTES


def _check_is_ids(what: str, head: bytes) -> None:
    kind = sure_kind_of(head)
    if kind is not None:
        why = f"is {kind.name}, not a plain row of uint16 ids"
        raise UserError(what, why, "write the ids alone, as with numpy's tofile")
    if len(head) >= LEAST_LETTERS_JUDGED and head.isascii() and is_text(head):
        raise UserError(what, "is text, not uint16 ids", "set data.dtype=uint8 for text")
    ids = np.frombuffer(head[: len(head) // 4 * 4], "<u2")
    low, high = ids[0::2], ids[1::2]
    # 64-bit ids are zero in three halves of four, so a quarter of the low halves is enough.
    if (
        len(low) >= LEAST_IDS_JUDGED
        and high.max() <= LARGEST_HIGH_HALF
        and np.mean(low > LARGEST_HIGH_HALF) > 0.25
    ):
        raise UserError(
            what, "looks like ids of 32 or 64 bits (every second 16 bits are next to 0)", _WRITE_16_BITS
        )
