"""vLLM's ``OffloadingConnector`` over slabs, with both sides from here."""

import functools
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import get_offloading_group_ids
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.slabs.config import drafters_of, is_slabbed, offloading_config
from hybrid_blocks.offload.slabs.rows import rows_of
from hybrid_blocks.offload.slabs.scheduler import SlabScheduler

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.request import Request

_vllm_init = OffloadingConnector.__init__


class SlabWorker(OffloadingConnectorWorker):
    """vLLM's worker side: the same copies, from and to rows that lie a slab's run apart.

    Each layer has rows of its own, one for each id of its group.
    """

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Note where the blocks of each layer lie."""
        config: Any = self.kv_cache_config
        groups = tuple(get_offloading_group_ids(config))
        tensors: list[CanonicalKVCacheTensor] = []
        refs: dict[int, list[CanonicalKVCacheRef]] = {number: [] for number in groups}
        for layer in rows_of(config, groups, kv_caches):
            refs[layer.group].append(CanonicalKVCacheRef(len(tensors), layer.page))
            tensors.append(CanonicalKVCacheTensor(layer.rows, layer.page))
        self._init_worker(CanonicalKVCaches(tensors, list(refs.values())))


class SlabConnector(OffloadingConnector):
    """The class of an `OffloadingConnector` where the engine's blocks lie in slabs."""

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Let the scheduler side work on the blocks."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._side.bind(kv_cache_manager)

    @property
    def _side(self) -> SlabScheduler:
        side: Any = self.connector_scheduler
        assert isinstance(side, SlabScheduler)
        return side

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return the tokens to load behind those that the device has."""
        self._num_local = num_computed_tokens
        return self._side.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: Any, num_external_tokens: int
    ) -> None:
        """Begin to load. vLLM asks of a request right before."""
        self._side.update_state_after_alloc(request, blocks, num_external_tokens, self._num_local)

    def get_external_cache_hit_sources(
        self, request: "Request", num_external_tokens: int
    ) -> "dict[CacheHitSource, int]":
        """Say which tier the tokens come from."""
        return self._side.sources_of(request, self._num_local, num_external_tokens)

    def has_pending_push_work(self) -> bool:
        """Whether steps must go on although no request runs."""
        return self._side.has_pending_work


# The check of vLLM's names unwraps this function and reads them in vLLM's own method.
@functools.wraps(_vllm_init)
def _init(
    self: Any, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
) -> None:
    if is_slabbed(kv_cache_config):
        config = offloading_config(vllm_config, kv_cache_config)
        over_slabs(self, vllm_config, role, kv_cache_config, config)
    else:
        _vllm_init(self, vllm_config, role, kv_cache_config)


def over_slabs(
    self: Any,
    vllm_config: "VllmConfig",
    role: KVConnectorRole,
    kv_cache_config: "KVCacheConfig",
    config: "OffloadingConfig",
    *,
    is_lazy: bool = False,
) -> None:
    """Make one side of a connector of blocks in slabs."""
    self.__class__ = SlabConnector
    KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
    spec_class = OffloadingSpecFactory.get_spec_cls(config.extra_config)
    if spec_class.__name__ != "HybridOffloadingSpec":
        raise InvalidArgumentError(
            f"{spec_class.__name__} at level natural, which needs HybridOffloadingSpec; set "
            "HYBRID_BLOCKS=manager"
        )
    spec: Any = spec_class(config)
    spec.drafters = drafters_of(vllm_config, kv_cache_config)
    self._canonical_layout = config.canonical_layout
    self.connector_scheduler = self.connector_worker = None
    if role is KVConnectorRole.SCHEDULER:
        self.connector_scheduler = SlabScheduler(
            spec, vllm_config, kv_cache_config, is_lazy=is_lazy
        )
    else:
        self.connector_worker = SlabWorker(spec, vllm_config, kv_cache_config)


def install() -> type[OffloadingConnector]:
    """Let `OffloadingConnector` serve engines whose blocks lie in slabs; return it."""
    OffloadingConnector.__init__ = _init  # type: ignore[method-assign]
    return OffloadingConnector


def uninstall() -> None:
    """Let `OffloadingConnector` be vLLM's alone."""
    OffloadingConnector.__init__ = _vllm_init  # type: ignore[method-assign]
