"""Other threads of Python run while a disk reads and writes."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from test_host_cache import ATTENTION, chain, disk

NUM_CHUNKS = 64
CHUNK_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def no_thread_is_made_to_give_way() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval)


def num_turns_beside(call: Callable[[], object]) -> int:
    """Make a call in a thread; return how often another one ran meanwhile.

    A thread keeps the interpreter until it gives it away, so that only the call itself can.
    """
    state = ["before"]

    def make() -> None:
        state[0] = "under way"
        call()
        state[0] = "over"

    thread = Thread(target=make)
    thread.start()
    num_turns = 0
    while state[0] != "over":
        time.sleep(0.0001)
        num_turns += state[0] == "under way"
    thread.join()
    return num_turns


def test_a_thread_that_keeps_the_interpreter_is_noticed() -> None:
    assert num_turns_beside(lambda: sum(range(2_000_000))) == 0


def test_a_disk_that_writes_and_reads_holds_up_no_other_thread(tmp_path: Path) -> None:
    keys, tokens = chain(ATTENTION, NUM_CHUNKS)
    chunks = [np.full(CHUNK_BYTES, at, dtype=np.uint8) for at in range(NUM_CHUNKS)]
    into = [np.zeros(CHUNK_BYTES, dtype=np.uint8) for _ in chunks]
    store = disk(tmp_path, max_bytes=256 << 20, largest_chunk=CHUNK_BYTES)
    assert num_turns_beside(lambda: store.store(keys, tokens, chunks)) > 0
    # A busy machine may give this thread no turn in one short read.
    assert any(num_turns_beside(lambda: store.load(keys, into)) for _ in range(20))
    assert all((got == want).all() for got, want in zip(into, chunks, strict=True))
