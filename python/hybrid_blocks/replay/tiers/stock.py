"""vLLM's ``TieringOffloadingSpec`` without bytes of host memory, over files of one page a chunk."""

import mmap
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np
from vllm.v1.kv_offload.base import (
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager, FsAsyncLookupManager
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from hybrid_blocks.offload.groups import groups_of
from hybrid_blocks.replay.tiers.below import Below, watch
from hybrid_blocks.replay.tiers.ledger import Ledger
from hybrid_blocks.replay.tiers.side import Side
from hybrid_blocks.replay.tiers.sizes import PAGE, TierBytes


class _Region:
    """A page instead of each chunk's row."""

    def __init__(self, num_chunks: int) -> None:
        # At page borders, so that files can bypass the page cache.
        self._pages = mmap.mmap(-1, max(num_chunks, 1) * PAGE)

    def create_kv_memoryview(self) -> memoryview:
        return memoryview(self._pages).cast("B", (len(self._pages) // PAGE, PAGE))

    def cleanup(self) -> None:
        pass


class Primary(CPUPrimaryTierOffloadingManager):
    """Host memory that notes what it evicts, for stores and promotions alike."""

    ledger: Ledger

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Take slots, as vLLM does."""
        output = super().prepare_store(keys, req_context)
        if output is not None:
            self.ledger.evict(output.evicted_keys)
        return output


class Lookups(FsAsyncLookupManager):
    """Looks for files, and has found them before the next step."""

    def flush(self) -> None:
        """Look for what this step asked for."""
        asked = [(self._lookup_state.get(key), number) for key, _, number in self._lookup_batch]
        super().flush()
        if any(state is not None and state.generation == number for state, number in asked):
            self._pending_results.put(self._pending_results.get())


class Files(FileSystemTierManager):
    """The file system tier on a disk of bounded size. Transfers and look-ups end within their step.

    vLLM evicts no file. A chunk that finds the disk full is not written, as on a real one.
    """

    ledger: Ledger
    max_chunks: int
    _lookup_manager: FsAsyncLookupManager

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lookup_manager.shutdown()
        self._lookup_manager = Lookups(self, self.tier_type)
        self.held: set[bytes] = set()
        self._refused: list[JobResult] = []

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Write what has room."""
        keys = list(job_metadata.keys)
        new = [key for key in keys if key not in self.held]
        fitting = new[: max(0, self.max_chunks - len(self.held))]
        self.ledger.disk_refused_chunks += len(new) - len(fitting)
        if len(fitting) < len(new):
            self._refused.append(JobResult(job_metadata.job_id, success=False))
            at = dict(zip(keys, job_metadata.chunk_ids, strict=True))
            job_metadata = replace(
                job_metadata, keys=fitting, chunk_ids=np.array([at[key] for key in fitting])
            )
        self.held.update(fitting)
        self.ledger.write(fitting)
        if job_metadata.keys:
            super().submit_store(job_metadata)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Read chunks."""
        self.ledger.promote(job_metadata.keys)
        super().submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Wait for what was submitted."""
        self._pool.wait_idle()
        refused, self._refused = self._refused, []
        ended = {result.job_id for result in refused}
        return refused + [it for it in super().get_finished_jobs() if it.job_id not in ended]

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Let writes of this step be there when it looks for them."""
        self._pool.wait_idle()
        super().on_schedule_end(context)


class _Spec(TieringOffloadingSpec):
    """Hands out a manager that was made without workers."""

    made: TieringOffloadingManager

    def get_manager(self) -> OffloadingManager:
        return self.made


def make_stock(
    config: OffloadingConfig, rank_bytes: list[int], tiers: TierBytes, side: Side
) -> Below:
    """Make vLLM's manager over tiers of these sizes."""
    options = {
        "cpu_bytes_to_use": tiers.host,
        "offload_prompt_only": side is Side.PROMPTS,
        "eviction_policy": "arc" if side is Side.ARC else "lru",
    }
    spec = _Spec(replace(config, extra_config=options))
    row_bytes = spec.kv_bytes_per_chunk
    ledger = Ledger(host_bytes=lambda _: row_bytes, disk_bytes=lambda _: row_bytes)
    primary = Primary(
        num_chunks=spec.num_chunks,
        mmap_region=_Region(spec.num_chunks),  # type: ignore[arg-type]
        cache_policy=spec.eviction_policy,
        info=spec.cpu_info,
    )
    primary.ledger = ledger
    folder = tempfile.TemporaryDirectory(prefix="hybrid-blocks-replay-")
    files: Files | None = None
    if tiers.disk:
        files = Files(
            offloading_spec=spec,
            primary_kv_view=primary.get_kv_memoryview(),
            tier_type="fs",
            root_dir=folder.name,
            n_read_threads=1,
            n_write_threads=1,
        )
        files.ledger, files.max_chunks = ledger, tiers.disk // row_bytes
    manager = TieringOffloadingManager(primary, [files] if files else [])
    spec.made = manager

    def close() -> None:
        manager.shutdown()
        folder.cleanup()

    return Below(
        spec=spec,
        manager=manager,
        groups=groups_of(config, rank_bytes),
        ledger=ledger,
        finished=watch(manager, ledger),
        is_on_host=lambda key: primary._policy.get(OffloadKey(key)) is not None,
        on_disk=lambda keys: [files is not None and key in files.held for key in keys],
        close=close,
    )
