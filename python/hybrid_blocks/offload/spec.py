"""The spec that vLLM's OffloadingConnector loads by name."""

from functools import partial
from typing import Any, Final

import vllm
from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    Locality,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks._core.offload import DiskStore, ObjectStore
from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.offload import check_release
from hybrid_blocks.offload.identity import identity_of, machine
from hybrid_blocks.offload.identity.adapters import hold_content
from hybrid_blocks.offload.identity.canonical import UnwritableError
from hybrid_blocks.offload.layout import Groups, groups_of, layout_versions
from hybrid_blocks.offload.layout.structure import structure_of
from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.manager.metrics import HostInfo, definitions
from hybrid_blocks.offload.options import DiskOptions, Options
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.offload.stores_before_clear import end_stores_first
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.codec import Codec
from hybrid_blocks.offload.tiers.queue import TierQueue
from hybrid_blocks.offload.tiers.rates import ComputeRate
from hybrid_blocks.units import human
from hybrid_blocks.vllm.log import logger

# Seconds, longer than the time-out of one object.
_OBJECT_PATIENCE: Final = 40.0


_UNWRITABLE: Final = "unwritable"
_UNKNOWN: Final = "unknown"


def _digest(config: VllmConfig) -> dict[str, str]:
    try:
        identity = identity_of(config)
    except UnwritableError as error:
        return {_UNWRITABLE: str(error)}
    return {"model_digest": identity.digest, _UNKNOWN: ", ".join(identity.unknown)}


class HybridOffloadingSpec(OffloadingSpec):
    """Host memory, disk and objects for models whose groups differ in kind and size."""

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        """Name the metrics of the manager."""
        del extra_config
        return definitions()

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        """Name the labels that the manager fills."""
        del extra_config
        return HostInfo.config_info_keys()

    def __init__(self, config: OffloadingConfig) -> None:
        """Check the options.

        Raises:
            InvalidArgumentError: an option or a kind of parallelism that is not supported.
            HybridBlocksError: this vLLM lacks something that offload needs.
        """
        check_release()
        super().__init__(config)
        self._options = Options.parse(config.extra_config)
        # Answers are kept, unlike in vLLM's own specs: the next turn begins with them.
        self.offload_prompt_only = self._options.prompt_only
        parallel = config.parallel
        for name in ("pp_size", "pcp_size", "dcp_size"):
            if (size := getattr(parallel, name)) > 1:
                raise InvalidArgumentError(
                    f"{name} {size}: HybridOffloadingSpec supports 1, as a chunk holds all layers "
                    "and tokens of its block; use tensor parallelism"
                )
        # vLLM's scheduler side asks for one chunk more of these groups by itself.
        self.drafters: frozenset[int] = frozenset()
        self._manager: HybridOffloadingManager | None = None
        self._worker: OffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """Make the manager; the workers have made the region by now."""
        if self._manager is None:
            if self._options.has_tiers_below and not self._options.model_version:
                hold_content()
            region = Region.join(
                self.config.engine_id,
                self._options.host_bytes,
                num_ranks=self.config.parallel.world_size,
            )
            header = region.header()
            groups = groups_of(
                self.config,
                header.rank_bytes,
                header.structures,
                self._options.compress_states,
                self.drafters,
            )
            below = self._below(groups, header, region)
            if not any(below):
                region.cleanup()
            self._manager = HybridOffloadingManager(
                groups,
                self._options.host_bytes,
                below=below,
                with_events=self.kv_events_config.enable_kv_cache_events,
                info=HostInfo.of(groups, self._options.host_bytes, self.config.model.max_model_len),
                reopen=partial(self._below, groups, header, region),
                computing=None
                if self._options.reads_longest
                else ComputeRate(self._options.prompt_tokens_per_second),
            )
            sizes = ", ".join(
                f"{group.number}: {human(groups.chunk_bytes(group))}" for group in groups.all
            )
            logger.info(
                "hybrid_blocks offloads to %s of host memory%s; bytes a chunk by group: %s",
                human(self._options.host_bytes),
                "".join(f", {tier.name}" for tier in below),
                sizes,
            )
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Map the region and copy between it and this worker's cache."""
        if self._worker is None:
            config = get_current_vllm_config()
            groups = list(zip(self.config.groups, kv_caches.group_data_refs, strict=True))
            layout = self.config.kv_cache_layout
            header = Header(
                rank_bytes=[sum(ref.page_size_bytes for ref in refs) for _, refs in groups],
                layout={
                    "backends": self._backends(),
                    "platform": current_platform.device_type,
                    "machine": machine(),
                    **(_digest(config) if self._options.has_tiers_below else {}),
                },
                structures=[
                    structure_of(config, group.layer_names, refs, group.tokens_per_block, layout)
                    for group, refs in groups
                ],
            )
            rank = self.config.parallel.rank
            region = Region.create(self.config.engine_id, self._options.host_bytes, rank, header)
            self._worker = self._make_worker(kv_caches, region, rank)
            end_stores_first()
        return self._worker

    @staticmethod
    def _make_worker(kv_caches: CanonicalKVCaches, region: Region, rank: int) -> OffloadingWorker:
        if current_platform.is_cpu():
            from hybrid_blocks.offload.cpu_worker import CpuWorker  # noqa: PLC0415 - one of two

            return CpuWorker(kv_caches, region, rank)
        if current_platform.is_cuda_alike() or current_platform.is_xpu():
            from hybrid_blocks.offload.gpu_worker import GpuWorker  # noqa: PLC0415

            return GpuWorker(kv_caches, region, rank)
        raise HybridBlocksError(
            f"offload runs on CPU, CUDA, ROCm and XPU devices, not {current_platform.device_type}"
        )

    def _below(self, groups: Groups, header: Header, region: Region, epoch: str = "") -> TiersBelow:
        """Open the tiers below host memory for chunks of an epoch, which a reset begins."""
        below = TiersBelow()
        options = self._options
        if not options.has_tiers_below:
            return below
        if unwritable := header.layout.get(_UNWRITABLE):
            logger.warning(
                "Disk and objects are off: %s cannot be written down, so chunks could pass for "
                "those of another configuration. Requests go on with host memory.",
                unwritable,
            )
            return below
        if (unknown := header.layout[_UNKNOWN]) and not options.model_version:
            logger.warning(
                "Disk and objects are off: no engine can know the content of %s, so chunks could "
                "pass for those of another version. Set model_version to a text that you change "
                "with the content, or name local files or a commit's full hash. Requests go on "
                "with host memory.",
                unknown,
            )
            return below
        codec = Codec(groups)
        if options.compress_states is not None and not codec.converts_states:
            raise InvalidArgumentError(
                f"compress_states {options.compress_states!r}: this model has no recurrent states "
                "of float32 whose structure is known; leave it out"
            )
        identity = self._identity(header) | ({"epoch": epoch} if epoch else {})
        layouts = layout_versions(groups, identity)
        chunk_bytes = [groups.chunk_bytes(it) if it else 0 for it in groups.by_number()]
        largest = max(codec.stored_bytes)
        disk = self._disk(options.disk, layouts, largest) if options.disk else None
        if options.disk is not None and disk is not None:
            below.disk = TierQueue(
                disk,
                region.bytes,
                chunk_bytes,
                name=f"{human(options.disk.max_bytes)} in {options.disk.path}",
                source=CacheHitSource.DISK,
                locality=Locality.LOCAL,
                codec=codec,
            )
        if options.objects is not None:
            below.objects = TierQueue(
                ObjectStore(options.objects, layouts=layouts),
                region.bytes,
                chunk_bytes,
                name=options.objects,
                source=CacheHitSource.EXTERNAL_UNSPECIFIED,
                locality=Locality.REMOTE,
                codec=codec,
                patience=_OBJECT_PATIENCE,
            )
        return below

    def _identity(self, header: Header) -> dict[str, Any]:
        """All that decides what the bytes of a chunk mean, beside its group."""
        return {
            "model_version": self._options.model_version,
            "dtype": self.config.model.dtype,
            "kv_cache_layout": self.config.kv_cache_layout,
            "vllm": vllm.__version__,
            **header.layout,
        }

    def _disk(self, options: DiskOptions, layouts: list[bytes], largest: int) -> DiskStore | None:
        path = options.path
        try:
            if self.config.parallel.data_parallel_size > 1:  # a folder belongs to one engine
                DiskStore.make_folder(path)
                path /= f"dp{self.config.parallel.data_parallel_index}"
            return DiskStore(path, options.max_bytes, layouts=layouts, largest_chunk=largest)
        except OSError as error:
            logger.warning("The disk tier is off: %s. Requests go on without it.", error)
            return None

    @staticmethod
    def _backends() -> list[str]:
        """Attention backends of the layers: they decide how bytes of a block are laid out."""
        config = get_current_vllm_config_or_none()
        layers = config.compilation_config.static_forward_context.values() if config else ()
        names = {
            layer.get_attn_backend().get_name()
            for layer in layers
            if hasattr(layer, "get_attn_backend")
        }
        return sorted(names)
