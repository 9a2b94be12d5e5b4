"""vLLM's ``KVCacheManager`` at level ``natural``: several pools over one arena of slabs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

from vllm.distributed.kv_events import KVCacheEvent
from vllm.v1.core.kv_cache_utils import KVCacheBlock, KVCacheBlockCopy, get_group_id
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks import metrics as figures
from hybrid_blocks._core.vllm import AllocatedBlocks, Blocks
from hybrid_blocks.metrics import Sample
from hybrid_blocks.reasons import sentence
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.manager import events
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.manager.geometry import Geometry
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.natural import hints, lookup_spans
from hybrid_blocks.vllm.natural.usable_events import UsableEvents
from hybrid_blocks.vllm.pool import BlockPool, FreeBlockQueue
from hybrid_blocks.vllm.specs import is_state
from hybrid_blocks.vllm.worker.copies import ConvertingCopy
from hybrid_blocks.vllm.worker.prefill_checkpoint import PrefillCheckpoint

_State = tuple[str, int, int]
"""A state that got a key: its request, its group, and the tokens up to it."""


class NaturalKVCacheManager(NativeKVCacheManager):
    """vLLM's protocol over slabs: vLLM's counts of blocks are counts of slabs.

    Ids are each group's own: attention blocks by number, state slots by slab. A state stays in the
    slab that its request got first; forks and checkpoints are copies of slabs.
    """

    hybrid_blocks_level = Level.NATURAL
    kv_cache_config: NaturalKVCacheConfig
    _states: tuple[list[_State], ...] = ()
    """States that got a key, once for each connector that stores them."""
    _give_up: tuple[Callable[[], None], ...] = ()
    _more_samples: tuple[Callable[[], list[Sample]], ...] = ()
    _reports: tuple[KVCacheEvent, ...] = ()
    """Events of hits since the events were last taken."""

    @classmethod
    def unsupported_reason(cls, kv_cache_config: KVCacheConfig, **kwargs: Any) -> str | None:
        """Return why slabs cannot be managed for an engine, or ``None`` if they can."""
        if kwargs.get("pcp_world_size", 1) > 1:
            return sentence("pcp")
        if kwargs.get("metrics_collector") is not None:
            return sentence("residency_metrics")
        return super().unsupported_reason(kv_cache_config, **kwargs)

    def _pools_of_groups(self) -> list[Blocks]:
        coordinator: Any = self.coordinator
        pool = SlabPool.over(coordinator.block_pool, self.kv_cache_config)
        self.block_pool = coordinator.block_pool = pool
        for manager in coordinator.single_type_managers:
            manager.block_pool = pool
            manager._null_block = pool.null_block
        return [pool.pools[number] for number in self.kv_cache_config.pools]

    def _pools_of_hits(self) -> list[Blocks]:
        pool: Any = self.block_pool
        config = self.kv_cache_config
        return [pool.pools[config.kept_pool_of(number)] for number in range(len(config.pools))]

    def _show_requests(self) -> None:
        super()._show_requests()
        if self.enable_caching:
            # vLLM's metadata of groups reads this: events of states name hash blocks.
            coordinator: Any = self.coordinator
            for manager in coordinator.single_type_managers:
                if is_state(manager.kv_cache_spec):
                    manager.block_size = coordinator.block_pool.hash_block_size
        if lookup_spans.are_exported():
            own: Any = self
            own.allocate_slots = lookup_spans.LookupSpans(self).allocate_slots

    def _geometry(self) -> Geometry:
        geometry = super()._geometry()
        pools = self.kv_cache_config.pools
        kept_pools = self.kv_cache_config.kept_pools or (None,) * len(pools)
        specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        groups = [
            replace(
                group,
                pool=pool,
                kept_pool=kept,
                # Hits of a state may end at each hash block, but it holds a whole request's tokens.
                block_size=spec.block_size if is_state(spec) else group.block_size,
            )
            for group, pool, kept, spec in zip(
                geometry.groups, pools, kept_pools, specs, strict=True
            )
        ]
        kinds = {group.rules.name for group in groups}
        has_windows = "full" in kinds and not kinds.isdisjoint(("sliding_window", "chunked"))
        places_checkpoints = "mamba_aligned" in kinds or has_windows
        interval = self.kv_cache_config.checkpoint_interval
        return replace(
            geometry,
            groups=groups,
            # Copies of states, and the windows that are kept, are placed by our own rules.
            retention_interval=interval if places_checkpoints else None,
            checkpoints=self._placement() if places_checkpoints else None,
            prefill_checkpoint_alignment=self.kv_cache_config.prefill_checkpoint_alignment,
            zeroes_blocks=self.kv_cache_config.zeroes_single_blocks,
            enable_events=geometry.enable_events or bool(self._states),
        )

    @cached_property
    def step_tokens(self) -> int:
        """Prompt tokens that take as long as one more step; 0 where that is not known."""
        return CheckpointPolicy(self._placement()).options["step_tokens"] or 0

    def _placement(self) -> str:
        """Return the user's placement. If it names no price of a step, the engine's is added."""
        tokens = self.kv_cache_config.step_tokens
        if tokens is None or CheckpointPolicy(self._checkpoints).options["step_tokens"] is not None:
            return self._checkpoints
        return f"{self._checkpoints}/step_tokens={tokens}"

    def note_states(self, give_up: Callable[[], None]) -> Callable[[], list[_State]]:
        """Note from now on which states get a key. No request has come yet.

        The result takes the request, the group and the tokens of each, once. ``give_up`` gives up
        copies that blocks are owned for; a reset calls it. Each call has states of its own.
        """
        states: list[_State] = []
        self._states += (states,)
        self._give_up += (give_up,)

        def take() -> list[_State]:
            taken = list(states)
            states.clear()
            return taken

        return take

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; running requests prevent it. Return whether it was done."""
        for give_up in self._give_up:
            give_up()
        self._give_up_copies()
        return super().reset_prefix_cache()

    def _note_events(self, request: Request | None, changes: list[tuple[Any, ...]]) -> None:
        if self._states and request is not None:
            keyed = [
                (request.request_id, change[1], change[2])
                for change in changes
                if change[0] == "tail"
            ]
            for states in self._states:
                states.extend(keyed)
        if not self.enable_kv_cache_events:
            return
        if self._usable_events is not None:
            changes = [one for one in changes if one[0] != "removed" or not self._holds(one[1])]
        super()._note_events(request, changes)

    def _holds(self, key: Any) -> bool:
        """Whether another block still has the content of one that was evicted."""
        pool: Any = self.block_pool
        found = pool.pools[self.kv_cache_config.kept_pool_of(get_group_id(key))].get(key)
        return found is not None

    @cached_property
    def _usable_events(self) -> UsableEvents | None:
        return UsableEvents.of(self._geometry()) if self._publishes_usable_only else None

    def take_events(self) -> list[KVCacheEvent]:
        """Return the KV-cache events since the last call, as the environment asks for them."""
        plain = super().take_events()
        reports, self._reports = self._reports, ()
        return plain if self._usable_events is None else self._usable_events.turn(plain, reports)

    @property
    def has_states(self) -> bool:
        """Whether some groups hold recurrent states."""
        groups = self.kv_cache_config.kv_cache_groups
        return any(is_state(group.kv_cache_spec) for group in groups)

    def num_units(self, blocks: list[int]) -> list[int]:
        """Return the slabs that ``blocks`` of each group fill, at most."""
        sizes = map(self.kv_cache_config.blocks_per_slab_of, range(len(blocks)))
        return [-(-count // size) for count, size in zip(blocks, sizes, strict=True)]

    def num_slots(self, group: int) -> int:
        """Return the token slots that a group addresses: its largest slot-mapping value plus 1."""
        return self.kv_cache_config.num_slots(group)

    def take_kv_cache_block_copies(self) -> Any:
        """Return the copies of states to make since the last call, and the blocks held until then.

        No block is both read and written: the worker reads all before it writes any. The states to
        be kept from inside the forward pass follow. No load of a connector may overtake the step,
        so the scheduler owns all blocks until it has run.
        """
        plain, converting, owned = self._take_disjoint_copies()
        copies: list[Any] = [KVCacheBlockCopy(source, copy) for source, copy in plain]
        recipe_of = self.kv_cache_config.recipe_of
        copies += [
            ConvertingCopy(source, copy, group, keeps, recipe_of(group))
            for source, copy, group, keeps in converting
        ]
        checkpoints, destinations = self._take_prefill_checkpoints()
        copies += [PrefillCheckpoint(*checkpoint) for checkpoint in checkpoints]
        return copies, [block for blocks in (*owned, *destinations) for block in blocks]

    def _client_hints(self, request: Request) -> tuple[str | None, str | None]:
        return hints.client_hints(request)

    def _emit_hit(self, request: Request, blocks: AllocatedBlocks, num_tokens: int) -> None:
        pool: Any = self.block_pool
        if not self.enable_kv_cache_events:
            return
        managers = self.coordinator.single_type_managers
        num_plain = len(pool.kv_event_queue)
        for number, (manager, found) in enumerate(zip(managers, blocks.blocks, strict=True)):
            if not found:
                continue
            if is_state(manager.kv_cache_spec):
                pool.kv_event_queue.append(events.stored_tail(pool, request, number, num_tokens))
            else:
                pool.emit_cached_block_events(request, len(found), manager.block_size, number)
        if self._usable_events is not None:
            self._reports += tuple(pool.kv_event_queue[num_plain:])

    @cached_property
    def _pool_names(self) -> tuple[str, ...]:
        config = self.kv_cache_config
        specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        are_states = [is_state(spec) for spec in specs]
        return figures.pool_names(len(config.blocks_per_slab), config.pools, are_states)

    def _samples(self) -> list[Sample]:
        pool: Any = self.block_pool
        counts, limits = dict(self._counts()), dict(self._hit_limits())
        pools = dict(zip(self._pool_names, pool.pools, strict=True))
        owners = {name: one.num_owned_slabs for name, one in pools.items()}
        owners[figures.FREE] = pool.pools[0].num_slabs - sum(owners.values())
        samples = [figures.SLABS.sample(count, owner=owner) for owner, count in owners.items()]
        sizes = self.kv_cache_config.blocks_per_slab
        for size, (name, one) in zip(sizes, pools.items(), strict=True):
            states = {"live": one.num_live, "cached": one.num_cached}
            states["free"] = one.num_owned_slabs * size - sum(states.values())
            samples += [
                figures.BLOCKS.sample(count, pool=name, state=state)
                for state, count in states.items()
            ]
        samples += _counters(counts, limits, pool.pools[0].num_steals)
        return samples + [sample for more in self._more_samples for sample in more()]

    def add_samples(self, samples: Callable[[], list[Sample]]) -> None:
        """Publish further figures next to the manager's own."""
        self._more_samples += (samples,)


def _counters(counts: dict[str, int], limits: dict[str, int], num_steals: int) -> list[Sample]:
    return [
        figures.FORKS.sample(counts["forks"]),
        *(
            figures.CHECKPOINTS_WRITTEN.sample(counts[place], place=place)
            for place in figures.PLACES
        ),
        *(figures.CHECKPOINTS_DROPPED.sample(counts[why], reason=why) for why in figures.DROPS),
        *(figures.HITS.sample(count, ended_by=limit) for limit, count in limits.items()),
        figures.HITS_SHORTENED.sample(counts["shortened"]),
        figures.SLAB_STEALS.sample(num_steals),
    ]


class SlabQueue(FreeBlockQueue):
    """Free blocks of one pool in their order; their number is that of the arena's free slabs."""

    __slots__ = ()

    @property  # type: ignore[misc]  # vLLM's tests alone write it
    def num_free_blocks(self) -> int:
        """Slabs that hold no live block, as `SlabPool.get_num_free_blocks`."""
        count: int = self._blocks.num_whole_slabs
        return count


class SlabPool(BlockPool):
    """All pools of an arena. A slab pool counts slabs where vLLM's pool counts blocks.

    A slab is free where no block in it is live. ``pools`` are the blocks of each pool.
    """

    pools: list[Blocks]

    @classmethod
    def over(cls, pool: BlockPool, config: NaturalKVCacheConfig) -> Self:
        """Return what takes the place of a pool that vLLM made for the same configuration."""
        own = cls.__new__(cls)
        vars(own).update(vars(pool))
        own.pools = Blocks.over_slabs(
            config.num_blocks,
            list(config.blocks_per_slab),
            keep_evicted=pool.enable_kv_cache_events,
        )
        for blocks in own.pools:
            own._show(blocks)
        own._show(own.pools[0])
        own.free_block_queue = cast("Any", SlabQueue(own.pools[0]))
        return own

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take an owner from each block."""
        blocks: Any = ordered_blocks
        for pool in self.pools:
            blocks = pool.free(blocks)

    def get_num_free_blocks(self) -> int:
        """Return how many slabs hold no live block."""
        return self.pools[0].num_whole_slabs
