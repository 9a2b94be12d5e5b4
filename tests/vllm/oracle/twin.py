"""Two managers that are given the same calls; every answer must be the same."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager

Blocks = tuple[KVCacheBlocks, KVCacheBlocks]


class RefusedError(Exception):
    """Both managers raised; then neither promises a state."""


def plain(value: Any) -> Any:
    """Return an answer in plain values: blocks as ids, statistics and events as dictionaries."""
    if hasattr(value, "get_block_ids"):
        return ("blocks", value.get_block_ids())
    if hasattr(value, "block_id"):
        return ("block", value.block_id)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


class Twin:
    """``expected`` is vLLM's; ``actual`` is the one under test.

    After every call all that can be seen is compared.
    """

    def __init__(self, expected: KVCacheManager, actual: KVCacheManager) -> None:
        self.managers = (expected, actual)
        self.request_ids: set[str] = set()
        self.step = 0

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Make the call on both, compare answers and states, and return both answers.

        An argument that is a pair of results of an earlier call is taken apart.
        """
        return self.run(
            name, lambda m, args, kwargs: getattr(m, name)(*args, **kwargs), args, kwargs
        )

    def run(
        self,
        name: str,
        act: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> tuple[Any, Any]:
        self.step += 1
        results: list[Any] = []
        errors: list[Exception | None] = []
        for which, manager in enumerate(self.managers):
            own_args = [_own(arg, which) for arg in args]
            own_kwargs = {key: _own(arg, which) for key, arg in (kwargs or {}).items()}
            try:
                results.append(act(manager, own_args, own_kwargs))
                errors.append(None)
            except Exception as error:  # noqa: BLE001 - both must refuse, whatever vLLM raises
                results.append(None)
                errors.append(error)

        def what() -> str:
            return f"call {self.step}, {name}{args}{kwargs or ''}"

        if errors[0] and kwargs and kwargs.get("num_external_computed_tokens"):
            # vLLM counts a block too few for a state that others compute; ours lets it wait.
            assert errors[1] or results[1] is None, what()
            raise RefusedError(repr(errors[0]))
        if any(errors):
            assert all(errors), f"{what()}: vLLM {errors[0]!r}, ours {errors[1]!r}"
            raise RefusedError(repr(errors[0]))
        expected, actual = (plain(result) for result in results)
        assert actual == expected, f"{what()}: {actual} instead of {expected}"
        self.compare(what)
        return results[0], results[1]

    def compare(self, what: Callable[[], str]) -> None:
        expected, actual = map(self.state, self.managers)
        for key, value in expected.items():
            assert actual[key] == value, f"{what()}: {key} is {actual[key]}, not {value}"

    def state(self, manager: KVCacheManager) -> dict[str, Any]:
        pool = manager.block_pool
        groups = manager.coordinator.single_type_managers
        return {
            "usage": manager.usage,
            "free queue": [b.block_id for b in pool.free_block_queue.get_all_free_blocks()],
            "owners": [b.ref_cnt for b in pool.blocks[1:]],
            "contents": [
                (
                    b.block_hash,
                    b.block_hash_num_tokens,
                    sorted(pool.cached_block_hashes_by_block.get(b.block_id, ())),
                )
                for b in pool.blocks
            ],
            "tables": {id_: manager.get_block_ids(id_) for id_ in self.request_ids},
            "cached": {
                id_: [group.num_cached_block.get(id_) for group in groups]
                for id_ in self.request_ids
            },
            "events": _events(manager),
            "residency": _residency(manager),
            "statistics": asdict(stats) if (stats := manager.prefix_cache_stats) else None,
        }


def _own(argument: Any, which: int) -> Any:
    is_pair = isinstance(argument, tuple) and len(argument) == 2
    return argument[which] if is_pair and hasattr(argument[0], "get_block_ids") else argument


def _residency(manager: KVCacheManager) -> list[Any]:
    """Return the calls that the pool's collector got, and its events."""
    collector: Any = manager.block_pool.metrics_collector
    return [] if collector is None else [*collector.calls, *collector.events]


def _events(manager: KVCacheManager) -> list[Any]:
    """Events that were not taken yet. One block's removals have no order in vLLM."""
    return sorted(
        (repr(event) for event in manager.block_pool.kv_event_queue),
        key=lambda text: (text.startswith("BlockRemoved"), text if "BlockRemoved" in text else ""),
    )
