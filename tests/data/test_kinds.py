"""A file that is no text is known by its first bytes, named, and never trained on without a word."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import shlex
import sqlite3
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_amort.data.kinds import is_text, kind_of, sure_kind_of
from mlx_amort.data.opening import open_corpus
from mlx_amort.errors import UserError

TEXT = b"the state of a byte is carried over chunks and never cut.\n" * 60
NOISE = zlib.compress(np.random.default_rng(0).bytes(5000))[2:]
CHINESE = "我们每天都学习新的东西，然后写下来。" * 40  # noqa: RUF001


def zipped(name: str, content: bytes = TEXT) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return file.getvalue()


def saved_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(99))
    return file.getvalue()


def database(folder: Path) -> bytes:
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("create table a(b)")
    connection.close()
    return (folder / "a.db").read_bytes()


HEADER = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
KINDS = {
    "gzip-compressed": gzip.compress(TEXT),
    "bzip2-compressed": bz2.compress(TEXT),
    "xz-compressed": lzma.compress(TEXT),
    "lzma-compressed": lzma.compress(TEXT, format=lzma.FORMAT_ALONE),
    "zlib-compressed": zlib.compress(TEXT),
    "zstd-compressed": b"\x28\xb5\x2f\xfd\x24" + NOISE,
    "lz4-compressed": b"\x04\x22\x4d\x18\x64" + NOISE,
    "a zip archive": zipped("a.txt"),
    "a NumPy archive (npz)": zipped("a.npy"),
    "a PyTorch file": zipped("model/data.pkl"),
    "an office document": zipped("word/document.xml"),
    "an EPUB book": zipped("mimetype", b"application/epub+zip"),
    "a tar archive": tarred(),
    "a 7z archive": b"7z\xbc\xaf\x27\x1c\0\4" + NOISE,
    "a rar archive": b"Rar!\x1a\x07\x01\0" + NOISE,
    "a NumPy array (npy)": saved_array(),
    "a parquet table": b"PAR1\x15\x04\x15" + NOISE + b"PAR1",
    "an Arrow table": b"ARROW1\0\0" + NOISE,
    "an HDF5 file": b"\x89HDF\r\n\x1a\n\0" + NOISE,
    "a JPEG picture": b"\xff\xd8\xff\xe0\0\x10JFIF\0" + NOISE,
    "a PNG picture": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + NOISE,
    "a GIF picture": b"GIF89a\x01\0\x01\0" + NOISE,
    "a WebP picture": b"RIFF\x24\0\0\0WEBPVP8 " + NOISE,
    "sound or video": b"ID3\x03\0\0" + NOISE,
    "a PDF": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + TEXT,
    "an ELF program or library": b"\x7fELF\x02\x01\x01" + bytes(9) + NOISE,
    "a program or library": b"MZ\x90\0\x03" + bytes(60) + NOISE,
    "a safetensors file": struct.pack("<Q", len(HEADER)) + HEADER + bytes(4),
    "a GGUF model": b"GGUF\x03\0\0\0" + NOISE,
    "a pickle": pickle.dumps({"a": list(range(99))}),
    "UTF-16 text": TEXT.decode().encode("utf-16"),
    "UTF-16LE text": TEXT.decode().encode("utf-16-le"),
    "UTF-16BE text": CHINESE.encode("utf-16-be"),
    "UTF-32 text": CHINESE.encode("utf-32"),
    "UTF-32LE text": TEXT.decode().encode("utf-32-le"),
    "UTF-32BE text": "short text".encode("utf-32-be"),
    "a shard of uint16 token ids": np.array([20240520, 1, 0] + [0] * 253, "<i4").tobytes(),
    "a shard of uint32 token ids": np.array([20240801, 7, 0] + [0] * 253, "<i4").tobytes(),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_named_and_refused(name: str, tmp_path: Path) -> None:
    found = kind_of(KINDS[name][:8192])
    assert found is not None and found.name == name
    # The name of a file says nothing: what it is called is tried by its bytes.
    file = tmp_path / "corpus.txt"
    file.write_bytes(KINDS[name])
    with pytest.raises(UserError, match=r"set data\.raw=true to train on its bytes as they are") as caught:
        open_corpus(str(file), "uint8", 0.5)
    assert f"is {name}, not plain text; " in str(caught.value)
    corpus = open_corpus(str(file), "uint8", 0.5, raw=True)
    assert corpus.read(0, corpus.units).tobytes() == KINDS[name]
    assert corpus.notes == (f"corpus.txt is {name}: its bytes are read as they are (data.raw)",)


def test_a_database_is_named(tmp_path: Path) -> None:
    found = kind_of(database(tmp_path)[:8192])
    assert found is not None and found.name == "an SQLite database"


@pytest.mark.parametrize(
    "text",
    [
        b'{"text": "JSON lines are text"}\n' * 99,
        b"<html><body>so is HTML</body></html>",
        b"PAR1 is a word here, as are GGUF, ORC and BZh9\n",
        b"GIF89a is the name of a format\n",
        b"MZ begins this sentence\n",
        b"\xef\xbb\xbfwith a byte order mark\n",
        CHINESE.encode(),
        CHINESE.encode("gbk"),
        "größe und weiß".encode("latin-1") * 50,
        b"\x1b[1mbold\x1b[0m on a terminal\n" * 9,
    ],
)
def test_text_is_of_no_other_kind(text: bytes) -> None:
    assert is_text(text) and kind_of(text) is None


@given(st.lists(st.integers(0, 50_256), min_size=20, max_size=200))
def test_token_ids_are_hardly_taken_for_another_kind(ids: list[int]) -> None:
    assert sure_kind_of(np.array(ids, "<u2").tobytes()) is None


def test_what_is_not_known_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(b"\1\2\3" + np.random.default_rng(3).bytes(3000))
    with pytest.raises(UserError, match=r"is binary, of no kind known here; set data\.raw=true"):
        open_corpus(str(tmp_path / "a.dat"), "uint8", 0.5)
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.dat").read_bytes())
    with pytest.raises(UserError, match=r"for token ids data\.dtype=uint16"):
        open_corpus(str(tmp_path / "a.bin"), "uint8", 0.5)


@pytest.mark.parametrize("name", ["a b.txt.gz", "it's $HOME;.gz", "-n.gz", "corpus.gz"])
def test_the_command_that_decompresses_can_be_pasted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_bytes(b"is not written over")
    (tmp_path / name).write_bytes(gzip.compress(TEXT))
    with pytest.raises(UserError) as caught:
        open_corpus(name, "uint8", 0.5)
    command = str(caught.value).partition("make text of it: ")[2].partition(", or set data.raw")[0]
    subprocess.run(["sh", "-c", command], check=True)
    made = tmp_path / shlex.split(command)[-1]
    assert made.read_bytes() == TEXT
    assert (tmp_path / "corpus.txt").read_bytes() == b"is not written over"


def test_a_compressed_archive_is_unpacked() -> None:
    found = kind_of(gzip.compress(tarred())[:8192])
    assert found is not None
    assert found.advice("a.tar.gz") == "unpack it into a folder and name that: tar -xf a.tar.gz"
    assert "iconv -f UTF-16LE" in getattr(kind_of("some words".encode("utf-16-le")), "todo", "")
