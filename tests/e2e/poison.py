"""Bytes that belong to no request hold nonsense: a request that reads them answers nonsense."""

from collections.abc import Iterator
from typing import Any

import torch
from vllm.v1.core.kv_cache_utils import get_group_id
from vllm.v1.kv_cache_interface import MambaSpec

# A block that attention takes again is not cleared, and its kernels multiply what they mask by 0:
# so it may hold any number but NaN. What a state leaves behind may be anything.
AFTER_STATES = float("nan")
AFTER_ATTENTION = 1e4


class Poison:
    """Overwrites what is free before each step of an engine with slabs in this process.

    ``num_poisoned`` counts the state slots and attention blocks that were overwritten.
    """

    def __init__(self, llm: Any) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._config = core.scheduler.kv_cache_config
        groups = self._config.kv_cache_groups
        context = core.vllm_config.compilation_config.static_forward_context
        self._is_state = [isinstance(group.kv_cache_spec, MambaSpec) for group in groups]
        self._cuts = [self._config.blocks_per_slab_of(number) for number in range(len(groups))]
        self._num_blocks = [self._config.num_blocks * cut for cut in self._cuts]
        self._views = [
            [
                view
                for name in group.layer_names
                for view in by_block(context[name].kv_cache, self._num_blocks[number])
            ]
            for number, group in enumerate(groups)
        ]
        self._held_states: dict[int, bool] = {}  # by slab, whether a state used it last
        self._clean = [set[int]() for _ in groups]
        self.num_poisoned = 0
        schedule = core.scheduler.schedule

        def poisoned_schedule(*args: Any, **kwargs: Any) -> Any:
            self._overwrite()
            return schedule(*args, **kwargs)

        core.scheduler.schedule = poisoned_schedule

    def _overwrite(self) -> None:
        held, kept_slabs = self._held(), self._kept_slabs()
        taken = [{block // cut for block in it} for it, cut in zip(held, self._cuts, strict=True)]
        for number, slabs in enumerate(taken):
            self._held_states.update(dict.fromkeys(slabs, self._is_state[number]))
        self._held_states.update(dict.fromkeys(kept_slabs, True))
        for number, (is_state, cut) in enumerate(zip(self._is_state, self._cuts, strict=True)):
            kin = [n for n, pool in enumerate(self._config.pools) if self._is_kin(n, number, pool)]
            used = set().union(*(held[n] for n in kin))
            others = kept_slabs.union(*(taken[n] for n in range(len(taken)) if n not in kin))
            free = {
                block
                for block in range(cut, self._num_blocks[number])
                if block not in used
                and block // cut not in others
                and self._held_states.get(block // cut, True) == is_state
            }
            new = sorted(free - self._clean[number])
            for view in self._views[number]:
                view[new] = AFTER_STATES if is_state else AFTER_ATTENTION
            self.num_poisoned += len(new)
            self._clean[number] = free

    def _is_kin(self, other: int, group: int, pool: int) -> bool:
        """Whether two groups name the same bytes by the same id."""
        return self._config.pools[group] == pool and self._is_state[other] == self._is_state[group]

    def _held(self) -> list[set[int]]:
        """Return, by group, the blocks that a request reads or that may be hit."""
        manager = self._scheduler.kv_cache_manager
        held = [set[int]() for _ in self._views]
        for request in self._scheduler.requests:
            for number, ids in enumerate(manager.get_block_ids(request)):
                held[number].update(ids)
        for number in set(self._config.pools):
            for block in manager.block_pool.pools[number]:
                if block.block_hash is not None:
                    held[get_group_id(block.block_hash)].add(block.block_id)
                elif block.ref_cnt > 0 and not block.is_null:
                    self._note_unknown(held, number, block.block_id)
        return [blocks - {0} for blocks in held]

    def _kept_slabs(self) -> set[int]:
        """Return the slabs of checkpoints in another format: their blocks are no group's states."""
        pools: Any = self._scheduler.kv_cache_manager.block_pool.pools
        kept = set(self._config.kept_pools) - {None}
        return {
            block.block_id // self._config.blocks_per_slab[number]
            for number in kept
            for block in pools[number]
            if block.block_hash is not None or (block.ref_cnt > 0 and not block.is_null)
        }

    def _note_unknown(self, held: list[set[int]], pool: int, block: int) -> None:
        """Take a live block that is in no table, such as a copy's, for one of all its groups."""
        groups = [number for number, own in enumerate(self._config.pools) if own == pool]
        if not any(block in held[number] for number in groups):
            for number in groups:
                held[number].add(block)


def by_block(cache: Any, num_blocks: int) -> Iterator[torch.Tensor]:
    """Yield a layer's tensors with blocks first."""
    for tensor in cache if isinstance(cache, list | tuple) else [cache]:
        yield tensor.movedim(list(tensor.shape).index(num_blocks), 0)
