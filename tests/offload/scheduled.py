"""Requests as vLLM's scheduler describes them to a manager, and a manager over two groups."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hybrid_blocks._core.offload import DiskStore, ObjectStore
from hybrid_blocks.offload.layout import Group, Groups, layout_versions
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import TierQueue
from hybrid_blocks.offload.tiers.rates import ComputeRate
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

ATTENTION, STATE = 0, 1
TOKENS = 16
BYTES = {ATTENTION: 4096, STATE: 8192}
GROUPS = Groups(
    all=(
        Group(number=ATTENTION, tokens=TOKENS, rank_bytes=BYTES[ATTENTION]),
        Group(number=STATE, tokens=TOKENS, rank_bytes=BYTES[STATE], window=1),
    ),
    num_ranks=1,
    tokens_per_hash=TOKENS,
)


class Request:
    """A request of ``num_chunks`` chunks of a chat."""

    def __init__(self, chat: str, num_chunks: int, number: int = 0) -> None:
        """Name all keys of the chat's first chunks, as the scheduler does before a look-up."""
        self.chat = chat
        self.context = ReqContext(req_id=f"{chat}-{number}")
        self.keys: dict[int, list[OffloadKey]] = {ATTENTION: [], STATE: []}
        for group, keys in self.keys.items():
            for at in range(num_chunks):
                key = make_offload_key(hashlib.sha256(f"{chat} {at}".encode()).digest(), group)
                keys.append(key)
                self.context.set_offload_key_position(key, (at + 1) * TOKENS)

    def add_boundary(self, group: int, num_tokens: int) -> OffloadKey:
        """Name a part of a block, as the scheduler does for ``--prefix-match-unit``."""
        digest = hashlib.sha256(f"{self.chat} to {num_tokens}".encode()).digest()
        key = make_offload_key(digest, group)
        self.context.set_offload_key_position(key, num_tokens)
        return key


class Engine:
    """A manager and the region's bytes; stores and loads copy at once."""

    def __init__(
        self,
        num_bytes: int,
        disk: DiskStore | None = None,
        objects: ObjectStore | None = None,
        *,
        tokens_per_hash: int = TOKENS,
        computing: ComputeRate | None = None,
        reopen: Callable[[str], TiersBelow] | None = None,
    ) -> None:
        """Manage ``num_bytes`` of host memory over a disk, a store of objects, both or none."""
        self.region: npt.NDArray[np.uint8] = np.zeros(num_bytes, dtype=np.uint8)
        self.below = self.over(disk, objects)
        groups = replace(GROUPS, tokens_per_hash=tokens_per_hash)
        own: Any = {"computing": computing, "reopen": reopen, "with_events": True}
        self.manager = HybridOffloadingManager(groups, num_bytes, below=self.below, **own)

    def over(self, disk: DiskStore | None = None, objects: ObjectStore | None = None) -> TiersBelow:
        """Return tiers over this engine's host memory."""
        sizes = [BYTES[ATTENTION], BYTES[STATE]]
        below = TiersBelow()
        if disk is not None:
            near: Any = {"source": CacheHitSource.DISK, "locality": Locality.LOCAL}
            below.disk = TierQueue(disk, self.region, sizes, name="disk", **near)
        if objects is not None:
            far: Any = {"source": CacheHitSource.EXTERNAL_UNSPECIFIED, "locality": Locality.REMOTE}
            below.objects = TierQueue(objects, self.region, sizes, name="objects", **far)
        return below

    def store(self, request: Request, keys: list[OffloadKey]) -> int:
        """Copy chunks down; return how many were taken."""
        output = self.manager.prepare_store(keys, request.context)
        if output is None:
            return 0
        assert isinstance(output.store_spec, HostLoadStoreSpec)
        for key, offset in zip(output.keys_to_store, output.store_spec.block_ids, strict=True):
            content = self.content(key)
            self.region[offset : offset + len(content)] = content
        self.manager.complete_store(set(output.keys_to_store), request.context)
        return len(output.keys_to_store)

    def load(self, request: Request, keys: list[OffloadKey]) -> None:
        """Load chunks and check their bytes."""
        spec = self.manager.prepare_load(keys, request.context)
        assert isinstance(spec, HostLoadStoreSpec)
        for key, offset in zip(keys, spec.block_ids, strict=True):
            content = self.content(key)
            assert (self.region[offset : offset + len(content)] == content).all()
        self.manager.complete_load(set(keys), request.context)

    def end_step(self, *new: Request) -> None:
        """End a scheduler step in which nothing was scheduled but these for the first time."""
        ids = [request.context.req_id for request in new]
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=ids, preempted_req_ids=()))

    @staticmethod
    def content(key: OffloadKey) -> npt.NDArray[np.uint8]:
        """Bytes that follow from the key, as many as its chunk has."""
        size = BYTES[int.from_bytes(key[-4:], "big")]
        return np.resize(np.frombuffer(hashlib.sha512(key).digest(), dtype=np.uint8), size)


def disk_at(path: str, max_bytes: int = 64 << 20, *, epoch: str = "") -> DiskStore:
    """A disk for the groups."""
    identity = {"model": "test", "epoch": epoch}
    return DiskStore(path, max_bytes, layouts=layout_versions(GROUPS, identity))


def objects_at(url: str, *, epoch: str = "") -> ObjectStore:
    """A store of objects for the groups, once it has been listed."""
    objects = ObjectStore(url, layouts=layout_versions(GROUPS, {"model": "test", "epoch": epoch}))
    assert objects.wait(60.0)
    return objects


def wanted(request: Request) -> list[OffloadKey]:
    """Return what vLLM asks for: attention from the first chunk, then the state of the last."""
    return [*request.keys[ATTENTION], request.keys[STATE][-1]]


def results(engine: Engine, request: Request, keys: list[OffloadKey]) -> list[LookupResult]:
    """Ask for each key."""
    return [engine.manager.lookup(key, request.context) for key in keys]


def until(what: str, is_so: Callable[[], bool], engine: Engine) -> None:
    """End steps until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what
        engine.end_step()
        time.sleep(0.001)


def settle(engine: Engine) -> None:
    """End steps until no transfer with a tier is under way."""
    until("transfers end", lambda: not engine.manager.has_pending_work(), engine)


def end(engine: Engine, request: Request) -> None:
    """Store attention and the last state of a request, and end it."""
    engine.store(request, wanted(request))
    engine.manager.on_request_finished(request.context)


def leave(engine: Engine, *requests: Request) -> None:
    """Store and end requests, let them arrive in the tiers below, and end the engine."""
    for request in requests:
        end(engine, request)
    settle(engine)
    engine.manager.shutdown()
