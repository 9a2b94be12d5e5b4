"""vLLM's ``OffloadingConnector`` with this spec, and a choice of when chunks are stored."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import OffloadingSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.lazy_stores import LazyScheduler
from hybrid_blocks.offload.options import STORE, read_store
from hybrid_blocks.offload.slabs.config import is_slabbed, offloading_config
from hybrid_blocks.offload.slabs.connector import over_slabs

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.config import OffloadingConfig


class HybridOffloadingConnector(OffloadingConnector):
    """Has one option more than the spec: ``store``, ``eager`` or ``lazy``.

    Eager stores a chunk in the step that completes it, lazy when its request pauses.
    """

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        in_slabs = is_slabbed(kv_cache_config)
        read = offloading_config if in_slabs else build_offloading_config
        config = read(vllm_config, kv_cache_config)
        options: dict[str, Any] = dict(config.extra_config)
        is_lazy = read_store(options.pop(STORE, "eager")) == "lazy"
        config = replace(config, extra_config=options)
        if in_slabs:
            over_slabs(self, vllm_config, role, kv_cache_config, config, is_lazy=is_lazy)
            return
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        spec = _spec(config)
        self._canonical_layout = config.canonical_layout
        self.connector_scheduler = None
        self.connector_worker = None
        if role is KVConnectorRole.SCHEDULER:
            make = LazyScheduler if is_lazy else OffloadingConnectorScheduler
            self.connector_scheduler = make(spec, vllm_config, kv_cache_config)
        else:
            self.connector_worker = OffloadingConnectorWorker(spec, vllm_config, kv_cache_config)


def _spec(config: "OffloadingConfig") -> OffloadingSpec:
    # vLLM finds the metrics by the name of the spec, so that it must be given here too.
    spec_cls = OffloadingSpecFactory.get_spec_cls(config.extra_config)
    if spec_cls.__name__ != "HybridOffloadingSpec":
        raise InvalidArgumentError(
            f"HybridOffloadingConnector with {spec_cls.__name__}; write "
            '"spec_name": "HybridOffloadingSpec", "spec_module_path": "hybrid_blocks.offload"'
        )
    return spec_cls(config)
