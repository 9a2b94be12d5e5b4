"""vLLM 0.33: groups have roles, hashes can look ahead, drafters drop blocks group by group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
from vllm.v1.request import Request

from hybrid_blocks.vllm.releases import v0_32
from hybrid_blocks.vllm.releases.v0_31 import ExtraKeysOf

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler


class Release(v0_32.Release):
    """The changes since 0.32."""

    rules = v0_32.Release.rules | {"keeps_block_below_junction", "keys_running_state_once"}

    def manager_class(self, group: KVCacheGroupSpec) -> type | None:
        """Return vLLM's manager of a group, which may depend on its role."""
        return KVCacheSpecRegistry.get_manager_class(group.kv_cache_spec, group.role)

    def num_hash_lookahead_tokens(self, pool: BlockPool) -> int:
        """Return the tokens after a block that its hash covers."""
        return pool.num_hash_lookahead_tokens

    def drop_eagle_group_ids(self, coordinator: KVCacheCoordinator) -> set[int]:
        """Return the groups whose hits drop a block; not all that have a drafter do."""
        return coordinator.drop_eagle_group_ids

    takes_back_trimmed = True
    commits_drafts = True
    plans_by_builder = True

    def must_see_whole_step(self, scheduler: "Scheduler") -> bool:  # noqa: ARG002
        """Return whether admission asks for what else this step schedules: it asks who runs."""
        return False

    def note_drafts(self, output: "SchedulerOutput", *, are_unused: bool) -> None:
        """Note whether requests that were scheduled in one call need the next drafts."""
        output.skip_drafts = output.skip_drafts and are_unused

    def drain_deferred(self, scheduler: "Scheduler") -> None:
        """Free what waited for the end of a step, and start the loads that did."""
        scheduler._drain_deferred_frees()  # type: ignore[no-untyped-call]
        scheduler._drain_deferred_loads()

    def count_step(self, scheduler: "Scheduler") -> None:
        """Count a step that vLLM's code took for an empty one."""
        scheduler.num_executed_steps += 1

    def event_extra_keys(self, pool: BlockPool) -> ExtraKeysOf:
        """Return what gives a block's extra keys in events: the pool has a say in them."""
        return pool._generate_event_extra_keys

    def event_lookahead(
        self, pool: BlockPool, request: Request, ends: Sequence[int]
    ) -> dict[str, Any]:
        """Return the tokens that hashes cover after blocks that end at ``ends``, by block."""
        if not pool.num_hash_lookahead_tokens:
            return {"lookahead_token_ids": None}
        return {"lookahead_token_ids": [pool._lookahead_token_ids(request, end) for end in ends]}

    def hasher_arguments(self, num_lookahead_tokens: int) -> tuple[int, ...]:
        """Return the further arguments of vLLM's own hasher after block size and hash function."""
        return (num_lookahead_tokens,) if num_lookahead_tokens else ()
