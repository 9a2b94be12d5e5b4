"""Bytes that belong to nobody are NaN: whoever reads them answers nonsense."""

from collections.abc import Iterator
from typing import Any

import torch


class Poison:
    """Overwrites what is free before each step of an engine in this process.

    A unit is a slab where the plan has slabs, else a block. ``num_poisoned`` counts the units and
    single blocks that were overwritten after they had been in use.
    """

    def __init__(self, llm: Any) -> None:
        core = llm.llm_engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._config = core.scheduler.kv_cache_config
        context = core.vllm_config.compilation_config.static_forward_context
        self._views = [
            [
                view
                for name in group.layer_names
                for view in _by_block(context[name].kv_cache, self._num_blocks(number))
            ]
            for number, group in enumerate(self._config.kv_cache_groups)
        ]
        self._clean = [set[int]() for _ in self._views]
        self.num_poisoned = 0
        schedule = core.scheduler.schedule

        def poisoned_schedule(*args: Any, **kwargs: Any) -> Any:
            self._overwrite()
            return schedule(*args, **kwargs)

        core.scheduler.schedule = poisoned_schedule

    def _overwrite(self) -> None:
        pools = self._scheduler.kv_cache_manager.block_pool.pools
        held = [set(_held(pool)) for pool in pools]
        cuts = self._config.blocks_per_slab
        owned = [{block // cut for block in blocks} for blocks, cut in zip(held, cuts, strict=True)]
        for number, pool in enumerate(self._config.pools):
            others = set().union(*(slabs for other, slabs in enumerate(owned) if other != pool))
            free = {
                block
                for block in range(cuts[pool], self._num_blocks(number))
                if block not in held[pool] and block // cuts[pool] not in others
            }
            new = sorted(free - self._clean[number])
            for view in self._views[number]:
                view[new] = torch.nan
            self.num_poisoned += len(new)
            self._clean[number] = free

    def _num_blocks(self, group: int) -> int:
        return int(self._config.num_blocks * self._config.blocks_per_slab_of(group))


def _held(pool: Any) -> Iterator[int]:
    """Yield the blocks of a pool that a request reads or that may be hit."""
    for block in pool:
        if block.ref_cnt > 0 or block.block_hash is not None:
            yield block.block_id


def _by_block(cache: Any, num_blocks: int) -> Iterator[torch.Tensor]:
    """Yield a layer's tensors with blocks first."""
    for tensor in cache if isinstance(cache, list | tuple) else [cache]:
        yield tensor.movedim(list(tensor.shape).index(num_blocks), 0)
