"""The scheduler side over slabs: one look-up a request, and stores of all that gets a key."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
    TransferJob,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import _create_req_context
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadKey, ScheduleEndContext

from hybrid_blocks.offload.manager import HybridOffloadingManager
from hybrid_blocks.offload.slabs.reports import kv_events, note_transfers
from hybrid_blocks.offload.slabs.requests import Held, Job
from hybrid_blocks.offload.slabs.sources import Pin, Sources
from hybrid_blocks.vllm.specs import is_state

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

_Stored = tuple[int, OffloadKey, int, Pin]
"""A group, the key of a chunk of it, the block's id, and the block."""


class SlabScheduler:
    """Answers vLLM's scheduler. The manager of blocks is bound once it is there."""

    def __init__(
        self,
        spec: "OffloadingSpec",
        vllm_config: "VllmConfig",
        kv_cache_config: Any,
        *,
        is_lazy: bool = False,
    ) -> None:
        """Offload what the spec's manager has room for.

        A lazy one stores attention when its request ends or is preempted. States are stored when
        they get a key in any case: nothing owns a checkpoint until its request ends.
        """
        manager = spec.get_manager()
        assert isinstance(manager, HybridOffloadingManager)
        self.manager = manager
        self._prompt_only = spec.offload_prompt_only
        self._is_lazy = is_lazy
        self._num_workers = vllm_config.parallel_config.world_size
        # A digest is of as many tokens as a block of attention, and as the least state.
        self._tokens = spec.config.cache.tokens_per_hash
        self._groups = tuple(group.group_id for group in spec.config.groups)
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self._states = tuple(it for it in self._groups if is_state(specs[it]))
        self._attention = tuple(it for it in self._groups if it not in self._states)
        self._requests: dict[str, Held] = {}
        self._finished: list[Held] = []
        self._jobs: dict[int, Job] = {}
        self._num_jobs = 0
        self._metadata = OffloadingConnectorMetadata({}, {})
        self._stats = OffloadingConnectorStats()
        self._is_info_sent = False

    def bind(self, blocks: Any) -> None:
        """Take blocks and what becomes of states from a manager at level ``natural``."""
        self._blocks = blocks
        self._sources = Sources(blocks)
        self._take_states = blocks.note_states(self.give_up_stores)

    def on_new_request(self, request: "Request") -> None:
        """Begin to know a request."""
        # A client's ``vllm_xargs`` can put a text there, where vLLM expects a mapping.
        if not isinstance(request.kv_transfer_params, dict):
            request.kv_transfer_params = None
        context = _create_req_context(request)
        self.manager.on_new_request(context)
        self._requests[request.request_id] = Held.of(request, context)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed: int
    ) -> tuple[int | None, bool]:
        """Return the tokens to load behind those that the device has; ``None`` to ask again."""
        held = self._requests[request.request_id]
        if request.skip_reading_prefix_cache:
            return 0, False
        held.name_keys(self._groups, self._tokens)
        if not held.num_keys:
            return 0, False
        limit = request.num_tokens - 1
        if held.most_loaded is not None:
            limit = min(limit, num_computed + held.most_loaded)
        found = self.manager.restorable(held.context, num_computed, limit)
        if found is None or found <= num_computed:
            return None if found is None else 0, False
        return found - num_computed, True

    def update_state_after_alloc(
        self, request: "Request", blocks: Any, num_external: int, num_local: int
    ) -> None:
        """Begin to load into the blocks that the request got."""
        if not num_external:
            return
        held = self._requests[request.request_id]
        first, last = num_local // self._tokens, (num_local + num_external) // self._tokens
        ids, keys, sizes = [], [], []
        for group, table in enumerate(blocks.get_block_ids()):
            if group not in self._groups:
                continue
            if group in self._states:
                # This slot is the request's own: no checkpoint lies in it that others read.
                places = [(last, table[0])]
            else:
                # Blocks before a window are 0 in the table.
                places = [(at + 1, table[at]) for at in range(first, last) if table[at]]
            sizes.append(len(places))
            ids += [block for _, block in places]
            keys += [held.key(group, at * self._tokens, self._tokens) for at, _ in places]
        source = self.manager.prepare_load(keys, held.context)
        target = GPULoadStoreSpec(ids, sizes, [0] * len(sizes))
        number = self._begin(Job(held.context, keys, self._num_workers, is_store=False))
        self._metadata.load_jobs[number] = TransferJob(request.request_id, source, target)

    def sources_of(
        self, request: "Request", num_local: int, num_external: int
    ) -> "dict[CacheHitSource, int]":
        """Say which tier the tokens behind the device's come from."""
        held = self._requests[request.request_id]
        sources: dict[CacheHitSource, int] = {}
        for end in range(num_local, num_local + num_external, self._tokens):
            key = held.key(self._attention[0], end + self._tokens, self._tokens)
            source = self.manager.get_load_source(key, held.context)
            sources[source] = sources.get(source, 0) + self._tokens
        return sources

    def build_connector_meta(self, output: "SchedulerOutput") -> OffloadingConnectorMetadata:
        """Store what the step completes, and the states that got a key."""
        states: dict[str, list[tuple[int, int]]] = {}
        for req_id, group, num_tokens in self._take_states():
            states.setdefault(req_id, []).append((group, num_tokens))
        for req_id, num_tokens in output.num_scheduled_tokens.items():
            if (held := self._requests.get(req_id)) is not None:
                held.num_reached = held.request.num_computed_tokens + num_tokens
                reached = 0 if self._is_lazy else held.num_reached
                self._store(held, reached, held.take_lasting(states.pop(req_id, [])))
        ended = {held.request.request_id: held for held in self._finished}
        for req_id, left in states.items():
            # A request that is preempted, or that has ended, leaves its state where it is.
            if (held := ended.get(req_id) or self._requests.get(req_id)) is not None:
                self._store(held, 0, left)
        for req_id in output.preempted_req_ids or ():
            if (held := self._requests.get(req_id)) is not None:
                reached = held.num_reached if self._is_lazy else 0
                self._store(held, reached, held.take_passing())
        for held in self._finished:
            self.manager.on_request_finished(held.context)
        self._finished = []
        self.manager.on_schedule_end(
            ScheduleEndContext(
                new_req_ids=[new.req_id for new in output.scheduled_new_reqs],
                preempted_req_ids=output.preempted_req_ids or (),
            )
        )
        metadata, self._metadata = self._metadata, OffloadingConnectorMetadata({}, {})
        return metadata

    def _store(self, held: Held, num_reached: int, states: list[tuple[int, int]]) -> None:
        request = held.request
        if not states and num_reached - held.num_stored < self._tokens:
            return
        most = request.num_prompt_tokens if self._prompt_only else request.num_tokens
        if held.most_stored is not None:
            most = min(most, held.most_stored)
        held.name_keys(self._groups, self._tokens)
        last = min(num_reached, most, held.num_keys * self._tokens) // self._tokens
        first = held.num_stored // self._tokens
        chunks: dict[int, list[_Stored]] = {group: [] for group in self._groups}
        if last > first:
            tables = self._blocks.get_block_ids(request.request_id)
            for group in self._attention:
                chunks[group] += self._attention_of(held, group, tables[group], range(first, last))
            held.num_stored = last * self._tokens
        for group, num_tokens in states:
            key = held.key(group, num_tokens, self._tokens)
            state = self._sources.of(group, key) if num_tokens <= most else None
            if state is not None:
                chunks[group].append((group, key, state.block.block_id, state))
        self._begin_store(held, [it for group in self._groups for it in chunks[group]])

    def _attention_of(
        self, held: Held, group: int, table: list[int], positions: range
    ) -> Iterator[_Stored]:
        """Own blocks of a request; of a lazy one also those that it holds no longer."""
        for at in positions:
            key = held.key(group, (at + 1) * self._tokens, self._tokens)
            pin = None
            if at < len(table) and table[at]:
                pin = self._sources.at(group, table[at])
            elif self._is_lazy:
                pin = self._sources.left(group, key)
            if pin is not None:
                yield group, key, pin.block.block_id, pin

    def _begin_store(self, held: Held, chunks: list[_Stored]) -> None:
        if not chunks:
            return
        begun = self.manager.prepare_store([key for _, key, _, _ in chunks], held.context)
        stored = set(begun.keys_to_store) if begun is not None else set()
        self._sources.free(pin for _, key, _, pin in chunks if key not in stored)
        if begun is None or not stored:
            return
        chunks = [it for it in chunks if it[1] in stored]
        sizes = [sum(it[0] == group for it in chunks) for group in self._groups]
        source = GPULoadStoreSpec([block for _, _, block, _ in chunks], sizes, [0] * len(sizes))
        job = Job(held.context, begun.keys_to_store, self._num_workers)
        job.pins = [pin for *_, pin in chunks]
        req_id = held.request.request_id
        number = self._begin(job)
        self._metadata.store_jobs[number] = TransferJob(req_id, source, begun.store_spec)

    def _begin(self, job: Job) -> int:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = job
        return self._num_jobs

    def request_finished(self, request: "Request") -> tuple[bool, None]:
        """End a request. What is copied of it has owners of its own."""
        if (held := self._requests.pop(request.request_id, None)) is not None:
            if request.num_output_tokens and not self._is_loading(held):
                # The last token's state is not computed yet.
                reached = min(request.num_computed_tokens, request.num_tokens - 1)
                self._store(held, reached, held.take_passing())
            self._finished.append(held)
        return False, None

    def _is_loading(self, held: Held) -> bool:
        jobs = self._jobs.values()
        return any(not job.is_store and job.context is held.context for job in jobs)

    def update_connector_output(self, output: "KVConnectorOutput") -> None:
        """Take in the transfers that have ended."""
        meta = output.kv_connector_worker_meta
        if not isinstance(meta, OffloadingWorkerMetadata):
            return
        note_transfers(self._stats, meta.transfer_stats)
        for number, count in meta.completed_jobs.items():
            job = self._jobs[number]
            job.num_workers -= count
            if job.num_workers:
                continue
            del self._jobs[number]
            if not job.is_store:
                self.manager.complete_load(job.keys, job.context)
            elif job.keys:
                self.manager.complete_store(job.keys, job.context)
            self._sources.free(job.pins)

    @property
    def has_pending_work(self) -> bool:
        """Whether steps must go on although no request runs."""
        return bool(self._jobs or self._finished) or self.manager.has_pending_work()

    # The engine's life

    def give_up_stores(self) -> None:
        """Give up stores under way, so that no block is owned for them.

        Workers carry out the copies all the same, before anything else of the next step: what they
        write may be anything, and no key leads there.
        """
        for number, job in list(self._jobs.items()):
            if not job.is_store or not job.keys:
                continue
            self.manager.complete_store(job.keys, job.context, success=False)
            self._sources.free(job.pins)
            job.keys, job.pins = [], []
            if self._metadata.store_jobs.pop(number, None) is not None:
                del self._jobs[number]
            else:
                flushed = self._metadata.jobs_to_flush or set()
                self._metadata.jobs_to_flush = flushed | {number}

    def reset_cache(self) -> None:
        """Forget what was stored."""
        self.give_up_stores()
        self.manager.reset_cache()
        for held in self._requests.values():
            held.num_stored = held.num_reached = 0
            held.take_passing()

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Say what came to host memory and left it."""
        return [it for event in self.manager.take_events() for it in kv_events(event)]

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Return counts of transfers and of the manager since this was last asked."""
        stats, self._stats = self._stats, OffloadingConnectorStats()
        if (of_manager := self.manager.get_stats()) is not None:
            stats.aggregate(of_manager)
        if not self._is_info_sent:
            stats.set_info(self.manager.config_info())
            self._is_info_sent = True
        return None if stats.is_empty() else stats

    def shutdown(self) -> None:
        """Write what is under way and finish it."""
        self.manager.shutdown()
