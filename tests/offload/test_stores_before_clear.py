"""A store reads its block before vLLM's second runner zeroes the block for another request."""

import importlib
import uuid
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_blocks.offload import stores_before_clear
from hybrid_blocks.offload.cpu_worker import CpuWorker
from hybrid_blocks.offload.manager.host import HostLoadStoreSpec
from hybrid_blocks.offload.region import Header, Region
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

BLOCK, PAGE = 3, 64


@pytest.fixture
def runner_cls(monkeypatch: pytest.MonkeyPatch) -> Any:
    cls = importlib.import_module(stores_before_clear.MODULE).GPUModelRunner
    monkeypatch.setattr(cls, "update_requests", cls.update_requests)  # taken back afterwards
    return cls


def step(runner_cls: Any, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return what a store of the step before wrote, in a step that zeroes the stored block."""
    pages = torch.full((8, PAGE), 7, dtype=torch.int8)
    caches = CanonicalKVCaches(
        tensors=[CanonicalKVCacheTensor(pages, PAGE)],
        group_data_refs=[[CanonicalKVCacheRef(0, PAGE)]],
    )
    header = Header(rank_bytes=[PAGE], layout={})
    region = Region.create(f"test/{uuid.uuid4()}", 1 << 16, 0, header)
    connector = object.__new__(OffloadingConnectorWorker)
    connector.worker = CpuWorker(caches, region, 0)
    store = GPULoadStoreSpec([BLOCK], group_sizes=[1], block_indices=[0])
    connector._unsubmitted_store_jobs = [(0, store, HostLoadStoreSpec([0]))]
    monkeypatch.setattr(stores_before_clear, "get_kv_transfer_group", lambda: connector)
    runner = SimpleNamespace(
        kv_block_zeroer=SimpleNamespace(zero_block_ids=lambda ids: pages.__setitem__(ids, 0)),
        req_states=SimpleNamespace(
            req_id_to_index={},
            num_computed_tokens_np=np.zeros(1, np.int32),
            num_computed_prefill_tokens=np.zeros(1, np.int32),
            prefill_len=SimpleNamespace(np=np.zeros(1, np.int32)),
        ),
    )
    output = SimpleNamespace(
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[], new_block_ids=[]),
        new_block_ids_to_zero=[BLOCK],
        kv_cache_block_copies=None,
        kv_connector_metadata=OffloadingConnectorMetadata(
            load_jobs={}, store_jobs={}, jobs_to_flush={0}
        ),
    )
    runner_cls.update_requests(runner, output)
    connector.handle_preemptions(output.kv_connector_metadata)  # the runner's own call
    assert not pages[BLOCK].any()
    stored = bytes(region.bytes[:PAGE])
    region.cleanup()
    return stored


def test_the_second_runner_stores_zeros(runner_cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a release mends this, the replaced function can go."""
    assert step(runner_cls, monkeypatch) == bytes(PAGE)


def test_a_store_ends_before_the_zeroing(runner_cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stores_before_clear.end_stores_first()
    replaced = runner_cls.update_requests
    stores_before_clear.end_stores_first()
    assert runner_cls.update_requests is replaced
    assert step(runner_cls, monkeypatch) == bytes([7]) * PAGE
