"""This package's spec and manager under the names of vLLM's, for tests that construct those."""

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, wraps
from typing import Any, ClassVar, TypeVar

from hybrid_blocks.offload.groups import Group, Groups
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.offload.replacement import replace_spec
from hybrid_blocks.offload.spec import HybridOffloadingSpec
from hybrid_blocks.offload.transfer import HostLoadStoreSpec
from hybrid_blocks.offload.workers import Workers
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)
from vllm.v1.kv_offload.base import (
    ConfigInfoMapping,
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu import manager as cpu_manager
from vllm.v1.kv_offload.cpu import spec as cpu_spec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering import spec as tiering_spec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

T = TypeVar("T")

_CHUNK_BYTES = 4096
_FEWEST_CHUNKS = 2
_TOKENS = 16
# Groups that tests without a configuration name keys of.
_NUM_GROUPS = 2
_DISK_SIZE = "64MiB"


class Reached:
    """Whether this package's offload was used since `clear`."""

    def __init__(self) -> None:
        """Note each manager and spec that is made, and each question for the spec's metrics."""
        self.it = False
        for cls in (HybridOffloadingManager, HybridOffloadingSpec):
            cls.__init__ = self._noting(cls.__init__)  # type: ignore[method-assign]
        definitions = HybridOffloadingSpec.build_metric_definitions.__func__  # type: ignore[attr-defined]
        noting = classmethod(self._noting(definitions))
        HybridOffloadingSpec.build_metric_definitions = noting  # type: ignore[assignment, method-assign]

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self.it = True
            return function(*args, **kwargs)

        return noting

    def clear(self) -> None:
        """Forget that earlier tests reached the offload."""
        self.it = False


@cache
def _name(key: bytes) -> OffloadKey:
    """A key with a digest of 32 bytes: tests make keys of short texts."""
    return OffloadKey(hashlib.sha256(key[:-4]).digest() + key[-4:])


class _Context(ReqContext):
    """A request's context that knows its keys by their long names."""

    def __init__(self, context: ReqContext, keys: dict[OffloadKey, OffloadKey]) -> None:
        super().__init__(
            context.req_id,
            context.kv_transfer_params,
            context.kv_hints,
            context.load_tier_filter,
        )
        self._context = context
        self._keys = keys
        positions = context._offload_key_positions.items()
        self._offload_key_positions = {_name(key): position for key, position in positions}

    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        return self._context.get_offload_key_position(self._keys[key])


class CpuManager(OffloadingManager):
    """`HybridOffloadingManager` behind the constructor of vLLM's `CPUOffloadingManager`.

    Chunks are numbered by their place in the region. Keys of short texts get long names. A context
    without positions names no prefix, so each store with one is a request of its own.
    """

    medium = Medium.CPU

    def __init__(  # noqa: PLR0917 - vLLM's signature
        self,
        num_chunks: int,
        cache_policy: str = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        info: Any = None,
    ) -> None:
        """Manage ``num_chunks``, two at least; the other settings choose vLLM's policies."""
        del cache_policy, cache_policy_module_path, store_threshold, max_tracker_size, info
        self._num_chunks = max(num_chunks, _FEWEST_CHUNKS)
        self._with_events = enable_events
        self._num_unrelated = 0
        self._keys: dict[OffloadKey, OffloadKey] = {}
        self._use(
            Groups(
                all=tuple(
                    Group(number=number, tokens=_TOKENS, rank_bytes=_CHUNK_BYTES)
                    for number in range(_NUM_GROUPS)
                ),
                num_ranks=1,
                tokens_per_hash=_TOKENS,
            )
        )

    def _use(self, groups: Groups) -> None:
        self._inner = HybridOffloadingManager(
            groups, self._num_chunks * _CHUNK_BYTES, with_events=self._with_events
        )

    def tell(self, config: Any) -> None:
        """Take a model's groups from the connector that uses the manager."""
        self._use(
            Groups(
                all=tuple(
                    Group(
                        number=group.group_idx,
                        tokens=group.tokens_per_chunk,
                        rank_bytes=_CHUNK_BYTES,
                        window=group.sliding_window_size_in_chunks,
                    )
                    for group in config.kv_group_configs
                ),
                num_ranks=1,
                tokens_per_hash=config.tokens_per_hash,
            )
        )

    def _names(self, keys: Iterable[OffloadKey]) -> list[OffloadKey]:
        keys = list(keys)
        self._keys.update((_name(key), key) for key in keys)
        return list(map(_name, keys))

    def _context(self, context: ReqContext) -> _Context:
        self._names(context._offload_key_positions)
        return _Context(context, self._keys)

    @staticmethod
    def _numbers(spec: LoadStoreSpec) -> CPULoadStoreSpec:
        assert isinstance(spec, HostLoadStoreSpec)
        return CPULoadStoreSpec((spec.block_ids // _CHUNK_BYTES).tolist())

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        (name,) = self._names([key])
        return self._inner.lookup(name, self._context(req_context))

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        (name,) = self._names([key])
        return self._inner.get_load_source(name, self._context(req_context))

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self._numbers(
            self._inner.prepare_load(self._names(keys), self._context(req_context))
        )

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._inner.complete_load(self._names(keys), self._context(req_context))

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self._inner.touch(self._names(keys), self._context(req_context))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        context: ReqContext = self._context(req_context)
        if is_unrelated := not context._offload_key_positions:
            self._num_unrelated += 1
            context = ReqContext(f"unrelated {self._num_unrelated}")
        output = self._inner.prepare_store(self._names(keys), context)
        if is_unrelated:
            self._inner.on_request_finished(context)
        if output is None:
            return None
        return PrepareStoreOutput(
            keys_to_store=[self._keys[key] for key in output.keys_to_store],
            store_spec=self._numbers(output.store_spec),
            evicted_keys=[self._keys[key] for key in output.evicted_keys],
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self._inner.complete_store(self._names(keys), self._context(req_context), success)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return self._inner.on_new_request(self._context(req_context))

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._inner.on_request_finished(self._context(req_context))

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._inner.on_schedule_end(context)

    def has_pending_work(self) -> bool:
        return self._inner.has_pending_work()

    def reset_cache(self) -> None:
        self._inner.reset_cache()

    def on_reset_flushed(self) -> None:
        self._inner.on_reset_flushed()

    def take_events(self) -> Iterable[OffloadingEvent]:
        for event in self._inner.take_events():
            yield replace(event, keys=[self._keys[key] for key in event.keys])

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._inner.get_stats()

    def config_info(self) -> Sequence[ConfigInfoMapping]:
        return self._inner.config_info()

    def shutdown(self) -> None:
        self._inner.shutdown()


class CpuSpec(HybridOffloadingSpec):
    """The spec under the name of `CPUOffloadingSpec`; tests make no workers, so it has a region."""

    def get_manager(self) -> OffloadingManager:
        if self._manager is not None:
            return self._manager
        # The configuration has the bytes of a block, and not how they divide between groups.
        rank_bytes = [max(1, self.config.worker_kv_bytes_per_block)] * len(self.config.groups)
        regions = [
            Region.create(
                self.config.engine_id,
                self._options.host_bytes,
                rank,
                Header(rank_bytes=rank_bytes, layout={}),
            )
            for rank in range(self.config.parallel.world_size)
        ]
        manager = super().get_manager()
        for region in regions:
            region.cleanup()
        return manager


class _AtOnce(Workers):
    """Transfers that end before they are waited for, as those of vLLM's example tier do."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        job = super().submit(call)
        job.exception()
        return job


class TieringSpec(CpuSpec):
    """The spec under the name of `TieringOffloadingSpec`: what lies below is a disk."""

    _folders: ClassVar[list[tempfile.TemporaryDirectory[str]]] = []

    def __init__(self, config: OffloadingConfig) -> None:
        extra = dict(config.extra_config)
        if extra.pop("secondary_tiers", None):
            self._folders.append(tempfile.TemporaryDirectory(prefix="rig-"))
            extra["disk"] = f"{self._folders[-1].name}:{_DISK_SIZE}"
        super().__init__(replace(config, extra_config=extra))

    def get_manager(self) -> OffloadingManager:
        manager = super().get_manager()
        assert isinstance(manager, HybridOffloadingManager)
        for tier in manager._below:
            tier._readers = tier._writers = _AtOnce(1, "at-once")
        return manager


def _tell_managers() -> None:
    """Let a `CpuManager` know the groups of the connector that it is given to."""

    def get(scheduler: Any) -> Any:
        return scheduler.__dict__["manager"]

    def put(scheduler: Any, manager: Any) -> None:
        scheduler.__dict__["manager"] = manager
        if isinstance(manager, CpuManager):
            manager.tell(scheduler.config)

    OffloadingConnectorScheduler.manager = property(get, put)  # type: ignore[assignment]


def swap() -> Reached:
    """Put this package's classes in place of vLLM's; vLLM's own that derive from those stay."""
    replace_spec()
    cpu_manager.CPUOffloadingManager = CpuManager  # type: ignore[misc, assignment]
    cpu_spec.CPUOffloadingSpec = CpuSpec  # type: ignore[misc, assignment]
    tiering_spec.TieringOffloadingSpec = TieringSpec  # type: ignore[misc, assignment]
    OffloadingSpecFactory._registry["CPUOffloadingSpec"] = lambda: CpuSpec
    OffloadingSpecFactory._registry["TieringOffloadingSpec"] = lambda: TieringSpec
    _tell_managers()
    return Reached()
