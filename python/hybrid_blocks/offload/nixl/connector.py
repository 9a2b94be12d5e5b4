"""vLLM's ``NixlConnector`` of pulls, with both sides from here where blocks lie in slabs."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import (
    NixlBaseConnector,
    NixlPullConnector,
)

from hybrid_blocks.offload.nixl.scheduler import HybridNixlScheduler, SlabNixlScheduler
from hybrid_blocks.offload.nixl.worker import HybridNixlWorker, SlabNixlWorker
from hybrid_blocks.offload.slabs.config import is_slabbed

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class HybridNixlConnector(NixlPullConnector):
    """Serves engines at level ``natural`` too. It checks what requests name at all levels."""

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        NixlBaseConnector.__init__(self, vllm_config, role, kv_cache_config)
        self._is_in_slabs = is_slabbed(kv_cache_config)
        arguments: Any = (vllm_config, self.engine_id, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            scheduler = SlabNixlScheduler if self._is_in_slabs else HybridNixlScheduler
            self.connector_scheduler = scheduler(*arguments)
        else:
            worker = SlabNixlWorker if self._is_in_slabs else HybridNixlWorker
            self.connector_worker = worker(*arguments)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether a hit may be longer in some groups. Over slabs all groups end at one place."""
        return not self._is_in_slabs and super().supports_divergent_local_hybrid_hits

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Show what waits for its reader beside the figures of the blocks."""
        super().bind_kv_cache_manager(kv_cache_manager)
        if isinstance(self.connector_scheduler, SlabNixlScheduler):
            self.connector_scheduler.bind(kv_cache_manager)

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return what the scheduler side has to know of reads that did not end in time."""
        worker = self.connector_worker
        return worker.take_stalled() if isinstance(worker, SlabNixlWorker) else None
