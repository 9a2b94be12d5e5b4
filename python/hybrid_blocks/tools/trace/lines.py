"""Numbered records of a file that may be compressed and may be damaged."""

from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from hybrid_blocks.inputs import LONGEST_LINE, UNPACK_ERRORS, numbered_lines, unpack
from hybrid_blocks.tools.trace.errors import DamagedLineError, TraceError, reason

OnError = Literal["raise", "skip"]
T = TypeVar("T")

LONGEST_LIST: Final = 1 << 30
"""Bytes of a file that is one JSON list; all of ShareGPT has 670 MB."""
MOST_DAMAGED: Final = 100_000
"""Lines that may be skipped where fewer are whole."""

_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


class LineReader:
    """Reads a file record by record and decides what a damaged one does.

    A record is a line, or an item of the JSON list that the file is. The content shows whether a
    file is compressed, not its name. Blank lines are passed over, and so is a mark of the byte
    order.

    Attributes:
        path: the file.
        skipped: numbers of the damaged records, with ``on_error="skip"``.
        damaged: the error of the first of them.
        cut_off_after: the last line that could be unpacked, where the compressed data ends early
            or breaks; None where it is whole.
    """

    def __init__(self, path: Path, on_error: OnError) -> None:
        self.path = path
        self.skipped = array("q")
        self.damaged: DamagedLineError | None = None
        self.cut_off_after: int | None = None
        self._on_error = on_error

    def parse(self, parse: Callable[[bytes], T]) -> Iterator[T]:
        """Yield what ``parse`` makes of each record; its ``ValueError`` tells what is wrong."""
        num_whole = 0
        for number, line in self._numbered():
            try:
                record = parse(line)
            except (ValueError, OverflowError, RecursionError) as error:
                self._skip(DamagedLineError(self.path, number, reason(error, line)), num_whole)
                continue
            num_whole += 1
            yield record

    def first(self) -> bytes:
        """Return the first record that is not blank, or nothing for an empty file."""
        return next((line for _, line in self._numbered()), b"")

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
        return self._items() if self._is_list() else self._lines(LONGEST_LINE)

    def _is_list(self) -> bool:
        with suppress(OSError, *UNPACK_ERRORS):
            for piece in unpack(self.path):
                if text := piece.removeprefix(BOM_UTF8).lstrip():
                    return text.startswith(b"[")
        return False

    def _items(self) -> Iterator[tuple[int, bytes]]:
        text = bytearray()
        for _, line in self._lines(LONGEST_LIST):
            text += line
            if len(text) > LONGEST_LIST:
                raise TraceError(
                    f"{self.path} is a JSON list of more than {LONGEST_LIST >> 30} GiB; "
                    "jq -c .[] writes each item in a line of its own"
                )
        try:
            items = _list_decoder.decode(text)
        except (ValueError, RecursionError) as error:
            # Nothing of a list can be read without its end.
            raise TraceError(f"{self.path}: not a whole JSON list: {error}") from None
        for number, item in enumerate(items, start=1):
            yield number, bytes(item)

    def _lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, line in numbered_lines(unpack(self.path), self.path, longest):
                yield number, line
        except UNPACK_ERRORS as error:
            self._cut_off(number, error)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None

    def _cut_off(self, number: int, error: Exception) -> None:
        if self._on_error == "raise":
            what = f"the compressed data ends or breaks here: {error}"
            raise DamagedLineError(self.path, number + 1, what) from None
        self.cut_off_after = number

    def _skip(self, damaged: DamagedLineError, num_whole: int) -> None:
        if self._on_error == "raise":
            raise damaged
        self.damaged = self.damaged or damaged
        self.skipped.append(damaged.line)
        if len(self.skipped) > max(MOST_DAMAGED, num_whole):
            raise TraceError(
                f"{self.damaged}; so are {len(self.skipped) - 1:,} lines behind it, and only "
                f"{num_whole:,} lines hold a request"
            )
