"""The dictionary inside vLLM's map of cached blocks, which its tests read and write."""

from collections.abc import Iterator, Mapping, MutableMapping

from hybrid_blocks._core.vllm import Block, Blocks
from hybrid_blocks.vllm.pool import CachedBlocks, Key


def show() -> None:
    """Let this package's map have such a dictionary."""
    made = property(lambda cached: RawCache(cached._blocks, cached))
    CachedBlocks._cache = made  # type: ignore[attr-defined]


class RawCache(MutableMapping[Key, Block | dict[int, Block]]):
    """A value is a block, or a dictionary by block id where several hold the same content."""

    def __init__(self, blocks: Blocks, cached: CachedBlocks) -> None:
        self._blocks = blocks
        self._cached = cached

    def __getitem__(self, key: Key) -> Block | dict[int, Block]:
        holders = self._blocks.get_all(key)
        if not holders:
            raise KeyError(key)
        return holders[0] if len(holders) == 1 else {block.block_id: block for block in holders}

    def __setitem__(self, key: Key, value: Block | dict[int, Block]) -> None:
        if key in self:
            del self[key]
        for block in value.values() if isinstance(value, dict) else (value,):
            self._blocks.insert(key, block)

    def __delitem__(self, key: Key) -> None:
        holders = self._blocks.get_all(key)
        if not holders:
            raise KeyError(key)
        for block in holders:
            self._cached.pop(key, block.block_id)

    def __iter__(self) -> Iterator[Key]:
        seen: set[Key] = set()
        for block in self._blocks[:]:
            if block.block_hash is not None:
                seen.add(block.block_hash)
                seen.update(self._blocks.further_keys(block.block_id))
        return iter(seen)

    def __len__(self) -> int:
        return self._blocks.num_keys

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented

        def by_id(value: Block | dict[int, Block]) -> dict[int, Block]:
            return value if isinstance(value, dict) else {value.block_id: value}

        mine = {key: by_id(value) for key, value in self.items()}
        return mine == {key: by_id(value) for key, value in other.items()}

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> dict[Key, Block | dict[int, Block]]:
        return dict(self)
