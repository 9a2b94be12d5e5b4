"""Numbered records of a file that may be compressed and may be damaged."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hybrid_blocks.trace.errors import DamagedLineError, TraceError

OnError = Literal["raise", "skip"]
T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


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
                self._report(number, str(error))
                continue
            yield record

    def first(self) -> bytes:
        """Return the first record that is not blank, or nothing for an empty file."""
        return next((line for _, line in self._numbered()), b"")

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        lines = self._lines()
        for number, line in lines:
            if line.lstrip().startswith(b"["):
                yield from self._items(line + b"".join(more for _, more in lines))
                return
            yield number, line

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
            with self.path.open("rb") as raw:
                packed = raw.read(2) == _GZIP_MAGIC
            with gzip.open(self.path) if packed else self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                    if text.strip():
                        yield number, text
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._cut_off(number, error)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    def _cut_off(self, number: int, error: Exception) -> None:
        if self._on_error == "raise":
            reason = f"the compressed data ends or breaks here: {error}"
            raise DamagedLineError(self.path, number + 1, reason) from None
        self.cut_off_after = number

    def _report(self, number: int, reason: str) -> None:
        damaged = DamagedLineError(self.path, number, reason)
        if self._on_error == "raise":
            raise damaged
        self.damaged.append(damaged)
