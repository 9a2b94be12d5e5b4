"""Copies between the CPU engine's cache and the region."""

import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from hybrid_blocks.offload.region import Region
from hybrid_blocks.offload.transfer import HostLoadStoreSpec


class CpuWorker(OffloadingWorker):
    """Copies at once, on the thread that runs the model: what a step wrote is whole by then."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: Region, rank: int) -> None:
        """Copy between ``kv_caches`` and the share of ``rank`` in the region's chunks."""
        tensors = [tensor.tensor for tensor in kv_caches.tensors]
        pages = [tensor.view(torch.int8).numpy().view(np.uint8) for tensor in tensors]
        self._region = region
        # By group: rows of blocks, as wide as the bytes that a block has in a layer.
        self._layers: list[list[npt.NDArray[np.uint8]]] = [
            [pages[ref.tensor_idx][:, : ref.page_size_bytes] for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        self._rank_bytes = [sum(layer.shape[1] for layer in layers) for layers in self._layers]
        self._rank = rank
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
        self._layers.clear()
        self._region.cleanup()

    def _run(
        self, job_id: int, device: GPULoadStoreSpec, host: LoadStoreSpec, *, is_store: bool
    ) -> None:
        assert isinstance(host, HostLoadStoreSpec)
        assert len(device.block_ids) == len(host.block_ids)
        start = time.perf_counter()
        ends = np.cumsum([0, *device.group_sizes])
        num_bytes = 0
        for group, (first, last) in enumerate(pairwise(ends)):
            chunks = host.block_ids[first:last] + self._rank * self._rank_bytes[group]
            num_bytes += len(chunks) * self._rank_bytes[group]
            for block, offset in zip(device.block_ids[first:last], chunks, strict=True):
                self._copy(group, block, int(offset), is_store=is_store)
        seconds = time.perf_counter() - start
        self._finished.append(
            TransferResult(
                job_id=job_id, success=True, transfer_size=num_bytes, transfer_time=seconds
            )
        )

    def _copy(self, group: int, block: int, offset: int, *, is_store: bool) -> None:
        for layer in self._layers[group]:
            row = layer[block]
            share = self._region.bytes[offset : offset + len(row)]
            if is_store:
                share[:] = row
            else:
                row[:] = share
            offset += len(row)
