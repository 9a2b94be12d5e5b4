"""Tiers that do not answer: requests, resets and the end of an engine go on without them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks.metrics import OFFLOAD_GAUGES
from hybrid_blocks.offload.manager import write_back
from hybrid_blocks.offload.manager.host import ABSENT, PENDING, READY
from hybrid_blocks.offload.tiers.queue import Chunks, TierQueue
from hybrid_blocks.vllm.log import logger
from scheduled import (
    ATTENTION,
    STATE,
    Engine,
    Request,
    disk_at,
    end,
    leave,
    results,
    settle,
    until,
    wanted,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import LookupResult, OffloadKey

MISS, HIT, RETRY = LookupResult.MISS, LookupResult.HIT, LookupResult.RETRY
PAGE = 4096


class Valve:
    """A disk's reads or writes, which stand still while it is closed."""

    def __init__(self, queue: TierQueue[Any], name: str) -> None:
        """Stand before the method ``name`` of ``queue``, which loses patience at once."""
        self._open = threading.Event()
        self._inner: Callable[[Chunks], Any] = getattr(queue, name)
        self.keys: list[bytes] = []
        queue._patience = 0.05
        setattr(queue, name, self)

    def __call__(self, chunks: Chunks) -> Any:
        self.keys += chunks.keys
        assert self._open.wait(60)
        return self._inner(chunks)

    def release(self) -> None:
        """Let all that waits and will come pass."""
        self._open.set()


@pytest.fixture
def valves() -> Iterator[list[Valve]]:
    made: list[Valve] = []
    yield made
    for valve in made:
        valve.release()


def disk_of(engine: Engine) -> TierQueue[Any]:
    assert engine.below.disk is not None
    return engine.below.disk


def on_disk(folder: Path, *requests: Request) -> Engine:
    """An engine whose disk holds requests, and whose host memory does not."""
    leave(Engine(256 * PAGE, disk_at(str(folder))), *requests)
    return Engine(64 * PAGE, disk_at(str(folder)))


def ask(engine: Engine, request: Request) -> list[LookupResult]:
    return results(engine, request, wanted(request))


def refused(engine: Engine) -> dict[str, float]:
    """The figures of tiers that are not used."""
    stats = engine.manager.get_stats()
    assert stats is not None
    figures = stats.reduce()
    return {name: figures[OFFLOAD_GAUGES[name].name] for name in ("disk_refused", "object_refused")}


def test_a_read_that_does_not_end_holds_up_no_request(tmp_path: Path, valves: list[Valve]) -> None:
    engine = on_disk(tmp_path, Request("chat", 8))
    valves.append(Valve(disk_of(engine), "_load_plain"))
    first, second, third = (Request("chat", 8, number) for number in range(1, 4))
    assert ask(engine, first)[0] is RETRY
    until("it goes on", lambda: ask(engine, first) == [MISS] * 9, engine)
    # The first read keeps its slots until it ends, so that it overwrites no other chunk.
    assert set(engine.manager.cache.presences(wanted(first))) == {PENDING}
    assert ask(engine, second) == [MISS] * 9
    assert not engine.manager.has_pending_work()
    engine.manager.on_request_finished(first.context)
    end(engine, Request("other", 4))
    valves[0].release()
    ready = bytes([READY] * 9)
    until("it ends", lambda: engine.manager.cache.presences(wanted(first)) == ready, engine)
    assert ask(engine, third) == [HIT] * 9
    engine.load(third, wanted(third))
    engine.manager.cache.check_integrity()


def test_what_stands_still_is_said_once(
    tmp_path: Path, valves: list[Valve], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    warning = "hybrid_blocks.offload.manager.progress.logger.warning"
    monkeypatch.setattr(warning, lambda it, *_: said.append(it))
    engine = on_disk(tmp_path, Request("chat", 4))
    valves.append(Valve(disk_of(engine), "_load_plain"))
    again = Request("chat", 4, 1)
    ask(engine, again)
    until("it goes on", lambda: ask(engine, again) == [MISS] * 5, engine)
    for _ in range(5):
        engine.end_step()
    assert said == ["%s does not answer; requests go on without it until it does."]
    assert refused(engine) == {"disk_refused": 1, "object_refused": 0}
    valves[0].release()
    until("the disk answers", lambda: not refused(engine)["disk_refused"], engine)


@pytest.mark.parametrize("name", ["_load_plain", "_store_plain"])
def test_a_reset_leaves_memory_of_transfers(name: str, tmp_path: Path, valves: list[Valve]) -> None:
    engine = on_disk(tmp_path, Request("chat", 8))
    valves.append(Valve(disk_of(engine), name))
    again, other = Request("chat", 8, 1), Request("other", 4)
    ask(engine, again)
    end(engine, other)
    engine.manager.reset_cache()
    after = Request("after", 4)
    assert engine.manager.prepare_store(after.keys[ATTENTION], after.context) is None
    assert ask(engine, Request("other", 4, 1)) == [MISS] * 5
    valves[0].release()

    def is_stored() -> bool:
        return engine.store(after, after.keys[ATTENTION]) == 4

    until("host memory is used again", is_stored, engine)
    assert engine.manager.cache.presences(wanted(other)) == bytes([ABSENT] * 5)
    assert engine.manager.cache.presences(wanted(again)) == bytes([ABSENT] * 9)
    engine.load(after, after.keys[ATTENTION])


@pytest.mark.parametrize("name", ["_load_plain", "_store_plain"])
def test_an_engine_ends_without_its_disk(name: str, tmp_path: Path, valves: list[Valve]) -> None:
    engine = on_disk(tmp_path, Request("chat", 8))
    valves.append(Valve(disk_of(engine), name))
    ask(engine, Request("chat", 8, 1))
    end(engine, Request("other", 4))
    engine.manager.shutdown()


def test_a_store_that_never_closes_does_not_hold_up_the_end() -> None:
    never = threading.Event()

    class Store:
        is_paused = False

        def close(self) -> None:
            assert never.wait(60)

    region = np.zeros(PAGE, dtype=np.uint8)
    names: dict[str, Any] = {"name": "disk", "source": _Source, "locality": None}
    queue = TierQueue(Store(), region, [PAGE], patience=0.05, **names)  # type: ignore[type-var]
    queue.close()
    never.set()


class _Source:
    value = "disk"


def test_requests_that_wait_for_writes_are_bounded(
    tmp_path: Path, valves: list[Valve], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_back, "_MOST_KEYS", 100)
    engine = Engine(64 * PAGE, disk_at(str(tmp_path)))
    valves.append(Valve(disk_of(engine), "_store_plain"))
    disk_of(engine)._patience = 60.0
    for number in range(50):
        end(engine, Request(f"chat {number}", 8))
        queue = engine.manager._write_back
        assert sum(len(left.keys) for left in queue._left) == queue._num_keys <= 100


def test_one_request_pins_no_more_than_a_quarter_and_is_written_whole(
    tmp_path: Path, valves: list[Valve]
) -> None:
    engine = Engine(256 * PAGE, disk_at(str(tmp_path)))
    disk = disk_of(engine)
    valves.append(Valve(disk, "_store_plain"))
    disk._patience = 60.0
    large = Request("large", 230)
    engine.store(large, large.keys[ATTENTION])
    engine.manager.on_request_finished(large.context)
    assert 48 * PAGE <= engine.manager.cache.pinned_bytes <= 64 * PAGE
    # Others find room.
    other = Request("other", 100)
    assert engine.store(other, other.keys[ATTENTION]) == 100
    valves[0].release()
    settle(engine)
    assert disk.store.num_chunks >= 64
    assert engine.manager.cache.pinned_bytes == 0


def test_a_chunk_that_is_a_quarter_is_written_alone(tmp_path: Path) -> None:
    engine = Engine(8 * PAGE, disk_at(str(tmp_path)))
    end(engine, Request("chat", 2))
    settle(engine)
    assert disk_of(engine).store.num_chunks == 3


def test_what_requests_share_is_written_once(tmp_path: Path, valves: list[Valve]) -> None:
    engine = Engine(256 * PAGE, disk_at(str(tmp_path)))
    valve = Valve(disk_of(engine), "_store_plain")
    valves.append(valve)
    disk_of(engine)._patience = 60.0
    requests = [Request("chat", 8, number) for number in range(8)]
    engine.store(requests[0], wanted(requests[0]))
    for request in requests:
        engine.manager.on_request_finished(request.context)
    pinned = engine.manager.cache.pinned_bytes
    valve.release()
    settle(engine)
    assert sorted(valve.keys) == sorted(wanted(requests[0]))
    assert pinned == 10 * PAGE


def test_reads_do_not_wait_behind_writes(tmp_path: Path, valves: list[Valve]) -> None:
    engine = on_disk(tmp_path, Request("chat", 4))
    valves.append(Valve(disk_of(engine), "_store_plain"))
    disk_of(engine)._patience = 60.0
    for number in range(6):
        end(engine, Request(f"other {number}", 1))
    again = Request("chat", 4, 1)
    ask(engine, again)
    until("it is read", lambda: ask(engine, again) == [HIT] * 5, engine)
    assert len(valves[0].keys) > 0


def test_a_transfer_that_raises_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *rest: said.append(text % rest))
    engine = Engine(64 * PAGE, disk_at(str(tmp_path)))

    def fail(_: Chunks) -> None:
        raise RuntimeError("no thread can be had")

    monkeypatch.setattr(disk_of(engine), "_store_plain", fail)
    end(engine, Request("chat", 4))
    settle(engine)
    assert said == ["A write of disk failed: no thread can be had"]
    assert engine.manager.cache.pinned_bytes == 0


class Counting:
    """Host memory's books, and how many calls they get."""

    def __init__(self, inner: Any) -> None:
        """Count calls of ``inner``."""
        self._inner = inner
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        self.num_calls += 1
        return getattr(self._inner, name)


class Scan:
    """vLLM's own scans over a manager; counts its questions."""

    def __init__(self, engine: Engine) -> None:
        """Ask the manager of ``engine``."""
        self.manager = self
        self._events_tracker = self
        self._engine = engine
        self.num_asked = 0

    def lookup(self, key: OffloadKey, context: Any) -> LookupResult:
        """Ask once more."""
        self.num_asked += 1
        return self._engine.manager.lookup(key, context)

    def record_lookup(self, *_: Any) -> None:
        """Note no look-up."""

    def ask(self, request: Request) -> tuple[int | None, int | None]:
        """Look up in a step a request without blocks on the device."""
        scheduler: Any = OffloadingConnectorScheduler
        context = request.context
        keys = request.keys[ATTENTION]
        prefix = scheduler._maximal_prefix_lookup(self, keys, context, None, None, 0)
        return prefix, scheduler._sliding_window_lookup(self, request.keys[STATE], 1, context)


@pytest.mark.parametrize("num_chunks", [8, 60])
def test_a_request_that_waits_is_asked_for_a_few_chunks_in_a_step(
    num_chunks: int, tmp_path: Path, valves: list[Valve]
) -> None:
    engine = on_disk(tmp_path, Request("chat", num_chunks))
    engine = Engine(256 * PAGE, disk_of(engine).store)
    valves.append(Valve(disk_of(engine), "_load_plain"))
    disk_of(engine)._patience = 60.0
    again = Request("chat", num_chunks, 1)
    assert Scan(engine).ask(again) == (None, None)
    for _ in range(3):
        engine.end_step()
        scan = Scan(engine)
        assert scan.ask(again) == (None, None), "it waits"
        assert scan.num_asked <= 4
    valves[0].release()
    until("it is read", lambda: Scan(engine).ask(again)[0] == num_chunks, engine)
    assert Scan(engine).ask(again) == (num_chunks, num_chunks)


def test_a_request_that_waits_to_be_written_costs_one_look_a_step(tmp_path: Path) -> None:
    engine = Engine(256 * PAGE, disk_at(str(tmp_path)))
    waits = Request("waits", 60)
    # The copy of its last chunk does not end.
    engine.store(waits, waits.keys[ATTENTION][:-1])
    assert engine.manager.prepare_store(waits.keys[ATTENTION][-1:], waits.context) is not None
    engine.manager.on_request_finished(waits.context)
    host = engine.manager._host
    counting = Counting(host.cache)
    host.cache = counting  # type: ignore[assignment]
    for _ in range(5):
        engine.end_step()
    assert counting.num_calls <= 5
    engine.manager.complete_store(waits.keys[ATTENTION][-1:], waits.context)
    settle(engine)
    assert disk_of(engine).store.num_chunks == 60
    assert counting.num_calls < 20


def test_no_view_is_made_of_a_chunk_that_is_stored_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TierQueue, "_views", None)
    engine = on_disk(tmp_path, Request("chat", 8))
    again = Request("chat", 8, 1)
    ask(engine, again)
    until("it is read", lambda: ask(engine, again) == [HIT] * 9, engine)
    engine.load(again, wanted(again))
