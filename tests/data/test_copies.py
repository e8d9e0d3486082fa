"""The same content twice, and files that are called train and valid: nothing is trained on and held out in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlx_amort.config.values import DataConfig, SourceConfig
from mlx_amort.data.opening import Corpora, open_corpora, open_corpus, open_whole
from mlx_amort.data.parts import Skipped, left_out
from mlx_amort.data.split_names import joined_splits
from mlx_amort.errors import UserError

ESSAY, LETTER = b"an essay of some length. " * 30, b"a letter of some length. " * 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {
        "a/essay.txt": ESSAY,
        "a/letter.txt": LETTER,
        "b/letter.txt": LETTER,
        "b/poem.txt": b"a poem. " * 90,
        "copy of essay.txt": ESSAY,
        "essay.txt": ESSAY,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def opened(*paths: Path, validation: Path | None = None, raw: bool = False) -> Corpora:
    sources = tuple(SourceConfig(str(path)) for path in paths)
    held_out = None if validation is None else str(validation)
    return open_corpora(DataConfig(sources, validation_fraction=0.2, validation=held_out, raw=raw))


def test_a_copy_in_a_folder_is_left_out_and_named(folder: Path) -> None:
    corpus = open_corpus(str(folder), "uint8", 0.2)
    assert [part.label for part in corpus.parts] == ["a/essay.txt", "a/letter.txt", "b/poem.txt"]
    assert {(file.path, file.reason) for file in corpus.skipped} == {
        ("b/letter.txt", "a copy of a/letter.txt"),
        ("copy of essay.txt", "a copy of a/essay.txt"),
        ("essay.txt", "a copy of a/essay.txt"),
    }


def test_raw_keeps_copies_and_names_them(folder: Path) -> None:
    corpus = open_corpus(str(folder), "uint8", 0.2, raw=True)
    assert len(corpus.parts) == 6
    assert corpus.notes == (
        "3 files of the same content as another (b/letter.txt of a/letter.txt, copy of essay.txt of a/essay.txt, "
        "essay.txt of a/essay.txt): what is held out of one is trained on in the other",
    )


def test_one_byte_makes_no_copy(folder: Path) -> None:
    near = bytearray(ESSAY * 20)
    (folder / "long.txt").write_bytes(near)
    near[len(near) // 2] ^= 1
    (folder / "other.txt").write_bytes(near)
    labels = [part.label for part in open_corpus(str(folder), "uint8", 0.2).parts]
    assert "long.txt" in labels and "other.txt" in labels


def test_two_equal_corpora_are_refused_and_a_shared_file_is_read_once(folder: Path) -> None:
    with pytest.raises(UserError, match=r"corpora .* have the same content, so validation bytes"):
        opened(folder / "essay.txt", folder / "copy of essay.txt")
    first, second = opened(folder / "a", folder / "b").training
    assert len(first.parts) == 2 and [part.label for part in second.parts] == ["poem.txt"]
    assert second.skipped == (Skipped("letter.txt", f"a copy of letter.txt in {folder / 'a'}"),)


def test_equal_shards_are_refused(tmp_path: Path) -> None:
    ids = np.arange(500, dtype="<u2")
    for name in ("a.bin", "b.bin"):
        ids.tofile(tmp_path / name)
    sources = tuple(SourceConfig(str(tmp_path / name)) for name in ("a.bin", "b.bin"))
    with pytest.raises(UserError, match="have the same content"):
        open_corpora(DataConfig(sources, "uint16"))


@pytest.mark.parametrize("raw", [False, True])
def test_a_corpus_of_its_own_is_held_out_and_nothing_else(folder: Path, raw: bool) -> None:
    corpora = opened(folder, validation=folder / "copy of essay.txt", raw=raw)
    (training,), (held_out,) = corpora
    assert corpora.all == (training, held_out)
    assert training.validation_units == 0 and held_out.train_units == 0
    assert held_out.read(0, held_out.validation_units).tobytes() == ESSAY
    # The file itself and its copies are in the folder too.
    assert b"essay" not in training.read(0, training.train_units).tobytes()
    reasons = {file.path: file.reason for file in training.skipped}
    assert reasons["essay.txt"] == f"held out, as {folder / 'copy of essay.txt'}"


def test_nothing_but_the_validation_text_is_no_corpus(folder: Path) -> None:
    with pytest.raises(UserError, match=r"holds nothing but what is held out in data\.validation"):
        opened(folder / "essay.txt", validation=folder / "copy of essay.txt")


def test_a_whole_corpus_can_be_held_out(folder: Path) -> None:
    sources = (SourceConfig(str(folder / "essay.txt")), SourceConfig(str(folder / "b")))
    one, two = open_whole(DataConfig(sources))
    assert (one.train_units, one.validation_units) == (0, len(ESSAY))
    assert two.validation_units == len(LETTER) + 720 and two.place_held_out == "all of it"
    (folder / "one").write_bytes(b"x")
    with pytest.raises(UserError, match="has 1 byte"):
        open_whole(DataConfig((SourceConfig(str(folder / "one")),)))


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["test.txt", "train.txt", "valid.txt"], ("train.txt", "test.txt")),
        (["wiki.test.tokens", "wiki.train.tokens"], ("wiki.train.tokens", "wiki.test.tokens")),
        (["data/Train/a.txt", "data/Val/b.txt"], ("data/Train", "data/Val")),
        (
            ["test-00000-of-00001.txt", "train-00003-of-00009.txt"],
            ("train-00003-of-00009.txt", "test-00000-of-00001.txt"),
        ),
        (["enwik8_dev", "enwik8_training"], None),
        (["a/train.txt", "b/valid.txt"], None),
        (["train.txt", "trainer.txt", "latest.txt"], None),
        (["train.txt", "train2.txt"], None),
        (["test/a.txt", "src/a.txt"], None),
    ],
)
def test_parts_of_a_published_split_are_known_by_name(
    labels: list[str], found: tuple[str, str] | None
) -> None:
    if labels[0].startswith("enwik8"):
        found = ("enwik8_training", "enwik8_dev")
    assert joined_splits(labels) == found


def test_parts_of_a_split_are_not_joined_in_silence(tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_bytes(name.encode() * 50)
    said = "train.txt and valid.txt are both trained on: if they are parts of a split"
    assert open_corpus(str(tmp_path), "uint8", 0.2).notes[0].startswith(said)
    both = opened(tmp_path / "train.txt", tmp_path / "valid.txt").training
    assert "are both trained on" in both[0].notes[0]
    apart = opened(tmp_path / "train.txt", validation=tmp_path / "valid.txt")
    assert not any(corpus.notes for corpus in apart.all)


def test_what_is_left_out_fits_in_a_line() -> None:
    files = [Skipped(f"{name}.txt", "empty") for name in "abcde"]
    files += [Skipped("x", "a copy of y"), Skipped("z", "a copy of w"), Skipped("p.png", "a PNG picture")]
    assert left_out(files) == (
        "8 files: 5 empty (a.txt, b.txt, c.txt, ...), 2 a copy of another (x, z), 1 a PNG picture (p.png)"
    )
