"""Files of a record are read as they grow: cut, rotated, replaced, truncated and broken."""

import os
from collections.abc import Callable, Iterator
from errno import ENOSPC
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.recording.record_file import ENDINGS, RecordFile
from hybrid_blocks.recording.recorder import BEGAN, Finished, Recorder
from hybrid_blocks.tools.cli.shadow import say
from hybrid_blocks.tools.shadow.follow import Follower, Piece
from hybrid_blocks.tools.shadow.publish import Page
from hybrid_blocks.tools.top.read import GoneError, fetch
from hybrid_blocks.tools.trace.recorded import Record
from written import text


def line(number: int) -> Record:
    return Record(
        number=number, arrival=number, block_tokens=16, prompt_tokens=20, output_tokens=2, blocks=""
    )


def lines(*numbers: int) -> bytes:
    return text([line(number) for number in numbers])


def read(follower: Follower) -> tuple[list[int], list[str], list[str]]:
    """Numbers of the requests up to the end, names of files that begin, and remarks."""
    numbers: list[int] = []
    begun: list[str] = []
    remarks: list[str] = []
    piece = Piece()
    while not piece.is_end:
        piece = follower.poll()
        numbers += [record.number for record in piece.records]
        begun += [piece.begins.name] if piece.begins else []
        remarks += piece.remarks
    return numbers, begun, remarks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "traffic.jsonl"


Follow = Callable[[Path], Follower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    followers: list[Follower] = []

    def made(path: Path) -> Follower:
        followers.append(Follower(path))
        return followers[-1]

    yield made
    for one in followers:
        one.close()


def test_a_file_that_is_not_there_yet_is_waited_for(follow: Follow, path: Path) -> None:
    follower = follow(path)
    assert read(follower) == ([], [], [])
    path.write_bytes(lines(0, 1))
    assert read(follower) == ([0, 1], ["traffic.jsonl"], [])
    assert read(follower) == ([], [], [])


def test_a_line_that_is_not_whole_yet_waits_for_its_rest(follow: Follow, path: Path) -> None:
    follower = follow(path)
    whole = lines(0, 1)
    with path.open("wb", buffering=0) as file:
        file.write(whole[:-9])
        assert read(follower)[0] == [0]
        file.write(whole[-9:])
        assert read(follower)[0] == [1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_the_recorder_has_flushed_is_read_at_once(
    follow: Follow, tmp_path: Path, ending: str
) -> None:
    follower = follow(tmp_path / f"traffic{ending}")
    file = RecordFile(tmp_path, "traffic", ending)
    for number in range(3):
        file.write(lines(*range(1000 * number, 1000 * number + 1000)))
        file.flush()
        assert len(read(follower)[0]) == 1000
    assert follower.unread_bytes == 0
    file.close()
    assert read(follower) == ([], [], [])


def test_a_rotated_file_is_read_to_its_end_before_the_next(follow: Follow, path: Path) -> None:
    path.write_bytes(lines(0))
    follower = follow(path)
    assert read(follower)[0] == [0]
    with path.open("ab") as file:
        file.write(lines(1))
    path.with_name("traffic.1.jsonl").write_bytes(lines(2))
    path.with_name("traffic.2.jsonl").write_bytes(lines(3))
    path.with_name("traffic.jsonl.old").write_bytes(lines(4))
    assert read(follower) == ([1, 2, 3], ["traffic.1.jsonl", "traffic.2.jsonl"], [])


def test_the_newest_file_is_the_first_that_is_read(follow: Follow, path: Path) -> None:
    for number in (2, 10, 9):
        path.with_name(f"traffic.{number}.jsonl").write_bytes(lines(number))
    path.write_bytes(lines(0))
    assert read(follow(path)) == ([10], ["traffic.10.jsonl"], [])


def test_an_engine_killed_in_a_line_leaves_it_out_and_its_successor_is_read(
    follow: Follow, path: Path
) -> None:
    path.write_bytes(lines(0, 1)[:-9])
    follower = follow(path)
    assert read(follower)[0] == [0]
    path.with_name("traffic.1.jsonl").write_bytes(lines(5))
    numbers, begun, remarks = read(follower)
    assert (numbers, begun) == ([5], ["traffic.1.jsonl"])
    assert remarks == ["the last line of the file before has no end"]


class _FullDisk:
    """Takes some bytes more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._room])
        self._room -= len(data)
        if self._room < 0:
            raise OSError(ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_disk_that_was_full_ends_a_file_and_the_restarted_engines_is_read(
    follow: Follow, path: Path
) -> None:
    finished = Finished(BEGAN, 16, 20, 1, 0, [bytes(32)], None, None, 0, False)
    follower = follow(path)
    counts = []
    for room in (2000, 1 << 20):
        recorder = Recorder(path, 1 << 20)
        recorder._file._raw = _FullDisk(recorder._file._raw, room)  # type: ignore[assignment]
        for _ in range(50):
            recorder.put(finished)
        recorder.close()
        numbers, (begun,), remarks = read(follower)
        assert numbers == list(range(len(numbers)))
        assert begun == recorder.path.name
        counts.append(len(numbers))
    assert 0 < counts[0] < counts[1] == 50
    assert remarks == ["the last line of the file before has no end"]


def test_a_full_disk_behind_the_output_ends_no_shadow(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("wb", 0) as full:
        monkeypatch.setattr("sys.stdout", TextIOWrapper(full, write_through=True))
        with pytest.raises(OSError, match="No space"):
            print("a line", flush=True)
        say("a line")
    reads, writes = os.pipe()
    os.close(reads)
    monkeypatch.setattr("sys.stdout", os.fdopen(writes, "w"))
    with pytest.raises(BrokenPipeError):
        say("another line")


def _truncate(path: Path) -> None:
    path.write_bytes(lines(7))


def _replace(path: Path) -> None:
    path.with_suffix(".new").write_bytes(lines(7, 8, 9))
    os.replace(path.with_suffix(".new"), path)  # noqa: PTH105


@pytest.mark.parametrize(
    ("change", "numbers", "remark"),
    [
        (_truncate, [7], "the file was truncated"),
        (_replace, [7, 8, 9], "the file was replaced"),
        (Path.unlink, [], None),
    ],
)
def test_a_file_that_is_another_one_now_is_read_from_its_beginning(
    follow: Follow,
    path: Path,
    change: Callable[[Path], None],
    numbers: list[int],
    remark: str | None,
) -> None:
    path.write_bytes(lines(0, 1))
    follower = follow(path)
    assert read(follower)[0] == [0, 1]
    change(path)
    found = read(follower)
    assert found[0] == numbers
    assert found[2] == ([remark] if remark else [])
    path.with_name("traffic.1.jsonl").write_bytes(lines(20))
    assert read(follower)[0] == [20]


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_packed_data_that_breaks_ends_a_file_and_not_the_shadow(
    follow: Follow, tmp_path: Path, ending: str
) -> None:
    file = RecordFile(tmp_path, "traffic", ending)
    file.write(lines(*range(100)))
    file.flush()
    follower = follow(file.path)
    assert len(read(follower)[0]) == 100
    with file.path.open("ab") as again:
        again.write(b"\xff" * 5000)
    numbers, _, remarks = read(follower)
    assert numbers == []
    assert [it[:39] for it in remarks] == ["the rest of the file cannot be unpacked"]
    file.close()
    RecordFile(tmp_path, "traffic", ending).close()
    assert read(follower)[1] == [f"traffic.1{ending}"]


def test_damaged_lines_are_counted_and_the_first_is_told(follow: Follow, path: Path) -> None:
    path.write_bytes(b'{"a":\n' + lines(1) + b"\x00\x00\n\n" + lines(2))
    follower = follow(path)
    numbers, _, remarks = read(follower)
    assert numbers == [1, 2]
    assert follower.num_damaged == 2
    assert len(remarks) == 1


def test_lines_that_are_skipped_are_counted(follow: Follow, path: Path) -> None:
    path.write_bytes(lines(0, 1, 2))
    follower = follow(path)
    follower.poll()
    assert follower.poll(skips=True).records == []
    assert follower.num_skipped == 3


def test_a_name_that_no_recorder_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"ends in \.jsonl"):
        Follower(tmp_path / "traffic.csv")


def test_a_page_shows_its_text_at_one_address_alone() -> None:
    page = Page("127.0.0.1", 0)
    page.text = "a 1\n"
    try:
        assert page.server_address[0] == "127.0.0.1"
        address = f"http://127.0.0.1:{page.server_port}"
        assert fetch(f"{address}/metrics") == "a 1\n"
        with pytest.raises(GoneError, match="404"):
            fetch(f"{address}/other")
    finally:
        page.shutdown()
        page.server_close()
