"""Numbered lines of a file that may be compressed and may be damaged."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

from hybrid_blocks.trace.errors import DamagedLineError

OnError = Literal["raise", "skip"]
T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"


class LineReader:
    """Reads a file line by line and decides what a damaged line does.

    Compression is told by the content, not by the name. Blank lines are passed over.

    Attributes:
        path: the file.
        damaged: lines skipped so far, with ``on_error="skip"``.
    """

    def __init__(self, path: Path, on_error: OnError) -> None:
        self.path = path
        self.damaged: list[DamagedLineError] = []
        self._on_error = on_error

    def parse(self, parse: Callable[[bytes], T]) -> Iterator[T]:
        """Yield what ``parse`` makes of each line; its ``ValueError`` tells what is wrong."""
        for number, line in self._numbered():
            try:
                record = parse(line)
            except ValueError as error:
                self._report(number, str(error))
                continue
            yield record

    def first(self) -> bytes:
        """Return the first line that is not blank, or nothing for an empty file."""
        return next((line for _, line in self._numbered()), b"")

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as raw:
            packed = raw.read(2) == _GZIP_MAGIC
        number = 0
        with gzip.open(self.path) if packed else self.path.open("rb") as lines:
            try:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield number, line
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                self._report(number + 1, f"the compressed data ends or breaks here: {error}")

    def _report(self, number: int, reason: str) -> None:
        damaged = DamagedLineError(self.path, number, reason)
        if self._on_error == "raise":
            raise damaged
        self.damaged.append(damaged)
