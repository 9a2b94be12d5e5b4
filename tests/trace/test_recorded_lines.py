"""Files of recorded traffic: killed at any moment, and read by somebody who must not know it."""

import gzip
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hybrid_blocks.recording.record_file import ENDINGS, RecordFile
from hybrid_blocks.recording.recorder import BEGAN, Finished, Recorder, logger
from hybrid_blocks.tools.trace import DamagedLineError, read_trace
from hybrid_blocks.tools.trace.lines import LineReader
from hybrid_blocks.tools.trace.recorded import Record, parse, split_digests

BLOCK = 16
LARGEST = 1 << 30
UNPACKED: dict[str, Callable[[bytes], bytes]] = {
    ".jsonl": bytes,
    ".jsonl.gz": gzip.decompress,
    ".jsonl.zst": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
}

# Writes requests without end, and says how many bytes were asked for in the meantime.
ENDLESS = """
import sys, time
from pathlib import Path
from test_recorded_lines import finished, LARGEST
from hybrid_blocks.recording.recorder import Recorder
one = Recorder(Path(sys.argv[1]), LARGEST)
for number in range(1_000_000):
    one.put(finished(number))
    if number % 64 == 0:
        print(number, flush=True)
        time.sleep(0.001)
"""


def finished(number: int, blocks: int = 5) -> Finished:
    """A request whose first blocks are those of every third one."""
    hashes = [b"%d-%d" % (number % 3, block) for block in range(blocks)]
    prompt, session = BLOCK * (blocks - 1) + 7, f"session {number % 2}"
    names: Any = {"session": session, "adapter": "an adapter's name", "priority": 0}
    return Finished(float(number), BLOCK, prompt, 9, 0, hashes, aborted=False, **names)


def written(path: Path, count: int = 50) -> list[Record]:
    recorder = Recorder(path, LARGEST)
    for number in range(count):
        recorder.put(finished(number))
    recorder.close()
    return records(path)


def records(path: Path) -> list[Record]:
    return list(LineReader(path, "skip").parse(parse))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_killed_process_leaves_a_file_of_whole_lines(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"traffic{ending}"
    folders = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": folders},
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 512 and path.stat().st_size > 1 << 14:
                break
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    found = records(path)
    assert [one.number for one in found] == list(range(len(found)))
    assert len(found) > 50
    trace = read_trace(path, on_error="skip")
    assert len(trace) == len(found)
    assert len(trace.skipped) <= 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_cut_off_anywhere_keeps_the_lines_before(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"traffic{ending}"
    whole = written(path)
    data, cut = path.read_bytes(), tmp_path / f"cut{ending}"
    for size in range(0, len(data), 97):
        cut.write_bytes(data[:size])
        found = records(cut)
        assert found == whole[: len(found)]
        if ending == ENDINGS[0]:
            assert len(found) in {data[:size].count(b"\n"), data[: size + 1].count(b"\n")}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_flushed_can_be_read_before_the_file_ends(tmp_path: Path, ending: str) -> None:
    file = RecordFile(tmp_path, "traffic", ending)
    lines = [b'{"line":%d}' % number for number in range(2000)]
    for line in lines[:1500]:
        file.write(line + b"\n")
    file.flush()
    assert file.is_flushed
    reader = LineReader(file.path, "skip")
    assert list(reader.parse(bytes.strip)) == lines[:1500]
    assert reader.cut_off_after == (None if ending == ".jsonl" else 1500)
    for line in lines[1500:]:
        file.write(line + b"\n")
    file.close()
    whole = LineReader(file.path, "raise")
    assert list(whole.parse(bytes.strip)) == lines
    assert whole.cut_off_after is None


def test_a_file_of_several_frames_is_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "traffic"
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(b"".join(pack(b'{"line":%d}\n' % number * 3) for number in range(5000)))
    found = list(LineReader(path, "raise").parse(bytes.strip))
    assert found == [b'{"line":%d}' % number for number in range(5000) for _ in range(3)]
    broken = bytearray(path.read_bytes())
    broken[len(broken) // 2 :] = b"\xff" * (len(broken) // 2)
    path.write_bytes(broken)
    reader = LineReader(path, "skip")
    assert 7000 < len(list(reader.parse(bytes.strip))) < 8000
    assert reader.cut_off_after
    with pytest.raises(DamagedLineError, match="the compressed data ends or breaks here"):
        list(LineReader(path, "raise").parse(bytes.strip))


def test_two_files_of_the_same_traffic_share_no_digest(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.jsonl"), written(tmp_path / "b.jsonl.gz")
    digests = [{it for one in each for it in split_digests(one.blocks)} for each in (first, second)]
    assert [len(each) for each in digests] == [15, 15]
    assert digests[0].isdisjoint(digests[1])
    for one, other in zip(first, second, strict=True):
        assert (one.number, one.prompt_tokens) == (other.number, other.prompt_tokens)
        assert len(one.blocks) == len(other.blocks)


def test_requests_that_arrive_before_a_file_is_made_keep_their_times(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "traffic.jsonl", largest_file=1)
    for number in range(3):
        recorder.put(finished(number)._replace(arrival=BEGAN + number))
    recorder.close()
    files = [tmp_path / f"traffic{number}.jsonl" for number in ("", ".1", ".2")]
    assert [records(file)[0].arrival for file in files] == [0, 1, 2]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_holds_numbers_and_digests_alone(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"traffic{ending}"
    written(path)
    text = UNPACKED[ending](path.read_bytes())
    for secret in (b"session 1", b"an adapter", b"0-0", b"2-4"):
        assert secret not in text
    words = {word for word in text.split(b'"') if word[:1].isalpha()} - {b"", b","}
    names = {name.encode() for name in Record.__struct_encode_fields__}
    assert words - names <= {one.blocks.encode() for one in records(path)}


def test_a_digest_is_that_of_its_block_alone(tmp_path: Path) -> None:
    """The file tells blocks apart as the engine does, and by nothing else."""
    found = written(tmp_path / "traffic.jsonl")
    for one, other in itertools.combinations(found[:6], 2):
        assert (one.blocks == other.blocks) == (one.number % 3 == other.number % 3)


@pytest.mark.parametrize("error", [ValueError("no such hash"), OSError(28, "No space left")])
def test_an_error_of_the_thread_that_writes_is_logged_once_and_ends_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    recorder, has_written = Recorder(tmp_path / "a.jsonl.zst", LARGEST), threading.Event()
    write = RecordFile.write

    def fails_later(self: RecordFile, line: bytes) -> None:
        if has_written.is_set():
            raise error
        write(self, line)
        has_written.set()

    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
    monkeypatch.setattr(RecordFile, "write", fails_later)
    for number in range(3):
        recorder.put(finished(number))
    assert has_written.wait(60)
    for number in range(5):
        recorder.put(finished(number))
    recorder.close()
    recorder.put(finished(9))
    recorder.close()
    assert len(said) == 3, said
    assert said[0].endswith(f"a.jsonl.zst: {type(error).__name__}: {error}; serving goes on")
    dropped = [int(message.split("dropped ")[1].split()[0]) for message in said[1:]]
    assert dropped[1] == 1
    assert all(message.endswith("as recording had stopped") for message in said[1:])
    whole = records(recorder.path)
    assert len(whole) + dropped[0] == 8
    assert whole[0].number == 0
    assert len(list(LineReader(recorder.path, "raise").parse(parse))) == len(whole)
