"""What a file is by its first bytes, and what makes text of it.

Bytes that are not text train a model without any error, so a file is examined before it is read: is it text, or of a
kind that is known here? A signature of printable letters alone counts only where the rest is not text either.
"""

from __future__ import annotations

import os
import re
import shlex
import struct
from dataclasses import dataclass
from pathlib import Path

from mlx_amort.data.unicode_text import wide_encoding

HEAD_BYTES = 8192
# Text has tabs, line ends, form feeds, escapes and hardly another control byte; packed data has 1 in 10.
CONTROL_BYTES = bytes(byte for byte in range(32) if byte not in b"\t\n\f\r\x08\x1b") + b"\x7f"
CONTROL_SHARE = 0.02


@dataclass(frozen=True)
class Kind:
    """A kind of file that is not text.

    todo: what makes text of it; {file} and {text} stand for the two names in a shell, {literal} for the first
    in Python.
    """

    name: str
    todo: str

    def advice(self, path: str) -> str:
        """What makes text of the file at `path`, quoted so that it can be pasted."""
        path = f"./{path}" if path.startswith("-") else path
        stem = str(Path(path).with_suffix(""))
        text = stem if Path(stem).suffix else f"{stem}.txt"
        # The command must not write over what is there, least of all over the file that it reads.
        text = f"{path}.txt" if os.path.lexists(text) else text
        todo = _TAR.todo if self.todo.startswith(_DECOMPRESS) and _is_tar(path) else self.todo
        return todo.format(file=shlex.quote(path), text=shlex.quote(text), literal=repr(path))


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file look like text: no NUL and hardly a control byte."""
    control = len(head) - len(head.translate(None, CONTROL_BYTES))
    return b"\0" not in head and control <= CONTROL_SHARE * len(head)


def kind_of(head: bytes) -> Kind | None:
    """Return the kind that the first bytes of a file show; None for text and for what is not known here."""
    found = sure_kind_of(head)
    if found is not None or is_text(head):
        return found
    weak = (kind for signature, kind in _SHORT_SIGNATURES if head.startswith(signature))
    return next(weak, None) or _lzma(head) or _media_container(head) or _pickle(head) or _wide_text(head)


def sure_kind_of(head: bytes) -> Kind | None:
    """Return the kind whose signature is long enough that token ids, nearly random bytes, do not match it by chance."""
    is_printable = is_text(head)
    for offset, signature, kind in _SIGNATURES:
        if head.startswith(signature, offset) and not (is_printable and _is_printable(signature)):
            return kind
    return _zip(head) or _pdf(head) or _safetensors(head)


def _is_printable(signature: bytes) -> bool:
    return all(32 <= byte < 127 for byte in signature)


_DECOMPRESS = "make text of it: "


def _decompressed(tool: str) -> str:
    return f"{_DECOMPRESS}{tool} < {{file}} > {{text}}"


def _is_tar(path: str) -> bool:
    """Whether what is compressed is called an archive: a.tar.gz, a.tgz."""
    return bool(re.search(r"(?i)\.(tar\.\w+|t(gz|bz2?|xz|zst))$", path))


def _picture(name: str) -> Kind:
    return Kind(f"a {name} picture", _NO_TEXT)


_NO_TEXT = "name the text itself"
_EXPORT = "write its text to a file of its own"
_SOUND = Kind("sound or video", _NO_TEXT)
_PROGRAM = Kind("a program or library", _NO_TEXT)
_GZIP = Kind("gzip-compressed", _decompressed("gzip -dc"))
_TAR = Kind("a tar archive", "unpack it into a folder and name that: tar -xf {file}")
_ZIP = Kind("a zip archive", "unpack it into a folder and name that: unzip {file}")
_OFFICE = Kind("an office document", "save it as plain text")
_TORCH = Kind("a PyTorch file", _NO_TEXT)
_NPZ = Kind(
    "a NumPy archive (npz)", "write its ids as numpy.load({literal})[NAME].astype('<u2').tofile(\"ids.bin\")"
)
_UTF = "make UTF-8 of it: iconv -f {encoding} -t UTF-8 {{file}} > {{text}}"
_ZLIB = "make text of it: zlib.decompress(open({literal}, 'rb').read()) in Python"
_SHARD = "read it as ids: data.dtype=uint16 with a dense or recurrent trunk"

_SIGNATURES: tuple[tuple[int, bytes, Kind], ...] = (
    (0, b"\x1f\x8b\x08", _GZIP),
    *(
        (0, b"BZh%d" % level + block, Kind("bzip2-compressed", _decompressed("bzip2 -dc")))
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    ),
    (0, b"\xfd7zXZ\0", Kind("xz-compressed", _decompressed("xz -dc"))),
    (0, b"\x28\xb5\x2f\xfd", Kind("zstd-compressed", _decompressed("zstd -dc"))),
    (0, b"\x04\x22\x4d\x18", Kind("lz4-compressed", _decompressed("lz4 -dc"))),
    (0, b"LZIP\x01", Kind("lzip-compressed", _decompressed("lzip -dc"))),
    (0, b"\xff\x06\0\0sNaPpY", Kind("snappy-compressed", _EXPORT)),
    (0, b"7z\xbc\xaf\x27\x1c", Kind("a 7z archive", "unpack it into a folder and name that: 7z x {file}")),
    (0, b"Rar!\x1a\x07", Kind("a rar archive", "unpack it into a folder and name that: unrar x {file}")),
    (257, b"ustar\0", _TAR),
    (257, b"ustar ", _TAR),
    (0, b"!<arch>\n", Kind("an ar archive", "unpack it into a folder and name that: ar x {file}")),
    (0, b"\xff\xfe\0\0", Kind("UTF-32 text", _UTF.format(encoding="UTF-32"))),
    (0, b"\0\0\xfe\xff", Kind("UTF-32 text", _UTF.format(encoding="UTF-32"))),
    (0, b"PAR1", Kind("a parquet table", "write its text column to a file: pandas.read_parquet({literal})")),
    (0, b"PARE", Kind("an encrypted parquet table", _EXPORT)),
    (
        0,
        b"ARROW1\0\0",
        Kind("an Arrow table", "write its text column to a file: pandas.read_feather({literal})"),
    ),
    (0, b"FEA1", Kind("an Arrow table", "write its text column to a file: pandas.read_feather({literal})")),
    (0, b"ORC", Kind("an ORC table", "write its text column to a file: pandas.read_orc({literal})")),
    (0, b"Obj\x01", Kind("an Avro table", _EXPORT)),
    (0, b"\x89HDF\r\n\x1a\n", Kind("an HDF5 file", _EXPORT)),
    (
        0,
        b"SQLite format 3\0",
        Kind("an SQLite database", "write a column to a file: sqlite3 {file} 'select ...'"),
    ),
    (
        0,
        b"\x93NUMPY",
        Kind(
            "a NumPy array (npy)", "write its ids as numpy.load({literal}).astype('<u2').tofile(\"ids.bin\")"
        ),
    ),
    (0, b"GGUF", Kind("a GGUF model", _NO_TEXT)),
    (0, struct.pack("<i", 20240520), Kind("a shard of uint16 token ids", _SHARD)),
    (0, struct.pack("<i", 20240801), Kind("a shard of uint32 token ids", "write ids below 65,536 as uint16")),
    (0, struct.pack(">i", 20240520), Kind("a big-endian shard of token ids", "write it as little-endian")),
    (0, struct.pack(">i", 20240801), Kind("a big-endian shard of token ids", "write it as little-endian")),
    (0, b"\xff\xd8\xff", _picture("JPEG")),
    (0, b"\x89PNG\r\n\x1a\n", _picture("PNG")),
    (0, b"GIF87a", _picture("GIF")),
    (0, b"GIF89a", _picture("GIF")),
    (0, b"II*\0", _picture("TIFF")),
    (0, b"MM\0*", _picture("TIFF")),
    (0, b"OggS\0", _SOUND),
    (0, b"fLaC\0", _SOUND),
    (0, b"\x1a\x45\xdf\xa3", _SOUND),
    *((0, b"ID3" + bytes([version]), _SOUND) for version in (2, 3, 4)),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", _OFFICE),
    (0, b"\x7fELF", Kind("an ELF program or library", _NO_TEXT)),
    *((0, magic, _PROGRAM) for magic in (b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")),
    (0, b"\0asm", _PROGRAM),
)

# Too short to distinguish from ids; from text only because the rest is not text.
_SHORT_SIGNATURES: tuple[tuple[bytes, Kind], ...] = (
    (b"\xff\xfe", Kind("UTF-16 text", _UTF.format(encoding="UTF-16"))),
    (b"\xfe\xff", Kind("UTF-16 text", _UTF.format(encoding="UTF-16"))),
    *((b"\x78" + level, Kind("zlib-compressed", _ZLIB)) for level in (b"\x01", b"\x5e", b"\x9c", b"\xda")),
    (b"\x1f\x9d", Kind("packed by compress", _decompressed("gzip -dc"))),
    *((b"\xff" + second, _SOUND) for second in (b"\xfb", b"\xf3", b"\xf2")),
    (b"MZ", _PROGRAM),
)

# What a zip archive is by the names in it, the first that fits.
_ZIP_MEMBERS = (
    (re.compile(rb"\.npy$"), _NPZ),
    (re.compile(rb"(^|/)data\.pkl$"), _TORCH),
    (re.compile(rb"^(word|xl|ppt)/|^\[Content_Types\]\.xml$"), _OFFICE),
    (re.compile(rb"^META-INF/MANIFEST\.MF$"), _PROGRAM),
)


def _zip(head: bytes) -> Kind | None:
    if not head.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        return None
    if b"mimetypeapplication/epub+zip" in head[:100]:
        return Kind("an EPUB book", "save it as plain text")
    if b"mimetypeapplication/vnd.oasis" in head[:100]:
        return _OFFICE
    lengths = (
        (at.start(), int.from_bytes(head[at.start() + 26 : at.start() + 28], "little"))
        for at in re.finditer(rb"PK\x03\x04", head)
    )
    names = [head[start + 30 : start + 30 + length] for start, length in lengths]
    return next((kind for pattern, kind in _ZIP_MEMBERS if any(map(pattern.search, names))), _ZIP)


def _pdf(head: bytes) -> Kind | None:
    # Readers accept what stands before it, such as the byte order mark of some printers.
    is_pdf = re.match(rb"(\xef\xbb\xbf)?\s*%PDF-\d", head)
    return Kind("a PDF", "make text of it: pdftotext {file} {text}") if is_pdf else None


def _media_container(head: bytes) -> Kind | None:
    if head.startswith(b"RIFF") and head[8:12] in (b"WEBP", b"WAVE", b"AVI "):
        return _picture("WebP") if head[8:12] == b"WEBP" else _SOUND
    if head.startswith(b"BM") and head[6:10] == bytes(4):
        return _picture("BMP")
    if head[4:8] == b"ftyp" and head[:2] == bytes(2):
        return _picture("HEIF") if head[8:12] in (b"heic", b"avif", b"mif1") else _SOUND
    return None


def _lzma(head: bytes) -> Kind | None:
    # Five bytes of settings, then the size of the text, or -1 where it is not known.
    is_lzma = head.startswith(b"\x5d\0\0") and head[10:13] in (bytes(3), b"\xff" * 3)
    return Kind("lzma-compressed", _decompressed("xz --format=lzma -dc")) if is_lzma else None


def _safetensors(head: bytes) -> Kind | None:
    length = int.from_bytes(head[:8], "little")
    is_header = len(head) > 9 and head[8:10] in (b'{"', b"{}") and 2 <= length < 1 << 32
    return Kind("a safetensors file", _NO_TEXT) if is_header else None


def _pickle(head: bytes) -> Kind | None:
    if head[:1] != b"\x80" or not 2 <= int.from_bytes(head[1:2], "little") <= 5:
        return None
    # The long number that every older PyTorch file begins with.
    is_torch = b"l\xfc\x9cF\xf9 j\xa8P\x19" in head[:32]
    return _TORCH if is_torch else Kind("a pickle", _EXPORT)


def _wide_text(head: bytes) -> Kind | None:
    encoding = wide_encoding(head)
    return None if encoding is None else Kind(f"{encoding} text", _UTF.format(encoding=encoding))
