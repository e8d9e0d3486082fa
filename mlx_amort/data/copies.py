"""The same content twice: what is held out of one copy would be trained on in the other.

Files are compared whole, but only those of equal size, and of these only those with equal ends.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlx_amort.amounts import counted
from mlx_amort.data.parts import SHOWN_NAMES, Listing, Part, Skipped
from mlx_amort.errors import UserError

END_UNITS = 4096
PIECE_UNITS = 1 << 20

Key = tuple[int, bytes, bytes]


def without_copies(
    listings: Sequence[Listing], names: Sequence[str], dtype: np.dtype[Any], first_is_validation: bool
) -> list[Listing]:
    """Leave out of every listing the parts whose content came before, in it or in a listing before it.

    first_is_validation: listings[0] is all held out, so what equals a part of it is not to be trained on.
    Raises: UserError when that leaves nothing of a listing.
    """
    keys = _keys([part for listing in listings for part in listing.parts], dtype)
    owners: dict[Key, tuple[int, Part]] = {}
    kept_listings = []
    for index, listing in enumerate(listings):
        kept, copies = [], []
        for part in listing.parts:
            key = keys[id(part)]
            owner = None if key is None else owners.setdefault(key, (index, part))
            if owner is None or owner[1] is part:
                kept.append(part)
                continue
            first = owner[1].label
            if owner[0] != index:
                is_file = len(listings[owner[0]].parts) == 1
                first = names[owner[0]] if is_file else f"{first} in {names[owner[0]]}"
            is_held_out = first_is_validation and owner[0] == 0 < index
            reason = "held out, as" if is_held_out else "a copy of"
            copies.append((owner[0], Skipped(part.label, f"{reason} {first}")))
        if not kept:
            raise _nothing_left(names[index], names[copies[0][0]], first_is_validation and copies[0][0] == 0)
        skipped = (*listing.skipped, *(copy for _, copy in copies))
        kept_listings.append(replace(listing, parts=tuple(kept), skipped=skipped))
    return kept_listings


def note_of_copies(listing: Listing, dtype: np.dtype[Any]) -> list[str]:
    """Name the parts of a listing that are copies and are read nevertheless."""
    keys, seen, pairs = _keys(listing.parts, dtype), dict[Key, str](), list[str]()
    for part in listing.parts:
        key = keys[id(part)]
        if key is not None and (first := seen.setdefault(key, part.label)) != part.label:
            pairs.append(f"{part.label} of {first}")
    if not pairs:
        return []
    more = ", ..." if len(pairs) > SHOWN_NAMES else ""
    return [
        f"{counted(len(pairs), 'file')} of the same content as another ({', '.join(pairs[:SHOWN_NAMES])}{more}): "
        "what is held out of one is trained on in the other"
    ]


def _nothing_left(name: str, other: str, is_validation: bool) -> UserError:
    if is_validation:
        return UserError(
            f"corpus '{name}'",
            f"holds nothing but what is held out in data.validation, '{other}'",
            "train on another text",
        )
    return UserError(
        f"corpora '{other}' and '{name}'",
        "have the same content, so validation bytes of one would be trained on in the other",
        "name every text once; a weight gives it a larger share",
    )


def _keys(parts: Sequence[Part], dtype: np.dtype[Any]) -> dict[int, Key | None]:
    """A key by id(part), equal for equal content; None for a part that no other can equal."""
    sizes = Counter(part.units for part in parts)
    ends = {
        id(part): (part.units, _digest(part, dtype, is_whole=False))
        for part in parts
        if sizes[part.units] > 1
    }
    alike = Counter(ends.values())
    return {
        id(part): (*ends[id(part)], _digest(part, dtype, is_whole=True))
        if id(part) in ends and alike[ends[id(part)]] > 1
        else None
        for part in parts
    }


def _digest(part: Part, dtype: np.dtype[Any], is_whole: bool) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    starts = range(0, part.units, PIECE_UNITS) if is_whole else (0, max(0, part.units - END_UNITS))
    for start in starts:
        count = min(PIECE_UNITS if is_whole else END_UNITS, part.units - start)
        digest.update(part.read(start, count, dtype).tobytes())
    return digest.digest()
