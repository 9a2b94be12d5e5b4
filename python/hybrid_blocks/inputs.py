"""Files that users give: regular ones, read in pieces of bounded size."""

import errno
import gzip
import os
import re
import stat
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final

import zstandard

MOST_BYTES: Final = 64 << 20
"""Most bytes of a file that is read whole; the largest tokenizers and configurations have half."""

LONGEST_LINE: Final = 64 << 20
"""Bytes of a line; an agent's conversation with all its block ids has up to some 10 MiB."""

PIECE_BYTES: Final = 1 << 17

UNPACK_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""Errors of compressed data that ends early or breaks."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_FRAME: Final = 5
"""Bytes of a frame of zstd that tell how long its header is."""
_ZSTD_REPEATS: Final = 1
"""A kind of block: one byte, repeated."""
_ZSTD_SKIPPED: Final = b"\x2a\x4d\x18"
"""Bytes of the magic number of a frame without content, behind the first."""
_ALWAYS_UNPACKED: Final = 64 << 20
_HIGHEST_RATIO: Final = 1024
"""Bytes that one packed byte may stand for: gzip reaches no more, and traces reach 20 to 100."""

_LINE: Final = re.compile(rb"\S[^\n]*\n?")
"""A line from its first byte that is no blank."""


def open_input(path: Path) -> IO[bytes]:
    """Open a regular file to read it.

    Raises:
        OSError: there is none; or a folder, a device or a pipe, which may have no end.
    """
    try:
        mode = path.stat().st_mode
    except ValueError:
        raise OSError(errno.EINVAL, "not the name of a file", str(path)) from None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file; copy its content to one", str(path))
    return path.open("rb")


def read_input(path: Path) -> bytes:
    """Return the content of a regular file of at most `MOST_BYTES`.

    Raises:
        OSError: as `open_input`, or the file is larger.
    """
    with open_input(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise too_large(path, f"larger than the {MOST_BYTES >> 20} MiB that are read")
    return content


def too_large(path: Path, what: str) -> OSError:
    """Return the error of an input that is not read to its end."""
    return OSError(errno.EFBIG, what, str(path))


def unpack(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, unpacked from gzip or zstd where its first bytes say so.

    A piece has about `PIECE_BYTES` at most, and all together a multiple of the file's size.

    Raises:
        OSError: as `open_input`; or the file unpacks to more than real content does.
        UNPACK_ERRORS: the compressed data ends early or breaks.
    """
    with open_input(path) as file:
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(_GZIP_MAGIC):
            pieces = _of_gzip(file)
        elif magic == _ZSTD_MAGIC:
            pieces = _of_zstd(file)
        else:
            yield from iter(partial(file.read, PIECE_BYTES), b"")
            return
        packed = os.fstat(file.fileno()).st_size
        left = _ALWAYS_UNPACKED + _HIGHEST_RATIO * packed
        for piece in pieces:
            left -= len(piece)
            if left < 0:
                raise too_large(
                    path,
                    f"{packed:,} bytes unpack to more than {_HIGHEST_RATIO:,} times as many, which "
                    "no trace or log does; unpack the file first",
                )
            yield piece


def _of_gzip(file: IO[bytes]) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        yield from iter(partial(unpacked.read1, PIECE_BYTES), b"")


def _of_zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Unpack block by block: one has 128 KiB at most, and a frame that is cut off lacks some.

    The library's own reader takes a file that was cut off as a whole one.
    """
    while begin := file.read(_ZSTD_FRAME):
        begin += _exactly(file, _ZSTD_FRAME - len(begin))
        if begin[1:4] == _ZSTD_SKIPPED:
            size = int.from_bytes(begin[4:] + _exactly(file, 3), "little")
            file.seek(size, os.SEEK_CUR)
            continue
        has_checksum = begin[-1] >> 2 & 1
        frame = zstandard.ZstdDecompressor().decompressobj()
        rest = _exactly(file, zstandard.frame_header_size(begin) - _ZSTD_FRAME)
        yield frame.decompress(begin + rest)
        is_last = 0
        while not is_last:
            head = _exactly(file, 3)
            fields = int.from_bytes(head, "little")
            is_last, kind, size = fields & 1, fields >> 1 & 3, fields >> 3
            block = _exactly(file, 1 if kind == _ZSTD_REPEATS else size)
            yield frame.decompress(head + block)
        if has_checksum:
            yield frame.decompress(_exactly(file, 4))


def _exactly(file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("the last frame of zstd has no end")
    return content


def numbered_lines(
    pieces: Iterable[bytes], path: Path, longest: int = LONGEST_LINE
) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank, with its number from 1; ``path`` is for errors.

    A mark of the byte order and blanks before a line are left out. Each byte is looked at and
    copied a bounded number of times, however the lines lie in the pieces.

    Raises:
        OSError: a line has more than ``longest`` bytes.
    """
    number, begun = 1, bytearray()
    for piece in _unmarked(pieces):
        at = 0
        if begun:
            at = piece.find(b"\n") + 1
            begun += piece[: at or None]
            if len(begun) > longest:
                raise too_large(path, f"line {number} is longer than {longest >> 20:,} MiB")
            if not at:
                continue
            yield number, bytes(begun)
            number += 1
            begun.clear()
        for found in _LINE.finditer(piece, at):
            number += piece.count(b"\n", at, found.start())
            at = found.end()
            line = found[0]
            if not line.endswith(b"\n"):
                begun += line
                break
            yield number, line
            number += 1
        number += piece.count(b"\n", at)
    if begun:
        yield number, bytes(begun)


def _unmarked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, first = iter(pieces), b""
    for piece in rest:
        first += piece
        if len(first) >= len(BOM_UTF8):
            break
    yield first.removeprefix(BOM_UTF8)
    yield from rest
