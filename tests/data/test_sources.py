"""What a path turns into: the files of a folder, the built-in corpora, and the mistakes a user can make."""

from __future__ import annotations

import gzip
import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_amort.config.conversion import parse_source
from mlx_amort.config.values import DataConfig, SourceConfig
from mlx_amort.data.corpus import Corpus
from mlx_amort.data.kinds import is_text
from mlx_amort.data.opening import open_corpora, open_corpus
from mlx_amort.errors import UserError


def whole(corpus: Corpus) -> bytes:
    return corpus.read(0, corpus.units).tobytes()


def write_all(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_a_folder_is_its_text_files_in_sorted_order(tmp_path: Path) -> None:
    write_all(
        tmp_path,
        {
            "b.txt": b"second. ",
            "a/z.md": b"first. ",
            "c/deep/er.py": "tr\u00e8s. ".encode(),
            "c/image.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
            "c/noise.gz": bytes(range(1, 256)) * 4,
            "empty.txt": b"",
            ".git/config": b"hidden. ",
            "a/.hidden.txt": b"hidden. ",
        },
    )
    corpus = open_corpus(str(tmp_path), "uint8", 0.5)
    assert whole(corpus).decode() == "first. second. très. "
    assert [part.label for part in corpus.parts] == ["a/z.md", "b.txt", "c/deep/er.py"]
    assert {(skipped.path, skipped.reason) for skipped in corpus.skipped} == {
        ("c/image.png", "a PNG picture"),
        ("c/noise.gz", "binary"),
        ("empty.txt", "empty"),
    }


def test_links_are_followed_and_their_loops_and_second_names_read_once(tmp_path: Path) -> None:
    write_all(
        tmp_path, {"corpus/a.txt": b"inside ", "corpus/sub/b.txt": b"deeper ", "outside/c.txt": b"linked "}
    )
    root = tmp_path / "corpus"
    (root / "sub" / "up").symlink_to(root, target_is_directory=True)
    # Two loops: walked without care they are as many paths as 2 to the depth the system allows.
    (root / "sub" / "up_too").symlink_to(root, target_is_directory=True)
    (root / "z_outside").symlink_to(tmp_path / "outside", target_is_directory=True)
    (root / "z_again.txt").symlink_to(root / "a.txt")
    (root / "z_broken.txt").symlink_to(root / "nowhere")
    corpus = open_corpus(str(root), "uint8", 0.5)
    assert whole(corpus) == b"inside deeper linked "
    assert [(skipped.path, skipped.reason) for skipped in corpus.skipped] == [
        ("z_again.txt", "the same file as a.txt"),
        ("z_broken.txt", "cannot be read (No such file or directory)"),
    ]


@pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="no pipes on this system: that one is skipped goes unchecked"
)
def test_a_pipe_in_a_folder_does_not_hang(tmp_path: Path) -> None:
    write_all(tmp_path, {"a.txt": b"some text"})
    os.mkfifo(tmp_path / "pipe")
    corpus = open_corpus(str(tmp_path), "uint8", 0.5)
    assert whole(corpus) == b"some text"
    assert corpus.skipped[0].reason == "not a regular file"


def test_is_text() -> None:
    assert is_text(b"")
    assert is_text("größe\r\n\tπ \x1b[1m".encode())
    assert is_text("größe".encode("latin-1"))
    assert not is_text("utf-16".encode("utf-16"))
    assert not is_text(bytes(range(1, 256)))


def test_the_documentation_is_built_in() -> None:
    corpus = open_corpus("builtin:docs", "uint8", 0.05)
    assert 300_000 < corpus.units < 1_500_000
    assert "lambda" in whole(corpus).decode()


def test_what_is_held_out_of_the_documentation_is_a_fair_sample_of_it() -> None:
    corpus = open_corpus("builtin:docs", "uint8", 0.05)
    held_out = corpus.validation_units
    # zlib's bits of pieces as long as the tail: in the order of the names the tail is far below the mean.
    pieces = [piece.tobytes() for piece in corpus.pieces(0, corpus.train_units, held_out)][:-1]
    bits = [8 * len(zlib.compress(piece, 9)) / held_out for piece in pieces]
    tail = corpus.read(corpus.train_units, held_out).tobytes()
    assert abs(8 * len(zlib.compress(tail, 9)) / held_out / np.mean(bits) - 1) < 0.08


def test_the_standard_library_is_built_in_without_its_tests_and_packages() -> None:
    corpus = open_corpus("builtin:stdlib", "uint8", 0.05)
    assert 5_000_000 < corpus.units < 30_000_000
    labels = [part.label for part in corpus.parts]
    assert labels == sorted(labels) and "dataclasses.py" in labels
    assert not any({"test", "site-packages", "dist-packages"} & set(label.split("/")) for label in labels)


@pytest.mark.parametrize(
    ("path", "dtype", "words"),
    [
        ("missing.txt", "uint8", ["missing.txt", "No such file", "builtin:docs"]),
        ("builtin:doc", "uint8", ["no such built-in", "did you mean 'docs'?"]),
        ("builtin:docs", "uint16", ["uint16"]),
        ("words.txt", "uint16", [".bin"]),
        ("odd.bin", "uint16", ["3 bytes", "not whole ids"]),
        ("tiny.txt", "uint8", ["has 30 bytes", "holds out 1 where 2"]),
        ("none", "uint8", ["no text file", "1 left out: x.bin: binary"]),
        ("/dev/null", "uint8", ["is a device"]),
        ("loop", "uint8", ["loop", "symbolic links"]),
        ("~nosuchuser/x", "uint8", ["there is no user named nosuchuser"]),
        ("x" * 5000, "uint8", ["File name too long"]),
        ("words.txt/deeper", "uint8", ["Not a directory"]),
        ("empty", "uint8", ["has no text file in it;"]),
        ("packed", "uint8", ["a.gz: gzip-compressed", "gzip -dc < packed/a.gz > packed/a.txt"]),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, dtype: str, words: list[str]
) -> None:
    write_all(
        tmp_path,
        {"words.txt": b"words " * 99, "odd.bin": b"abc", "tiny.txt": b"." * 30, "none/x.bin": b"\0\1"},
    )
    write_all(tmp_path, {"packed/a.gz": gzip.compress(b"text")})
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        open_corpus(path, dtype, 0.05)
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_changes_or_goes_away_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"text" * 10)
    corpus = open_corpus(str(file), "uint8", 0.5)
    file.write_bytes(b"text" * 9)
    with pytest.raises(UserError, match="was 40 bytes when it was opened and is 36 now"):
        corpus.read(0, 4)
    file.unlink()
    with pytest.raises(UserError, match="No such file"):
        corpus.read(0, 4)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes or sockets on this system to be refused")
def test_what_has_no_end_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for name in ("pipe", "socket"):
        with pytest.raises(UserError, match=f"is a {name}; write it to a file, and name that"):
            open_corpus(name, "uint8", 0.5)


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(5, "Input/output error")]
)
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    write_all(tmp_path, {"locked/a.txt": b"text" * 9, "b.txt": b"more text" * 9})

    def refused(path: str | Path, scandir: Callable[..., Any] = os.scandir) -> Any:
        if str(path).endswith("locked"):
            error.filename = str(path)
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(UserError, match=rf"locked': cannot be read \({error.strerror}\)"):
        open_corpus(str(tmp_path / "locked"), "uint8", 0.5)
    corpus = open_corpus(str(tmp_path), "uint8", 0.5)
    assert [(left.path, left.reason) for left in corpus.skipped] == [
        ("locked", f"cannot be read ({error.strerror})")
    ]


def test_a_name_with_a_colon_that_exists_goes_before_a_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_all(tmp_path, {"log": b"log " * 99, "talk 12:30": b"talk " * 99, "log:7": b"seven " * 99})
    monkeypatch.chdir(tmp_path)

    def opened(text: str) -> tuple[Corpus, float]:
        source = parse_source(text)
        return open_corpora(DataConfig((source,))).training[0], source.weight

    talk, weight = opened("talk 12:30")
    assert (whole(talk)[:5], weight, talk.notes) == (b"talk ", 1.0, ())
    both, weight = opened("log:7")
    assert (whole(both)[:6], weight) == (b"seven ", 1.0)
    assert both.notes == ("'log:7' is read as the file of that name; for 'log' with weight 7 write log:7.0",)
    log, weight = opened("log:7.0")
    assert (whole(log)[:4], weight) == (b"log ", 7.0)
    for text in ("talk 12:01", "gone:1", "gone:3", "~gone:2"):
        with pytest.raises(UserError) as caught:
            opened(text)
        name, _, number = text.rpartition(":")
        assert f"'{name}'" in str(caught.value)
        assert name.startswith("~") or f"none named '{name}:{number}'" in str(caught.value)
    with pytest.raises(UserError, match="corpus 'gone': cannot be read"):
        opened("gone")


def test_two_sources_may_not_share_a_file(tmp_path: Path) -> None:
    write_all(tmp_path, {"a/one.txt": b"one " * 9, "a/two.txt": b"two " * 9})
    sources = (SourceConfig(str(tmp_path / "a")), SourceConfig(str(tmp_path / "a" / "two.txt")))
    with pytest.raises(UserError, match=r"both contain two\.txt"):
        open_corpora(DataConfig(sources, validation_fraction=0.5))
    with pytest.raises(UserError, match="both contain"):
        open_corpora(DataConfig((SourceConfig("builtin:docs"), SourceConfig("builtin:docs"))))


def test_ids_are_little_endian(tmp_path: Path) -> None:
    (tmp_path / "ids.bin").write_bytes(b"\x01\x00\x00\x02\xff\xff\x05\x00")
    corpus = open_corpus(str(tmp_path / "ids.bin"), "uint16", 0.5)
    np.testing.assert_array_equal(corpus.read(0, 4), [1, 512, 65535, 5])
    assert corpus.read(0, 4).dtype == np.uint16
