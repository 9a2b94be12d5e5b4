"""Files of recorded traffic: a name that is not taken yet, for their owner's eyes alone."""

import itertools
import os
import time
import zlib
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import zstandard

from hybrid_blocks.errors import InvalidArgumentError

ENDINGS: Final = (".jsonl", ".jsonl.gz", ".jsonl.zst")

FLUSHED_EVERY_S: Final = 0.9

_FASTEST: Final = -7


class _Packer(NamedTuple):
    """A compressor, its flush that makes the file readable so far, and its last flush."""

    compressor: Any
    readable: int
    end: int


class RecordFile:
    """Writes lines; a process that is killed loses those of its last second.

    Attributes:
        path: the file, with a number before its ending where the name was taken.
        is_flushed: whether everything that was written can be read.
    """

    def __init__(self, folder: Path, stem: str, ending: str) -> None:
        """Make the first file that is not there yet.

        Raises:
            OSError: it cannot be made.
        """
        for number in itertools.count():
            path = folder / f"{stem}{f'.{number}' if number else ''}{ending}"
            try:
                # What users wrote can be guessed from lengths and times: the file is the owner's.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            break
        self.path = path
        self.is_flushed = True
        self._raw: IO[bytes] = os.fdopen(descriptor, "wb")
        self._packer = _new_packer(ending)
        self._unflushed_since = 0.0

    @property
    def num_bytes(self) -> int:
        """Bytes that reached the file."""
        return self._raw.tell()

    def write(self, line: bytes) -> None:
        """Write a line, and flush once a second."""
        self._raw.write(self._packer.compressor.compress(line) if self._packer else line)
        now = time.monotonic()
        if self.is_flushed:
            self.is_flushed = False
            self._unflushed_since = now
        elif now - self._unflushed_since >= FLUSHED_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Make everything that was written readable."""
        if self._packer:
            self._raw.write(self._packer.compressor.flush(self._packer.readable))
        self._raw.flush()
        self.is_flushed = True

    def close(self) -> None:
        """Write what is left and close the file."""
        if self._packer:
            self._raw.write(self._packer.compressor.flush(self._packer.end))
        self._raw.close()


def _new_packer(ending: str) -> _Packer | None:
    if ending.endswith(".zst"):
        # A search for digests that come again would cost as much as all else that the thread does.
        compressor: Any = zstandard.ZstdCompressor(level=_FASTEST).compressobj()
        return _Packer(
            compressor, zstandard.COMPRESSOBJ_FLUSH_BLOCK, zstandard.COMPRESSOBJ_FLUSH_FINISH
        )
    if ending.endswith(".gz"):
        # Digests get smaller by their alphabet alone.
        with_header = 16 + zlib.MAX_WBITS
        compressor = zlib.compressobj(
            1, zlib.DEFLATED, with_header, zlib.DEF_MEM_LEVEL, zlib.Z_HUFFMAN_ONLY
        )
        return _Packer(compressor, zlib.Z_SYNC_FLUSH, zlib.Z_FINISH)
    return None


def of_engine(path: Path, engine: int) -> Path:
    """Return the file of one of several data-parallel engines; the first has the name itself.

    Raises ``InvalidArgumentError`` as `split`.
    """
    stem, ending = split(path)
    return path.with_name(f"{stem}.engine{engine}{ending}") if engine else path


def engines_of(path: Path) -> set[int]:
    """Return the numbers of the engines that have files, the first included."""
    stem, ending = split(path)
    begin = f"{stem}.engine"
    names = (it.name for it in path.parent.iterdir() if it.name.endswith(ending))
    numbers = (it.removeprefix(begin).partition(".")[0] for it in names if it.startswith(begin))
    return {0, *(int(it) for it in numbers if it.isascii() and it.isdecimal())}


def split(path: Path) -> tuple[str, str]:
    """Return the name and its ending.

    Raises ``InvalidArgumentError`` for another ending or a folder that is not there.
    """
    for ending in ENDINGS:
        if path.name.endswith(ending) and path.parent.is_dir():
            return path.name.removesuffix(ending), ending
    raise InvalidArgumentError(
        f"{path}: give a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, "
        "in a folder that exists"
    )
