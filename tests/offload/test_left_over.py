"""Shared memory of engines that were killed, and files in the way of a region."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.region import Header, Region, remove_left_over

SIZE = 1 << 20
HEADER = Header(rank_bytes=[64], layout={})
WORKER = """
import sys
from hybrid_blocks.offload.region import Header, Region
region = Region.create(sys.argv[1], 1 << 20, 0, Header(rank_bytes=[64], layout={}))
print("made", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def engine_id() -> str:
    return f"left-over-{uuid.uuid4()}"


def path_of(engine_id: str) -> Path:
    return Path("/dev/shm") / f"hybrid_blocks_{engine_id}.region"


@contextmanager
def worker(engine_id: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has made a region and waits for the scheduler."""
    command = [sys.executable, "-c", WORKER, engine_id]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        try:
            yield process
        finally:
            process.kill()


def test_what_a_killed_worker_left_is_removed_at_the_next_start(engine_id: str) -> None:
    with worker(engine_id) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert path_of(engine_id).exists()
    other = Region.create(f"{engine_id}-next", SIZE, 0, HEADER)
    assert not path_of(engine_id).exists()
    other.cleanup()


def test_the_same_id_starts_again_after_a_crash(engine_id: str) -> None:
    with worker(engine_id) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    ranks = [Region.create(engine_id, SIZE, rank, HEADER) for rank in range(2)]
    scheduler = Region.join(engine_id, SIZE, num_ranks=2)
    assert not scheduler.bytes.any()
    assert not path_of(engine_id).exists()
    for region in (*ranks, scheduler):
        region.cleanup()


def test_a_region_that_a_process_has_is_left_alone(engine_id: str) -> None:
    with worker(engine_id) as process:
        remove_left_over()
        assert path_of(engine_id).exists()
        with pytest.raises(InvalidArgumentError, match="is there already: another engine with"):
            Region.create(engine_id, SIZE, 0, HEADER)
        assert path_of(engine_id).exists()
        scheduler = Region.join(engine_id, SIZE, num_ranks=1)
        scheduler.cleanup()
        assert process.poll() is None


def test_a_worker_that_ends_by_itself_leaves_no_name(engine_id: str) -> None:
    with worker(engine_id) as process:
        process.communicate("\n")
        assert process.returncode == 0
    assert not path_of(engine_id).exists()


def test_an_id_is_free_again_once_its_region_is_gone(engine_id: str) -> None:
    for _ in range(2):
        rank = Region.create(engine_id, SIZE, 0, HEADER)
        scheduler = Region.join(engine_id, SIZE, num_ranks=1)
        scheduler.bytes[:] = 7
        rank.cleanup()
        scheduler.cleanup()
    # One that no scheduler joined.
    Region.create(engine_id, SIZE, 0, HEADER).cleanup()
    assert not path_of(engine_id).exists()


def test_no_nameless_files_are_needed(engine_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "O_TMPFILE", os.O_CREAT)  # a folder cannot be opened like that
    rank = Region.create(engine_id, SIZE, 0, HEADER)
    scheduler = Region.join(engine_id, SIZE, num_ranks=1)
    rank.bytes[0] = 7
    assert scheduler.bytes[0] == 7
    assert not list(path_of(engine_id).parent.glob(f"*{engine_id}*"))
    rank.cleanup()
    scheduler.cleanup()


def test_a_later_region_of_the_same_id_keeps_its_name(engine_id: str) -> None:
    first = Region.create(engine_id, SIZE, 0, HEADER)
    Region.join(engine_id, SIZE, num_ranks=1).cleanup()
    second = Region.create(engine_id, SIZE, 0, HEADER)
    first.cleanup()
    assert path_of(engine_id).exists()
    second.cleanup()


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "short", "unlocked"])
def test_what_is_in_the_way_is_left_alone(kind: str, engine_id: str, tmp_path: Path) -> None:
    path, victim = path_of(engine_id), tmp_path / "victim"
    victim.write_bytes(bytes(SIZE + (64 << 10)))
    match kind:
        case "link":
            path.symlink_to(victim)
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path, 0o600)
        case "short":
            path.write_bytes(b"short")
        case _:
            path.write_bytes(victim.read_bytes())
    try:
        with pytest.raises(HybridBlocksError):
            Region.join(engine_id, SIZE, num_ranks=1)
        with pytest.raises(HybridBlocksError):
            Region.create(engine_id, SIZE, 1, HEADER, patience=0.0)
        assert not any(victim.read_bytes())
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
