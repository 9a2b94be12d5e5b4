"""``HybridOffloadingSpec`` without bytes of host memory, and with a scaled disk."""

import tempfile
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import Locality, OffloadingManager
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.offload.groups import Groups, group_number, groups_of, layout_versions
from hybrid_blocks.offload.host import ABSENT
from hybrid_blocks.offload.lazy import LazyScheduler
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.slabs.scheduler import SlabScheduler
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.offload.tier_queue import Chunks, TierQueue
from hybrid_blocks.offload.tiers_below import TiersBelow
from hybrid_blocks.replay.tiers.below import Below, watch
from hybrid_blocks.replay.tiers.ledger import Ledger
from hybrid_blocks.replay.tiers.side import Side
from hybrid_blocks.replay.tiers.sizes import Scale, TierBytes

_SCHEDULERS: dict[Side, type[Any]] = {
    Side.NATURAL: SlabScheduler,
    Side.HYBRID: OffloadingConnectorScheduler,
    Side.LAZY: LazyScheduler,
}
"""The scheduler side of the connector that offers chunks."""


class ScaledQueue(TierQueue[DiskStore]):
    """Transfers with a scaled disk, done at once. Their bytes do not matter."""

    def __init__(
        self, store: DiskStore, chunk_bytes: list[int], scale: Scale, ledger: Ledger
    ) -> None:
        super().__init__(
            store,
            np.zeros(0, dtype=np.uint8),
            chunk_bytes,
            name="disk",
            source=CacheHitSource.DISK,
            locality=Locality.LOCAL,
        )
        self._scale = scale
        self._ledger = ledger

    def _begin(self, chunks: Chunks, *, is_read: bool) -> None:
        job: Future[list[bool]] = Future()
        job.set_result(self._read(chunks) if is_read else self._write(chunks))
        self._jobs[job] = (chunks, is_read)
        if is_read:
            self._ledger.promote(chunks.keys)

    def _write(self, chunks: Chunks) -> list[bool]:
        before = self.store.contains(chunks.keys)
        done = super()._write(chunks)
        after = self.store.contains(chunks.keys)
        new = [key for key, was, is_ in zip(chunks.keys, before, after, strict=True) if is_ > was]
        self._ledger.write(new)
        self._ledger.disk_refused_chunks += after.count(False)
        return done

    def _load_plain(self, chunks: Chunks) -> list[bool]:
        return self.store.load(chunks.keys, self._views(chunks))

    def _store_plain(self, chunks: Chunks) -> None:
        self.store.store(chunks.keys, chunks.tokens, self._views(chunks))

    def _views(self, chunks: Chunks) -> list[npt.NDArray[np.uint8]]:
        sizes = (self._scale.chunk(self.size(key)) for key in chunks.keys)
        return [np.zeros(size, dtype=np.uint8) for size in sizes]


class _Spec(HybridOffloadingSpec):
    """Hands out a manager that was made without workers."""

    def __init__(self, config: OffloadingConfig, rank_bytes: list[int]) -> None:
        super().__init__(config)
        self.groups = groups_of(config, rank_bytes)
        self.made: HybridOffloadingManager | None = None

    def get_manager(self) -> OffloadingManager:
        assert self.made is not None
        return self.made


def make_hybrid(
    config: OffloadingConfig, rank_bytes: list[int], tiers: TierBytes, side: Side
) -> Below:
    """Make the manager of this project over tiers of these sizes."""
    spec = _Spec(replace(config, extra_config={"host": tiers.host}), rank_bytes)
    groups = spec.groups
    sizes = [groups.chunk_bytes(group) if group else 0 for group in groups.by_number()]

    def size(key: bytes) -> int:
        return sizes[group_number(key)]

    ledger = Ledger(host_bytes=size, disk_bytes=size)
    folder = tempfile.TemporaryDirectory(prefix="hybrid-blocks-replay-")
    below = TiersBelow()
    if tiers.disk:
        below.disk = ScaledQueue(*_disk(folder.name, tiers.disk, groups, sizes), ledger)
    manager = HybridOffloadingManager(groups, tiers.host, below=below)
    spec.made = manager
    _watch_evictions(manager, ledger)
    store = below.disk.store if below.disk else None

    def close() -> None:
        below.close()
        folder.cleanup()

    return Below(
        spec=spec,
        manager=manager,
        groups=groups,
        ledger=ledger,
        finished=watch(manager, ledger),
        is_on_host=lambda key: manager.cache.presence(key) != ABSENT,
        on_disk=lambda keys: store.contains(keys) if store else [False] * len(keys),
        close=close,
        scheduler=_SCHEDULERS[side],
    )


def _disk(
    folder: str, num_bytes: int, groups: Groups, sizes: list[int]
) -> tuple[DiskStore, list[int], Scale]:
    scale = Scale.of(sizes)
    store = DiskStore(
        folder,
        scale.disk(num_bytes),
        layouts=layout_versions(groups, {"replay": True}),
        segment_bytes=scale.segment(num_bytes, max(sizes)),
    )
    return store, sizes, scale


def _watch_evictions(manager: HybridOffloadingManager, ledger: Ledger) -> None:
    """Note evictions by promotions too; the scheduler does not see them."""
    host = manager._host
    begin_store = host.begin_store

    def begin(*arguments: Any) -> Any:
        begun, evicted = begin_store(*arguments)
        ledger.evict(evicted)
        return begun, evicted

    host.begin_store = begin  # type: ignore[method-assign, assignment]
