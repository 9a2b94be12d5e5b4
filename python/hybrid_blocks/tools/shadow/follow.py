"""The files of a record, read while an engine writes them."""

import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import zstandard

from hybrid_blocks.inputs import LONGEST_LINE, UNPACK_ERRORS, open_input
from hybrid_blocks.recording.record_file import split
from hybrid_blocks.tools.trace.recorded import Record, parse

_PIECE_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Requests of the next piece of a record.

    Attributes:
        records: in the order of their lines.
        begins: the file whose first piece this is.
        is_end: whether the file has no more lines now.
        remarks: what the reader has to say of the file.
    """

    records: list[Record] = field(default_factory=list)
    begins: Path | None = None
    is_end: bool = False
    remarks: list[str] = field(default_factory=list)


class Follower:
    """Reads the newest file of a record and the files that come after it.

    Attributes:
        num_requests: lines that hold one.
        num_damaged: lines that hold no request.
        num_skipped: lines that `poll` left out.
    """

    def __init__(self, path: Path) -> None:
        """Follow ``HYBRID_BLOCKS_RECORD=path``, which need not be there yet.

        Raises:
            InvalidArgumentError: another ending, or no such folder.

        """
        self._path = path
        self._stem, self._ending = split(path)
        self.num_requests = self.num_damaged = self.num_skipped = 0
        self._number = -1
        self._file: IO[bytes] | None = None
        self._unpacker: Any = None
        self._begun = b""

    @property
    def unread_bytes(self) -> int:
        """Bytes of the file that were not read yet."""
        return os.fstat(self._file.fileno()).st_size - self._file.tell() if self._file else 0

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def poll(self, *, skips: bool = False) -> Piece:
        """Return the next piece; ``skips`` leaves its requests out."""
        if self._file is None:
            return self._open(max(self._numbers(), default=-1))
        later = None
        if not (packed := self._file.read(_PIECE_BYTES)):
            # A file with a later one grows no more: what is read after this look is its end.
            later = min((it for it in self._numbers() if it > self._number), default=None)
            packed = self._file.read(_PIECE_BYTES)
        if packed:
            return self._parsed(packed, skips=skips)
        if (remark := self._replaced()) is not None:
            return self._open(self._number, remark)
        if later is not None:
            return self._open(later)
        return Piece(is_end=True)

    def _numbers(self) -> list[int]:
        """Return the numbers of the files that are there; the first has none in its name."""
        begin, end = f"{self._stem}.", self._ending
        names = (it.name for it in self._path.parent.iterdir() if it.name.startswith(begin))
        middles = (name.removeprefix(begin).removesuffix(end[1:]).rstrip(".") for name in names)
        numbers = [int(middle) for middle in middles if middle.isascii() and middle.isdecimal()]
        return [*([0] if self._path.exists() else []), *numbers]

    def _name(self, number: int) -> Path:
        return self._path.with_name(f"{self._stem}{f'.{number}' if number else ''}{self._ending}")

    def _open(self, number: int, *remarks: str) -> Piece:
        try:
            file = open_input(self._name(number)) if number >= 0 else None
        except FileNotFoundError:
            file = None
        if file is None:
            return Piece(is_end=True)
        cut = ["the last line of the file before has no end"] if self._begun else []
        self.close()
        self._file, self._number, self._begun = file, number, b""
        self._unpacker = _unpacker(self._ending)
        return Piece(begins=self._name(number), remarks=[*cut, *remarks])

    def _replaced(self) -> str | None:
        """Say why the file has to be read again from its beginning, if so."""
        assert self._file is not None
        try:
            now = self._name(self._number).stat()
        except FileNotFoundError:
            return None
        opened = os.fstat(self._file.fileno())
        if now.st_ino != opened.st_ino:
            return "the file was replaced"
        return "the file was truncated" if now.st_size < self._file.tell() else None

    def _parsed(self, packed: bytes, *, skips: bool) -> Piece:
        piece = Piece()
        try:
            text = self._unpacker.decompress(packed) if self._unpacker else packed
        except UNPACK_ERRORS as error:
            piece.remarks.append(f"the rest of the file cannot be unpacked: {error}")
            text, self._unpacker = b"", _Nothing
        *lines, self._begun = (self._begun + text).split(b"\n")
        if len(self._begun) > LONGEST_LINE:
            self._begun = b""
        for line in filter(bytes.strip, lines):
            if skips:
                self.num_skipped += 1
                continue
            try:
                piece.records.append(parse(line))
            except (ValueError, OverflowError, RecursionError) as error:
                if not self.num_damaged:
                    piece.remarks.append(f"a line holds no request: {error}")
                self.num_damaged += 1
        self.num_requests += len(piece.records)
        return piece


class _Nothing:
    """Unpacks a file that is broken: a later one may be whole."""

    @staticmethod
    def decompress(_: bytes) -> bytes:
        return b""


def _unpacker(ending: str) -> Any:
    if ending.endswith(".zst"):
        return zstandard.ZstdDecompressor().decompressobj()
    return zlib.decompressobj(16 + zlib.MAX_WBITS) if ending.endswith(".gz") else None
