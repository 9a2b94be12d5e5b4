"""Offload over slabs with a worker that copies between its memory and a host's, cell by cell."""

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from hybrid_blocks.offload.layout import Group, Groups
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.slabs.config import drafters_of
from hybrid_blocks.offload.slabs.connector import SlabConnector
from hybrid_blocks.offload.slabs.scheduler import SlabScheduler
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from .fake_worker import FakeWorker
from .fake_worker_memory import STALE, Ids

CHUNK_BYTES = 4096


class HostConnector(SlabConnector):
    """The scheduler side alone, over ``host_chunks`` places for attention blocks."""

    def __init__(self, vllm_config: VllmConfig, role: Any, kv_cache_config: Any) -> None:
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        assert vllm_config.kv_transfer_config is not None
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        groups = _groups(kv_cache_config, drafters_of(vllm_config, kv_cache_config))
        manager = HybridOffloadingManager(groups, extra["host_chunks"] * CHUNK_BYTES)
        spec: Any = SimpleNamespace(
            get_manager=lambda: manager,
            offload_prompt_only=False,
            config=SimpleNamespace(
                cache=SimpleNamespace(tokens_per_hash=groups.tokens_per_hash),
                groups=[SimpleNamespace(group_id=group.number) for group in groups.all],
            ),
        )
        self.connector_worker = None
        self.connector_scheduler = SlabScheduler(  # type: ignore[assignment]
            spec, vllm_config, kv_cache_config, is_lazy=extra.get("store") == "lazy"
        )


def _groups(config: Any, drafters: Collection[int]) -> Groups:
    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    tokens = min(spec.block_size for spec in specs)
    windows = [
        1
        if isinstance(spec, MambaSpec)
        else -(-spec.sliding_window // tokens)
        if isinstance(spec, SlidingWindowSpec)
        else None
        for spec in specs
    ]
    groups = [
        Group(
            number=number,
            tokens=tokens,
            rank_bytes=CHUNK_BYTES * (5 if isinstance(spec, MambaSpec) else 1),
            window=window,
            is_drafter=number in drafters,
        )
        for number, (spec, window) in enumerate(zip(specs, windows, strict=True))
    ]
    return Groups(all=tuple(groups), num_ranks=1, tokens_per_hash=tokens)


def attach(
    config: VllmConfig, host_chunks: int, policy: str = "fail", store: str = "eager"
) -> None:
    """Give an engine the connector."""
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=HostConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy=policy,  # type: ignore[arg-type]
        kv_connector_extra_config={"host_chunks": host_chunks, "store": store},
    )


@dataclass
class Moving:
    """A transfer that ends in ``steps``."""

    number: int
    job: TransferJob
    is_store: bool
    steps: int


@dataclass
class Host:
    """Chunks by first byte, and how transfers go."""

    random: Random
    least_steps: int = 0
    most_steps: int = 3
    chunks: dict[int, Any] = field(default_factory=dict)
    moving: list[Moving] = field(default_factory=list)
    num_stored: int = 0
    num_loaded: int = 0


class HostWorker(FakeWorker):
    """Copies after the zeroing and the copies of a step, which is later than vLLM ever does."""

    host: Host

    def execute(self, output: SchedulerOutput) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Execute a step; say which transfers ended with it."""
        metadata: Any = output.kv_connector_metadata
        self._done: list[Moving] = []
        for it in self.host.moving:
            if it.number in (metadata.jobs_to_flush or ()):
                it.steps = 0
        self._loads = [self._begin(*it, is_store=False) for it in metadata.load_jobs.items()]
        result, drafts = super().execute(output)
        # A store is begun with the step after, by which what the step wrote is whole.
        self.host.moving += [self._begin(*it, is_store=True) for it in metadata.store_jobs.items()]
        if self._done:
            result.kv_connector_output = KVConnectorOutput(
                finished_recving={it.job.req_id for it in self._done if not it.is_store},
                kv_connector_worker_meta=OffloadingWorkerMetadata(
                    completed_jobs={it.number: 1 for it in self._done}
                ),
            )
        return result, drafts

    def _begin(self, number: int, job: TransferJob, *, is_store: bool) -> Moving:
        steps = self.host.random.randrange(self.host.least_steps, self.host.most_steps)
        return Moving(number, job, is_store, steps)

    def _copy(self, copies: Ids) -> None:
        super()._copy(copies)
        self.host.moving += self._loads
        for it in list(self.host.moving):
            if it.steps:
                it.steps -= 1
                continue
            self._move(it)
            self.host.moving.remove(it)
            self._done.append(it)

    def _move(self, it: Moving) -> None:
        device: Any = it.job.src_spec if it.is_store else it.job.dst_spec
        host: Any = it.job.dst_spec if it.is_store else it.job.src_spec
        groups = [number for number, size in enumerate(device.group_sizes) for _ in range(size)]
        for group, block, offset in zip(groups, device.block_ids, host.block_ids, strict=True):
            cells = self.memory._blocks(group, np.array([block]))[0]
            if it.is_store:
                self.host.chunks[int(offset)] = cells.copy()
                self.host.num_stored += 1
            else:
                cells[:] = self.host.chunks[int(offset)]
                self.host.num_loaded += 1


def forget(host: Host) -> None:
    """Overwrite what host memory holds, as a fault would."""
    for cells in host.chunks.values():
        cells[:] = STALE
