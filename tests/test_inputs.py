"""Files that users give: what is read of one is bounded, and the work is linear in its size."""

import gzip
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hybrid_blocks import inputs
from hybrid_blocks.inputs import (
    LONGEST_LINE,
    MOST_BYTES,
    PIECE_BYTES,
    numbered_lines,
    open_input,
    read_input,
    unpack,
)
from hybrid_blocks.tools.trace import TraceError, read_trace
from hybrid_blocks.tools.trace.lines import MOST_DAMAGED
from mutated_files import bomb

MIB = 1 << 20
BLOCK = 1 << 17
HERE = Path("trace")


def written(folder: Path, content: bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(content)
    return path


class Counted(bytes):
    """Bytes that count how many of them are copied or searched."""

    work = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counted.work += len(found)
        return found

    def find(self, what: Any, *place: Any) -> int:
        end = super().find(what, *place)
        begin = place[0] if place else 0
        Counted.work += (len(self) if end < 0 else end) - begin
        return end

    def count(self, what: Any, begin: Any = 0, end: Any = None) -> int:
        Counted.work += (len(self) if end is None else end) - begin
        return super().count(what, begin, end)


CONTENTS: dict[str, bytes] = {
    "one line": b"x",
    "short lines": b"ab\n",
    "blank lines": b"\n",
    "blanks": b"   \n",
    "long lines": b"x" * 5000 + b"\n",
    "blank and short lines": b"\n\nx\n \n",
}


@pytest.mark.parametrize("kind", CONTENTS)
@pytest.mark.parametrize("piece", [7, 100, 4096])
def test_the_work_on_lines_is_linear_in_their_bytes(kind: str, piece: int) -> None:
    def work(size: int) -> int:
        text = (CONTENTS[kind] * size)[:size]
        Counted.work = 0
        pieces = (Counted(text[at : at + piece]) for at in range(0, size, piece))
        numbered = enumerate(text.splitlines(keepends=True), start=1)
        expected = [(number, line) for number, line in numbered if line.strip()]
        found = list(numbered_lines(pieces, HERE))
        assert [number for number, _ in found] == [number for number, _ in expected]
        assert [line.strip() for _, line in found] == [line.strip() for _, line in expected]
        return Counted.work

    for size in (4_000, 40_000, 400_000):
        assert work(size) <= 4 * size


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zstd without a size": zstandard.ZstdCompressor(write_content_size=False).compress,
    "not": bytes,
}
TEXT = b"".join(b"%d,%d\n" % (number, number**5) for number in range(60_000))


@pytest.mark.parametrize("name", PACK)
def test_a_file_is_unpacked_in_small_pieces(tmp_path: Path, name: str) -> None:
    parts = [TEXT[:1], b"", TEXT[1:70], TEXT[70:], b"\x00" * MIB]
    path = written(tmp_path, b"".join(map(PACK[name], parts)))
    pieces = list(unpack(path))
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_frames_of_zstd_without_content_are_passed_over(tmp_path: Path) -> None:
    skipped = b"\x5e\x2a\x4d\x18" + (9).to_bytes(4, "little") + b"123456789"
    packed = PACK["zstd"](TEXT)
    assert b"".join(unpack(written(tmp_path, packed + skipped + packed + skipped))) == TEXT * 2


@pytest.mark.parametrize("name", ["gzip", "zstd", "zstd without a size"])
def test_what_was_packed_and_cut_off_anywhere_ends_in_an_error(tmp_path: Path, name: str) -> None:
    packed = PACK[name](TEXT)
    for end in [*range(5, 40), *range(40, len(packed), len(packed) // 40), len(packed) - 1]:
        found: list[bytes] = []
        with pytest.raises(inputs.UNPACK_ERRORS):
            found.extend(unpack(written(tmp_path, packed[:end])))
        assert TEXT.startswith(b"".join(found))
        assert end < len(packed) // 2 or any(found)


BOMBS = {
    "a line": bomb(b"x", 40_000),
    "blank lines": bomb(b"\n", 40_000),
    "blanks": bomb(b" ", 40_000),
    "zeros": bomb(b"\x00", 40_000),
    "lines of one byte": gzip.compress(b"x\n" * (100 * MIB), 1),
}
"""Up to 160 KB that unpack to up to 5 GiB."""


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_unpacks_to_much_more_ends_in_an_error_and_needs_little_memory(
    tmp_path: Path, name: str, on_error: Any
) -> None:
    path = written(tmp_path, BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(TraceError) as raised:
            read_trace(path, "azure", on_error)
        assert tracemalloc.get_traced_memory()[1] < 3 * LONGEST_LINE
    finally:
        tracemalloc.stop()
    assert len(str(raised.value)) < 400
    assert str(raised.value).startswith(f"{path}:")


def test_what_is_unpacked_of_a_file_is_a_multiple_of_its_size(tmp_path: Path) -> None:
    path = written(tmp_path, bomb(b"\n", 40_000))
    most = 64 * MIB + 1024 * path.stat().st_size
    sizes: list[int] = []
    with pytest.raises(OSError, match=r"160,006 bytes unpack to more than 1,024 times as many"):
        sizes.extend(map(len, unpack(path)))
    assert most - BLOCK < sum(sizes) <= most


def test_a_line_that_is_longer_than_any_real_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n\n")
        file.truncate(1 << 40)  # zeros that take no room
    for on_error in ("raise", "skip"):
        with pytest.raises(TraceError, match="trace: line 3 is longer than 64 MiB"):
            read_trace(path, "azure", on_error)


def test_a_file_of_damaged_lines_is_given_up(tmp_path: Path) -> None:
    row = b"2023-11-16 18:15:46.68,374,44\n"
    path = written(tmp_path, b"x\n" * MOST_DAMAGED + row)
    assert len(read_trace(path, "azure", "skip")) == 1
    path = written(tmp_path, row + b"x\n" * (MOST_DAMAGED + 1))
    with pytest.raises(
        TraceError, match=r"trace:2: .* so are 100,000 lines behind it, and only 1 lines hold"
    ):
        read_trace(path, "azure", "skip")


def test_a_file_that_is_read_whole_has_a_bounded_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES)
    assert len(read_input(path)) == MOST_BYTES
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(OSError, match="larger than the 64 MiB that are read"):
        read_input(path)


def odd(folder: Path) -> Iterator[tuple[str, str]]:
    """Paths that are no regular file, with what the error says of them."""
    os.mkfifo(folder / "pipe")
    for path in (folder / "pipe", "/dev/zero", "/dev/null"):
        yield str(path), "not a regular file"
    yield str(folder), "Is a directory"
    yield str(folder / "absent"), "No such file"
    yield "a\x00b", "not the name of a file"
    yield "\ud800", "not the name of a file"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    for path, reason in odd(tmp_path):
        for read in (open_input, read_input, lambda path: list(unpack(path))):
            with pytest.raises(OSError, match=reason):
                read(Path(path))
