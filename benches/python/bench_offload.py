"""Offload: what questions and waiting cost a step, and storing chunks that are there already."""

import hashlib
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from _rows import Row, seconds, show, within
from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.offload.layout import Group, Groups, layout_versions
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import Chunks, TierQueue
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import (
    Locality,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

TOKENS = 16
LONG = 100_000
NUM_WAITING = 10
MANY = 16_000
PAGE = 4096
GROUPS = Groups(
    all=(
        Group(number=0, tokens=TOKENS, rank_bytes=PAGE),
        Group(number=1, tokens=TOKENS, rank_bytes=PAGE, window=1),
    ),
    num_ranks=1,
    tokens_per_hash=TOKENS,
)


class Prompt:
    """The keys of a request, by group, as vLLM's scheduler names them."""

    def __init__(self, chat: int, num_chunks: int) -> None:
        """Name the chunks of a chat."""
        self.context = ReqContext(req_id=f"{chat}")
        self.keys: list[list[OffloadKey]] = [[], []]
        for at in range(num_chunks):
            digest = hashlib.sha256(f"{chat} {at}".encode()).digest()
            for group, keys in enumerate(self.keys):
                keys.append(make_offload_key(digest, group))
                self.context.set_offload_key_position(keys[-1], (at + 1) * TOKENS)


class Asking:
    """vLLM's scans over a manager."""

    def __init__(self, manager: HybridOffloadingManager) -> None:
        """Ask ``manager`` in the scheduler's name."""
        self.manager = manager
        self._events_tracker = self

    def record_lookup(self, *_: Any) -> None:
        """Ignore the look-up: the benchmark reads no events."""

    def ask(self, prompt: Prompt) -> tuple[int | None, int | None]:
        """Ask a step's questions for a request without a block on the device."""
        scheduler: Any = OffloadingConnectorScheduler
        context = prompt.context
        attention = scheduler._maximal_prefix_lookup(self, prompt.keys[0], context, None, None, 0)
        return attention, scheduler._sliding_window_lookup(self, prompt.keys[1], 1, context)


class Held(TierQueue[DiskStore]):
    """Reads that stand still until they may go on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Stand still from the start."""
        super().__init__(*arguments, **options)
        self.may_read = threading.Event()

    def _load_plain(self, chunks: Chunks) -> list[bool]:
        self.may_read.wait()
        return super()._load_plain(chunks)


@contextmanager
def _queue(num_bytes: int) -> Iterator[Held]:
    with tempfile.TemporaryDirectory(prefix="hybrid-blocks-bench-") as folder:
        disk = DiskStore(Path(folder), 4 << 30, layouts=layout_versions(GROUPS, {"model": "bench"}))
        queue = Held(
            disk,
            np.zeros(num_bytes, dtype=np.uint8),
            [PAGE, PAGE],
            name="disk",
            source=CacheHitSource.DISK,
            locality=Locality.LOCAL,
            patience=3600.0,
        )
        yield queue
        queue.may_read.set()
        queue.finished(wait=True)
        queue.close()


def waiting() -> Row:
    """A step in which ten requests wait for what they have on the disk."""
    num_chunks = LONG // TOKENS
    num_bytes = 3 * NUM_WAITING * num_chunks * PAGE
    with _queue(num_bytes) as queue:
        prompts = [Prompt(chat, num_chunks) for chat in range(NUM_WAITING)]
        for prompt in prompts:
            keys = [*prompt.keys[0], prompt.keys[1][-1]]
            queue.write(Chunks(keys, [TOKENS] * len(keys), [0] * len(keys)))
        queue.finished(wait=True)
        manager = HybridOffloadingManager(GROUPS, num_bytes, below=TiersBelow(disk=queue))
        asking = Asking(manager)
        end = ScheduleEndContext(new_req_ids=(), preempted_req_ids=())

        def step() -> None:
            for prompt in prompts:
                if asking.ask(prompt) != (None, None):
                    raise AssertionError("a request does not wait")
            manager.on_schedule_end(end)

        step()
        (took,) = seconds(step)
    name = f"a step with {NUM_WAITING} requests of {LONG:,} tokens that wait for a disk"
    return within(name, "ms", took * 1e3, at_most=1.0)


def asked() -> Row:
    """A question of level ``natural`` for all that host memory has of a waiting request."""
    num_chunks = LONG // TOKENS
    manager = HybridOffloadingManager(GROUPS, 2 * num_chunks * PAGE)
    first, again = Prompt(0, num_chunks), Prompt(0, num_chunks)
    keys = [*first.keys[0], first.keys[1][-1]]
    if manager.prepare_store(keys, first.context) is None:
        raise AssertionError("nothing was stored")
    manager.complete_store(keys, first.context)
    manager.on_request_finished(first.context)

    def ask() -> None:
        if manager.restorable(again.context, 0, LONG) != LONG:
            raise AssertionError("not all of it was found")

    ask()
    (took,) = seconds(ask)
    name = f"a question for all of {LONG:,} tokens in {2 * num_chunks:,} keys"
    return within(name, "us", took * 1e6, at_most=500.0)


def again() -> Row:
    """A store of chunks that the disk has."""
    with _queue(MANY * PAGE) as queue:
        keys = Prompt(0, MANY).keys[0]
        tokens, offsets = [TOKENS] * MANY, list(range(0, MANY * PAGE, PAGE))
        store, places = queue.store, queue._places
        if store.store_from(places, keys, tokens, offsets) != MANY:
            raise AssertionError("not all chunks were stored")
        (took,) = seconds(lambda: store.store_from(places, keys, tokens, offsets))
    return within(f"a store of {MANY:,} chunks that are there", "ms", took * 1e3, at_most=5.0)


def run() -> list[Row]:
    """Measure all rows."""
    return [asked(), waiting(), again()]


if __name__ == "__main__":
    show("offload", run())
