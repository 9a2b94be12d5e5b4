"""Two managers instead of a scheduler's one."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks

from .twin import Twin


class TwinManager:
    """Gives every call of vLLM's scheduler to both managers, and vLLM's answer to the scheduler."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._expected, self._actual = twin.managers
        self.block_pool = TwinPool(twin)
        self.empty_kv_cache_blocks = _paired(
            self._expected.empty_kv_cache_blocks, self._actual.empty_kv_cache_blocks
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._expected, name)
        if not callable(value):
            return value
        call = partial(self._call, name)
        setattr(self, name, call)
        return call

    @property
    def usage(self) -> float:
        assert self._actual.usage == self._expected.usage
        return self._expected.usage

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        expected, actual = self._twin.call(
            name,
            *(self._pair(argument) for argument in args),
            **{key: self._pair(argument) for key, argument in kwargs.items()},
        )
        match name:
            case "allocate_slots" if expected is not None:
                self._twin.request_ids.add(args[0].request_id)
            case "free" | "pop_blocks_for_free":
                self._twin.request_ids.discard(args[0].request_id)
            case "get_computed_blocks":
                return _paired(expected[0], actual[0]), *expected[1:]
        return expected

    def _pair(self, argument: Any) -> Any:
        """Find what the other manager answered where the scheduler hands in this one's answer."""
        if not isinstance(argument, KVCacheBlocks):
            return argument
        return argument, getattr(argument, "mate", None) or self._translated(argument)

    def _translated(self, blocks: KVCacheBlocks) -> KVCacheBlocks:
        own = self._actual.block_pool.blocks
        return KVCacheBlocks(
            tuple([own[block.block_id] for block in group] for group in blocks.blocks)
        )


class TwinPool:
    """The pools of both managers. Blocks are named by vLLM's objects."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._twin.managers[0].block_pool, name)

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        ids = [block.block_id for block in ordered_blocks]

        def free(manager: Any, _args: Any, _kwargs: Any) -> None:
            blocks = manager.block_pool.blocks
            manager.block_pool.free_blocks([blocks[block_id] for block_id in ids])

        self._twin.run("free_blocks", free)


def _paired(expected: KVCacheBlocks, actual: Any) -> KVCacheBlocks:
    expected.mate = actual  # type: ignore[attr-defined]
    return expected
