"""vLLM 0.31, the oldest release that is tested."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler

ExtraKeysOf = Callable[[Request, int, int, int], tuple[Any, int]]
"""Gives a block's extra keys: request, first token, end, first image to look at; and the next."""


class Release:
    """The questions of the adapter to a release, answered as the oldest one does."""

    rules: frozenset[str] = frozenset()
    """Decisions that differ from the oldest release: the core's ``ReleaseRules``, by name."""

    def __init__(self, name: str) -> None:
        """Answer for the release ``name``, such as ``0.33``."""
        self.name = name

    def manager_class(self, group: KVCacheGroupSpec) -> type | None:
        """Return vLLM's manager of a group."""
        return KVCacheSpecRegistry.get_manager_class(group.kv_cache_spec)

    def num_hash_lookahead_tokens(self, pool: BlockPool) -> int:  # noqa: ARG002
        """Return the tokens after a block that its hash covers."""
        return 0

    def drop_eagle_group_ids(self, coordinator: KVCacheCoordinator) -> set[int]:
        """Return the groups whose hits drop a block for a drafter."""
        return coordinator.eagle_group_ids

    takes_back_trimmed = False
    """Whether tokens after a stop count as never computed, and no longer as in flight."""
    commits_drafts = False
    """Whether outputs commit full blocks where drafts are verified in step."""
    plans_by_builder = False
    """Whether a builder plans memory, and not functions."""

    def must_see_whole_step(self, scheduler: "Scheduler") -> bool:
        """Return whether admission asks for what else this step schedules: here, its LoRAs."""
        return scheduler.lora_config is not None and bool(
            scheduler.waiting or scheduler.kv_holding_waiting
        )

    def note_drafts(self, output: "SchedulerOutput", *, are_unused: bool) -> None:
        """Note whether requests that were scheduled in one call need the next drafts."""

    def drain_deferred(self, scheduler: "Scheduler") -> None:
        """Free what waited for the end of a step."""
        scheduler._drain_deferred_frees()  # type: ignore[no-untyped-call]

    def count_step(self, scheduler: "Scheduler") -> None:
        """Count a step that vLLM's code took for an empty one."""

    def event_extra_keys(self, pool: BlockPool) -> ExtraKeysOf:  # noqa: ARG002
        """Return what gives a block's extra keys in events."""
        return generate_block_hash_extra_keys

    def event_lookahead(
        self,
        pool: BlockPool,  # noqa: ARG002
        request: Request,  # noqa: ARG002
        ends: Sequence[int],  # noqa: ARG002
    ) -> dict[str, Any]:
        """Return what an event says of the tokens that the hashes of blocks look ahead at.

        ``ends`` are the blocks' ends, in tokens.
        """
        return {}

    def hasher_arguments(self, num_lookahead_tokens: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return the further arguments of vLLM's own hasher after block size and hash function."""
        return ()
