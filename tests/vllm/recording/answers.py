"""vLLM's answers as plain numbers: block ids, and small numbers instead of digests."""

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash
from vllm.v1.request import Request


class Digests:
    """Numbers for digests, from 1 on in the order in which they appear."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._by_event: dict[Any, int] = {}

    def number(self, digest: bytes) -> int:
        number = self._numbers.setdefault(digest, len(self._numbers) + 1)
        self._by_event[maybe_convert_block_hash(digest)] = number  # type: ignore[arg-type]
        return number

    def of_event(self, digest: Any) -> int:
        """Return the number of a digest as events spell it."""
        return self._by_event[digest]


def ids(groups: Iterable[Iterable[Any]]) -> list[list[int]]:
    return [[block.block_id for block in group] for group in groups]


def request_number(request_id: str) -> int:
    return int(request_id.removeprefix("request"))


def events(queue: list[Any], digests: Digests) -> list[dict[str, list[Any]]]:
    """Return what happened to the prefix cache. One block's removals have no order in vLLM."""
    found: list[dict[str, list[Any]]] = []
    removed: list[list[int | None]] = []
    for event in queue:
        match event:
            case BlockRemoved():
                (digest,) = event.block_hashes
                removed.append([event.group_idx, digests.of_event(digest)])
            case BlockStored():
                found += [*_removed(removed), {"stored": _stored(event, digests)}]
                removed = []
    return found + _removed(removed)


def _removed(keys: list[list[int | None]]) -> list[dict[str, list[Any]]]:
    return [{"removed": key} for key in sorted(keys)]


def _stored(event: BlockStored, digests: Digests) -> list[Any]:
    parent = event.parent_block_hash
    """Return group, tokens a block, tokens in all, the digest before, those of the blocks."""
    return [
        event.group_idx,
        event.block_size,
        len(event.token_ids),
        0 if parent is None else digests.of_event(parent),
        [digests.of_event(digest) for digest in event.block_hashes],
    ]


def fnv(numbers: Iterable[int]) -> int:
    """Return the FNV-1a hash of numbers, each as a whole."""
    value = 0x811C9DC5
    for number in numbers:
        value = (value ^ number) * 0x01000193 & 0xFFFFFFFF
    return value


def queue(manager: KVCacheManager) -> int:
    """Return a hash of the free blocks in the order in which they will be handed out."""
    free = manager.block_pool.free_block_queue.get_all_free_blocks()
    return fnv(block.block_id for block in free)


def contents(manager: KVCacheManager, digests: Digests) -> int:
    """Return a hash of every block's owners, keys, and tokens that the first key stands for."""
    pool = manager.block_pool

    def key(value: Any) -> tuple[int, int]:
        return digests.number(get_block_hash(value)), get_group_id(value)

    def told() -> Iterable[int]:
        for block in pool.blocks[1:]:
            yield block.ref_cnt
            if block.block_hash is not None:
                yield from key(block.block_hash)
                yield block.block_hash_num_tokens or 0
            further = pool.cached_block_hashes_by_block.get(block.block_id, ())
            for other in sorted(key(value) for value in further):
                yield from other

    return fnv(told())


def table(manager: KVCacheManager, request_id: str) -> int:
    """Return a hash of all that the groups remember of a request."""

    def told() -> Iterable[int]:
        for group in manager.coordinator.single_type_managers:
            blocks = group.req_to_blocks.get(request_id, ())
            yield len(blocks)
            yield from (block.block_id for block in blocks)
            cached = group.num_cached_block.get(request_id)
            yield 0 if cached is None else cached + 1
            yield from getattr(group, "_checkpoints", {}).get(request_id, (0, 0))

    return fnv(told())


def holders(manager: KVCacheManager) -> list[list[int]]:
    """Return the requests that hold blocks, by group."""
    tables = [group.req_to_blocks for group in manager.coordinator.single_type_managers]
    return [sorted(request_number(id_) for id_ in it if it[id_]) for it in tables]


def facts(request: Request) -> list[int]:
    """Return what the core's ``Facts`` holds, in its order."""
    return [
        request.num_computed_tokens,
        request.num_tokens,
        request.num_prompt_tokens,
        request.num_in_flight_tokens,
        getattr(request, "shared_prefix_boundary", 0),
        int(request.status.name in ("WAITING", "PREEMPTED")),
    ]
