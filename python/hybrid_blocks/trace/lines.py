"""Numbered records of a file that may be compressed and may be damaged."""

import gzip
import io
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeVar, cast

import msgspec
import zstandard

from hybrid_blocks.trace.errors import DamagedLineError, TraceError
from hybrid_blocks.trace.value import reason

OnError = Literal["raise", "skip"]
T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_READ_BYTES = 1 << 14  # a few bytes may stand for a thousand times as many

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


UNPACK_ERRORS: Final = (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
"""Errors of compressed data that ends early or breaks."""


def unpacked(path: Path) -> IO[bytes]:
    """Open a file that may be compressed with gzip or zstd, as its first bytes show.

    Raises:
        OSError: it cannot be opened. Reading may raise `UNPACK_ERRORS`.

    """
    with path.open("rb") as raw:
        magic = raw.read(4)
    if magic.startswith(_GZIP_MAGIC):
        return cast("IO[bytes]", gzip.open(path))
    if magic == _ZSTD_MAGIC:
        return io.BufferedReader(_Unpacked(path))
    return path.open("rb")


class LineReader:
    """Reads a file record by record and decides what a damaged one does.

    A record is a line, or an item of the JSON list that the file is. The content shows whether a
    file is compressed, not its name. Blank lines are passed over, and so is a mark of the byte
    order.

    Attributes:
        path: the file.
        damaged: records skipped so far, with ``on_error="skip"``.
        cut_off_after: the last line that could be unpacked, where the compressed data ends early
            or breaks; None where it is whole.
    """

    def __init__(self, path: Path, on_error: OnError) -> None:
        self.path = path
        self.damaged: list[DamagedLineError] = []
        self.cut_off_after: int | None = None
        self._on_error = on_error

    def parse(self, parse: Callable[[bytes], T]) -> Iterator[T]:
        """Yield what ``parse`` makes of each record; its ``ValueError`` tells what is wrong."""
        for number, line in self._numbered():
            try:
                record = parse(line)
            except (ValueError, RecursionError) as error:
                self._report(number, reason(error, line))
                continue
            yield record

    def first(self) -> bytes:
        """Return the first record that is not blank, or nothing for an empty file."""
        return next((line for _, line in self._numbered()), b"")

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        lines = self._lines()
        number, first = next(lines, (0, b""))
        if first.lstrip().startswith(b"["):
            yield from self._items(first + b"".join(more for _, more in lines))
        elif first:
            yield number, first
            yield from lines

    def _items(self, text: bytes) -> Iterator[tuple[int, bytes]]:
        try:
            items = _list_decoder.decode(text)
        except (ValueError, RecursionError) as error:
            # Nothing of a list can be read without its end.
            raise TraceError(f"{self.path}: not a whole JSON list: {error}") from None
        for number, item in enumerate(items, start=1):
            yield number, bytes(item)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            with unpacked(self.path) as lines:
                for number, line in enumerate(lines, start=1):
                    text = line.removeprefix(BOM_UTF8) if number == 1 else line
                    if text.strip():
                        yield number, text
        except UNPACK_ERRORS as error:
            self._cut_off(number, error)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    def _cut_off(self, number: int, error: Exception) -> None:
        if self._on_error == "raise":
            what = f"the compressed data ends or breaks here: {error}"
            raise DamagedLineError(self.path, number + 1, what) from None
        self.cut_off_after = number

    def _report(self, number: int, what: str) -> None:
        damaged = DamagedLineError(self.path, number, what)
        if self._on_error == "raise":
            raise damaged
        self.damaged.append(damaged)


class _Unpacked(io.RawIOBase):
    """The frames of a file of zstd; one that is cut off ends in an ``EOFError``, as with gzip.

    The library's own reader takes a file that was cut off as a whole one.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame: Any = None
        self._packed = self._text = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._text and self._unpack():
            pass
        size = min(len(buffer), len(self._text))
        buffer[:size], self._text = self._text[:size], self._text[size:]
        return size

    def _unpack(self) -> bool:
        """Unpack some more, and tell whether there was any."""
        self._packed = self._packed or self._file.read(_READ_BYTES)
        if not self._packed:
            if self._frame is not None:
                raise EOFError("the last frame of zstd has no end")
            return False
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._text = self._frame.decompress(self._packed)
        self._packed = self._frame.unused_data
        if self._frame.eof:
            self._frame = None
        return True
