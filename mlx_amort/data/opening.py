"""From the configuration to open corpora: what is trained on and what is held out, no content in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mlx_amort.config.values import DataConfig, SourceConfig, ValidationSplit
from mlx_amort.data.copies import note_of_copies, without_copies
from mlx_amort.data.corpus import Corpus, unit_name
from mlx_amort.data.parts import DISK_DTYPES, Listing
from mlx_amort.data.sources import list_source
from mlx_amort.data.split_names import note_of_splits
from mlx_amort.errors import UserError

# A validation part predicts its second unit from its first: one unit alone says nothing.
LEAST_VALIDATION_UNITS = 2


class Corpora(NamedTuple):
    """What is trained on, and what is validated on: parts of the same corpora, or one of its own."""

    training: tuple[Corpus, ...]
    held_out: tuple[Corpus, ...]

    @property
    def all(self) -> tuple[Corpus, ...]:
        """Every corpus once."""
        return self.training if self.held_out is self.training else (*self.training, *self.held_out)


def open_corpora(config: DataConfig) -> Corpora:
    """Open every source of a mix in the order of the configuration, and what is held out.

    validation_units = floor(units · validation_fraction) of each corpus, none where data.validation names a
    corpus of its own. A file whose content came before is left out, or with `raw` only named.
    Raises: UserError when there is nothing to read, or too little to hold anything out, and when two sources
    are the same, for what one holds out the other would train on.
    """
    if config.validation is None:
        listings = _list_all(config.sources, config, has_validation=False)
        training = tuple(
            _corpus(source.path, listing, config, _part_held_out(source.path, listing, config))
            for source, listing in zip(config.sources, listings, strict=True)
        )
        return Corpora(training, training)
    validation = SourceConfig(config.validation)
    first, *others = _list_all((validation, *config.sources), config, has_validation=True)
    training = tuple(
        _corpus(source.path, listing, config, 0)
        for source, listing in zip(config.sources, others, strict=True)
    )
    return Corpora(training, (_whole(validation.path, first, config),))


def open_whole(config: DataConfig) -> tuple[Corpus, ...]:
    """Open every source with all of it held out, to be scored from its second unit to its last."""
    listings = _list_all(config.sources, config, has_validation=False)
    return tuple(
        _whole(source.path, listing, config) for source, listing in zip(config.sources, listings, strict=True)
    )


def open_corpus(
    path: str,
    dtype: str,
    validation_fraction: float,
    split: ValidationSplit = "tail",
    raw: bool = False,
) -> Corpus:
    """Open one file, folder, .bin or builtin:NAME without reading it. Raises: UserError as `open_corpora`."""
    config = DataConfig((SourceConfig(path),), dtype, validation_fraction, split, raw=raw)  # type: ignore[arg-type]
    return open_corpora(config).training[0]


def _list_all(sources: Sequence[SourceConfig], config: DataConfig, has_validation: bool) -> list[Listing]:
    listings = [list_source(source, config.dtype, config.raw) for source in sources]
    names = [source.path for source in sources]
    _check_no_shared_files(names[has_validation:], listings[has_validation:])
    if config.raw and not has_validation:
        return [
            _with_notes(listing, note_of_copies(listing, DISK_DTYPES[config.dtype])) for listing in listings
        ]
    kept = without_copies(listings, names, DISK_DTYPES[config.dtype], has_validation)
    return [_with_notes(kept[0], note_of_splits(names[has_validation:])), *kept[1:]]


def _with_notes(listing: Listing, notes: Sequence[str]) -> Listing:
    return replace(listing, notes=(*listing.notes, *notes))


def _check_no_shared_files(names: Sequence[str], listings: Sequence[Listing]) -> None:
    owners: dict[object, int] = {}
    for index, listing in enumerate(listings):
        for part in listing.parts:
            other = owners.setdefault(part.identity, index)
            if other != index:
                raise UserError(
                    f"corpora '{names[other]}' and '{names[index]}'",
                    f"both contain {part.label}, so validation bytes of one would be trained on in the other",
                    "name every text once",
                )


def _part_held_out(name: str, listing: Listing, config: DataConfig) -> int:
    units = sum(part.units for part in listing.parts)
    validation_units = int(units * config.validation_fraction)
    if validation_units < LEAST_VALIDATION_UNITS:
        raise UserError(
            f"corpus '{name}'",
            f"has {units:,} {unit_name(config.dtype)}s, and validation_fraction={config.validation_fraction:g} "
            f"holds out {validation_units} where {LEAST_VALIDATION_UNITS} are needed",
            "give a larger text, a larger data.validation_fraction, or a text of its own with --validation",
        )
    return validation_units


def _whole(name: str, listing: Listing, config: DataConfig) -> Corpus:
    units = sum(part.units for part in listing.parts)
    if units < LEAST_VALIDATION_UNITS:
        unit = unit_name(config.dtype)
        raise UserError(
            f"corpus '{name}'",
            f"has {units} {unit}s, and every {unit} is predicted from those before it",
            f"give a text of at least {LEAST_VALIDATION_UNITS} {unit}s",
        )
    return _corpus(name, listing, config, units)


def _corpus(name: str, listing: Listing, config: DataConfig, validation_units: int) -> Corpus:
    split: ValidationSplit = "tail" if listing.is_shuffled else config.validation_split
    return Corpus(name, config.dtype, listing.parts, listing.skipped, validation_units, split, listing.notes)
