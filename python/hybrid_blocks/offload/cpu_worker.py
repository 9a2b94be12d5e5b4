"""Copies between the CPU engine's cache and the region."""

import time
from itertools import pairwise

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from hybrid_blocks.offload.chunk_copies import ChunkCopies
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.region import Region


class CpuWorker(OffloadingWorker):
    """Copies at once, on the thread that runs the model: what a step wrote is whole by then."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: Region, rank: int) -> None:
        """Copy between ``kv_caches`` and the share of ``rank`` in the region's chunks."""
        self._region = region
        self._copies = ChunkCopies(kv_caches, torch.from_numpy(region.bytes), rank)
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copy blocks into the region."""
        self._run(job_id, src_spec, dst_spec, is_store=True)
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        """Copy blocks out of the region."""
        del expedited  # every copy ends before this returns
        self._run(job_id, dst_spec, src_spec, is_store=False)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the copies that ended since this was last asked."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: no copy is under way."""

    def shutdown(self) -> None:
        """Let go of the region."""
        self._copies.close()
        self._region.cleanup()

    def _run(
        self, job_id: int, device: GPULoadStoreSpec, host: LoadStoreSpec, *, is_store: bool
    ) -> None:
        assert isinstance(host, HostLoadStoreSpec)
        assert len(device.block_ids) == len(host.block_ids)
        start = time.perf_counter()
        ends = np.cumsum([0, *device.group_sizes])
        num_bytes = 0
        copy = self._copies.store if is_store else self._copies.load
        for group, (first, last) in enumerate(pairwise(ends)):
            num_bytes += int(last - first) * self._copies.rank_bytes[group]
            copy(group, device.block_ids[first:last], host.block_ids[first:last])
        seconds = time.perf_counter() - start
        self._finished.append(
            TransferResult(
                job_id=job_id, success=True, transfer_size=num_bytes, transfer_time=seconds
            )
        )
