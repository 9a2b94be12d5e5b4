"""Region and workers: bytes go down and come up by rank, layer and block."""

import os
import uuid

import numpy as np
import pytest
import torch
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload.cpu_worker import CpuWorker
from hybrid_blocks.offload.gpu_worker import _Handler
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.offload.transfer import HostLoadStoreSpec
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

# Attention uses all of a page of the first of two tensors, a state 48 bytes of both.
HEADER = Header(rank_bytes=[64, 96], layout={"platform": "cpu"})


def caches(num_blocks: int) -> CanonicalKVCaches:
    tensors = [torch.randint(-128, 127, (num_blocks, 64), dtype=torch.int8) for _ in range(2)]
    return CanonicalKVCaches(
        tensors=[CanonicalKVCacheTensor(tensor, 64) for tensor in tensors],
        group_data_refs=[
            [CanonicalKVCacheRef(0, 64)],
            [CanonicalKVCacheRef(0, 48), CanonicalKVCacheRef(1, 48)],
        ],
    )


@pytest.fixture
def engine_id() -> str:
    return f"test/{uuid.uuid4()}"


def test_scheduler_and_workers_share_a_region_that_has_no_name_afterwards(engine_id: str) -> None:
    rank0 = Region.create(engine_id, 1 << 20, 0, HEADER)
    rank1 = Region.create(engine_id, 1 << 20, 1, HEADER)
    scheduler = Region.join(engine_id, 1 << 20, num_ranks=2)
    assert scheduler.header() == HEADER
    rank1.bytes[-1] = 7
    assert (rank0.bytes[-1], scheduler.bytes[-1]) == (7, 7)
    with pytest.raises(HybridBlocksError, match="no worker of engine"):
        Region.join(engine_id, 1 << 20, num_ranks=2)


def test_workers_on_another_machine_are_refused(engine_id: str) -> None:
    """Their regions are files of their own."""
    here = [Region.create(engine_id, 1 << 20, rank, HEADER) for rank in (0, 2)]
    with pytest.raises(InvalidArgumentError, match=r"ranks 1, 3 of 4 .* one machine"):
        Region.join(engine_id, 1 << 20, num_ranks=4)
    with pytest.raises(HybridBlocksError, match="no worker of engine"):
        Region.join(engine_id, 1 << 20, num_ranks=4)
    assert len(here) == 2


def test_a_region_that_does_not_fit_says_how_much_is_free(engine_id: str) -> None:
    free = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    with pytest.raises(
        InvalidArgumentError, match=r"does not fit into /dev/shm, which has .* free"
    ):
        Region.create(engine_id, free * 2, 0, HEADER)
    with pytest.raises(HybridBlocksError):
        Region.join(engine_id, 1 << 20, num_ranks=2)


def test_ranks_store_and_load_their_shares(engine_id: str) -> None:
    slots = {0: [0, 4096], 1: [8192]}
    device = GPULoadStoreSpec([1, 3, 2], group_sizes=[2, 1], block_indices=[0, 1])
    host = HostLoadStoreSpec([*slots[0], *slots[1]])
    workers = []
    for rank in range(2):
        kv_caches = caches(8)
        region = Region.create(engine_id, 1 << 20, rank, HEADER)
        worker = CpuWorker(kv_caches, region, rank)
        workers.append(worker)
        before = [it.tensor.clone() for it in kv_caches.tensors]
        worker.submit_store(1, device, host)
        stored = region.bytes[4096 + rank * 64 : 4096 + rank * 64 + 64]
        assert (stored.view(np.int8) == before[0][3].numpy()).all()
        for it in kv_caches.tensors:
            it.tensor.zero_()
        # They come up in other blocks.
        up = GPULoadStoreSpec([5, 6, 7], group_sizes=[2, 1], block_indices=[0, 1])
        worker.submit_load(2, host, up)
        assert (kv_caches.tensors[0].tensor[5:7] == before[0][[1, 3]]).all()
        for tensor, old in zip(kv_caches.tensors, before, strict=True):
            assert (tensor.tensor[7, :48] == old[2, :48]).all()
            assert (tensor.tensor[7, 48:] == 0).all()
        results = worker.get_finished()
        assert [(it.job_id, it.success, it.transfer_size) for it in results] == [
            (1, True, 2 * 64 + 96),
            (2, True, 2 * 64 + 96),
        ]
        assert worker.get_finished() == []
    Region.join(engine_id, 1 << 20, num_ranks=2)


def test_a_gpu_copies_between_the_same_bytes() -> None:
    """The addresses that the GPU's handler fills are those that the CPU's worker copies."""
    handler = object.__new__(_Handler)
    kv_caches = caches(8)
    handler.layer_refs_per_group = kv_caches.group_data_refs
    handler.gpu_to_cpu = True
    handler.src_tensors = [it.tensor for it in kv_caches.tensors]
    handler._base, handler._rank = 1 << 32, 1
    src, dst, sizes = (np.zeros(8, dtype=np.int64) for _ in range(3))
    blocks, offsets = np.array([2, 3], dtype=np.int32), np.array([8192, 4096])
    end, num_bytes = handler._fill_natural_ops(1, blocks, offsets, 2, 0, 0, src, dst, sizes, 1)
    assert (end, num_bytes) == (5, 2 * 96)
    first, second = (it.tensor.data_ptr() for it in kv_caches.tensors)
    assert src[1:5].tolist() == [first + 128, first + 192, second + 128, second + 192]
    start = (1 << 32) + 96
    expected = [start + 8192, start + 4096, start + 8192 + 48, start + 4096 + 48]
    assert dst[1:5].tolist() == expected
    assert sizes.tolist() == [0, 48, 48, 48, 48, 0, 0, 0]
