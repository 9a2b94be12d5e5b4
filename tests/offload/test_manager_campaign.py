"""Lives of a manager: slow copies, aborts, resets, restarts and tiers that stand still."""

import gc
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.tiers.queue import Chunks, TierQueue
from scheduled import ATTENTION, STATE, Engine, Request, disk_at, objects_at
from vllm.v1.kv_offload.base import LookupResult, OffloadKey

PAGE = 4096
Copy = tuple[Request, list[OffloadKey], list[int]]


def opened(folder: Path) -> DiskStore:
    """Open a disk once the threads of the engine before have let it go."""
    deadline = time.monotonic() + 60
    while True:
        gc.collect()  # tiers and what slows them down refer to each other
        try:
            return disk_at(str(folder), 1 << 20)
        except HybridBlocksError:
            assert time.monotonic() < deadline, "the disk is not let go"
            time.sleep(0.005)


class Life:
    """An engine whose copies between device and host take any number of steps."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Begin with empty tiers below ``folder``."""
        folder.mkdir(exist_ok=True)
        self.random = random.Random(seed)
        self.folder = folder
        self.may_go = threading.Event()
        self.lengths = dict.fromkeys("abcdefgh", 1)
        self.num_requests = self.num_hits = 0
        self.stores: list[Copy] = []
        self.loads: list[Copy] = []
        self.ended: list[Request] = []
        self.start()

    def start(self) -> None:
        """Begin an engine over what the tiers hold."""
        url = f"file://{self.folder / 'objects'}"
        self.engine = Engine(24 * PAGE, opened(self.folder / "disk"), objects_at(url))
        self.stores, self.loads = [], []
        self.may_go.set()
        for tier in self.engine.below:
            tier._patience = 0.02
            for name in ("_load_plain", "_store_plain"):
                self._make_slow(tier, name)

    def _make_slow(self, tier: TierQueue[Any], name: str) -> None:
        inner = getattr(tier, name)
        # The manager asks from one thread, the tier's threads draw elsewhere.
        rng = random.Random(self.random.random())

        def slow(chunks: Chunks) -> Any:
            assert self.may_go.wait(60)
            if rng.random() < 0.05:
                raise RuntimeError("this transfer fails")
            return inner(chunks)

        setattr(tier, name, slow)

    def ask(self, request: Request) -> list[LookupResult]:
        """Ask for all of a request as a scheduler does: attention, then states from the end."""
        keys = [*request.keys[ATTENTION], *request.keys[STATE][::-1]]
        return [self.engine.manager.lookup(key, request.context) for key in keys]

    def step(self) -> None:
        """Do one of the things that happen in an engine."""
        match self.random.choices(range(6), [10, 6, 6, 2, 1, 1])[0]:
            case 0:
                self.serve()
            case 1:
                self.end_copies(self.stores)
            case 2:
                self.end_copies(self.loads)
            case 3:
                if self.may_go.is_set():
                    self.may_go.clear()
                else:
                    self.may_go.set()
            case 4:
                self.reset()
            case _:
                self.restart()
        self.engine.end_step()
        self.engine.manager.cache.check_integrity()

    def serve(self) -> None:
        """Let a request come, load what is a hit, offer the rest, and end or be aborted."""
        chat = self.random.choice(list(self.lengths))
        self.num_requests += 1
        request = Request(chat, self.lengths[chat], self.num_requests)
        self.lengths[chat] = self.lengths[chat] % 8 + 1
        attention, states = request.keys[ATTENTION], request.keys[STATE]
        found = self.ask(request)
        for _ in range(self.random.randrange(4)):
            if LookupResult.RETRY in found or LookupResult.HIT_PENDING in found:
                self.engine.end_step()
                time.sleep(0.001)
                found = self.ask(request)
        run = [*found[: len(attention)], LookupResult.MISS].index(LookupResult.MISS)
        is_sure = set(found) <= {LookupResult.HIT, LookupResult.MISS}
        ends = found[len(found) - run :]
        length = run - ends.index(LookupResult.HIT) if LookupResult.HIT in ends else 0
        if is_sure and length:
            self.load(request, [*attention[:length], states[length - 1]])
        else:
            length = 0
        self.offer(request, [*attention[length:], states[-1]])
        if self.random.random() < 0.9:  # else it goes on for as long as the engine
            self.engine.manager.on_request_finished(request.context)

    def load(self, request: Request, keys: list[OffloadKey]) -> None:
        """Begin a copy to the device."""
        spec = self.engine.manager.prepare_load(keys, request.context)
        assert isinstance(spec, HostLoadStoreSpec)
        self.num_hits += 1
        self.loads.append((request, keys, spec.block_ids.tolist()))

    def offer(self, request: Request, keys: list[OffloadKey]) -> None:
        """Begin a copy from the device."""
        output = self.engine.manager.prepare_store(keys, request.context)
        if output is not None:
            assert isinstance(output.store_spec, HostLoadStoreSpec)
            keys, offsets = list(output.keys_to_store), output.store_spec.block_ids.tolist()
            self.stores.append((request, keys, offsets))

    def end_copies(self, copies: list[Copy]) -> None:
        """End some of the copies; bytes move at their end."""
        for _ in range(self.random.randrange(len(copies) + 1)):
            request, keys, offsets = copies.pop(self.random.randrange(len(copies)))
            places = [
                self.engine.region[offset : offset + len(self.engine.content(key))]
                for key, offset in zip(keys, offsets, strict=True)
            ]
            contents = [self.engine.content(key) for key in keys]
            if copies is self.loads:
                assert all(map(np.array_equal, places, contents)), "other bytes"
                self.engine.manager.complete_load(keys, request.context)
                continue
            is_copied = self.random.random() < 0.9
            for place, content in zip(places, contents, strict=True):
                place[:] = content if is_copied else 0
            self.engine.manager.complete_store(keys, request.context, success=is_copied)

    def reset(self) -> None:
        """Forget everything. The scheduler lets copies end first and drops their reports."""
        self.stores.clear()
        self.loads.clear()
        self.engine.manager.reset_cache()

    def restart(self) -> None:
        """End the engine and begin another one."""
        self.finish()
        del self.engine
        self.start()

    def finish(self) -> None:
        """Let all copies and transfers end; no pin and no pending chunk is left."""
        self.may_go.set()
        for tier in self.engine.below:
            tier._patience = 60.0
        while self.stores or self.loads:
            self.end_copies(self.stores)
            self.end_copies(self.loads)
        deadline = time.monotonic() + 60
        manager = self.engine.manager
        while manager.has_pending_work() or manager._progress.is_void or manager.cache.num_pending:
            assert time.monotonic() < deadline, "transfers do not end"
            self.engine.end_step()
            time.sleep(0.001)
        manager.shutdown()
        assert manager.cache.num_pending == 0


def live(seed: int, folder: Path, num_steps: int) -> int:
    """Live a life; return how many hits it had."""
    life = Life(seed, folder)
    try:
        for _ in range(num_steps):
            life.step()
        life.finish()
    finally:
        life.may_go.set()
    return life.num_hits


@pytest.mark.parametrize("seed", range(3))
def test_a_short_life_serves_no_wrong_byte_and_leaves_no_pin(seed: int, tmp_path: Path) -> None:
    live(seed, tmp_path, 60)


@pytest.mark.full
def test_many_lives_serve_no_wrong_byte_and_leave_no_pin(tmp_path: Path) -> None:
    hits = [live(seed, tmp_path / str(seed), 400) for seed in range(3, 100)]
    assert sum(hits) > 1000
