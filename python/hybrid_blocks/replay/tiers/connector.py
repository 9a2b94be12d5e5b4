"""vLLM's ``OffloadingConnector`` over tiers that a replay made."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec, MambaSpec
from vllm.v1.outputs import KVConnectorOutput

from hybrid_blocks.offload.slabs.config import offloading_config
from hybrid_blocks.offload.slabs.connector import SlabConnector
from hybrid_blocks.replay.tiers.worker import InstantWorker

if TYPE_CHECKING:
    from hybrid_blocks.replay.tiers.below import Below

MAKE = "hybrid_blocks_make"
"""The option that has the function which makes the tiers."""


class TiersConnector(OffloadingConnector):
    """vLLM's scheduler side over given tiers, and its worker side over copies that take no time.

    Attributes:
        below: the tiers.

    """

    _read_config = staticmethod(build_offloading_config)

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        config = self._read_config(vllm_config, kv_cache_config)
        make = config.extra_config[MAKE]
        config = replace(config, extra_config={})
        self.below: Below = make(config, [_rank_bytes(kv_cache_config, it) for it in config.groups])
        spec = self.below.spec
        self.connector_scheduler = self.below.scheduler(spec, vllm_config, kv_cache_config)
        worker = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)
        worker.worker = InstantWorker()
        self.connector_worker = worker
        self._canonical_layout = False

    def run(self, scheduled: SchedulerOutput) -> KVConnectorOutput:
        """Do what a worker does for a step, in its order."""
        worker, metadata = self.connector_worker, scheduled.kv_connector_metadata
        assert worker is not None
        assert isinstance(metadata, OffloadingConnectorMetadata)
        worker.handle_preemptions(metadata)
        worker.start_kv_transfers(metadata)
        worker.prepare_store_kv(metadata)
        _, received = worker.get_finished(scheduled.finished_req_ids)
        return KVConnectorOutput(
            finished_recving=received,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )


class SlabTiersConnector(SlabConnector, TiersConnector):
    """The scheduler side of level ``natural`` over given tiers."""

    _read_config = staticmethod(offloading_config)


def _rank_bytes(kv_cache_config: KVCacheConfig, group: Any) -> int:
    """Bytes of a block as workers name them to ``HybridOffloadingSpec``: without padding."""
    spec = kv_cache_config.kv_cache_groups[group.group_id].kv_cache_spec
    return _unpadded(spec) * len(group.layer_names)


def _unpadded(spec: KVCacheSpec) -> int:
    if isinstance(spec, MambaSpec):
        return int(replace(spec, page_size_padded=None).page_size_bytes)
    assert isinstance(spec, AttentionSpec)
    return int(spec.unpadded_page_size_bytes)
