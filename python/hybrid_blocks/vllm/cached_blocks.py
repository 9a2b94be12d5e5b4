"""vLLM's maps between hashes and blocks, as views of the prefix index."""

from collections.abc import Iterator, Mapping, MutableMapping

from hybrid_blocks._core.vllm import Block, Blocks

# A block hash followed by the group's number: vLLM's ``BlockHashWithGroupId``.
Key = bytes


class CachedBlocks:
    """vLLM's ``BlockHashToBlockMap``: from a key to the blocks that hold its content."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def get_one_block(self, key: Key) -> Block | None:
        """Return the block that has held the content longest."""
        return self._blocks.get(key)

    def contain(self, key: Key, block_id: int) -> bool:
        """Return whether this very block holds the content."""
        return self._blocks.contains(key, block_id)

    def insert(self, key: Key, block: Block) -> None:
        """Let the block be found under the key."""
        self._blocks.insert(key, block)

    def pop(self, key: Key, block_id: int) -> Block | None:
        """Let the block be found under the key no more; return it if it was."""
        if not self._blocks.contains(key, block_id):
            return None
        block = self._blocks[block_id]
        num_tokens = block.block_hash_num_tokens
        for other in self._blocks.remove(block):
            if other != key:
                self._blocks.insert(other, block, num_tokens)
        return block

    def __len__(self) -> int:
        return self._blocks.num_keys

    @property
    def _cache(self) -> "RawCache":
        return RawCache(self._blocks, self)


class RawCache(MutableMapping[Key, Block | dict[int, Block]]):
    """The dictionary inside vLLM's map, which its tests read and write.

    A value is a block, or a dictionary by block id where several hold the same content.
    """

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


class FurtherHashes(Mapping[int, set[Key]]):
    """Keys of blocks that have more than one, by block id, without each block's first."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __getitem__(self, block_id: int) -> set[Key]:
        if keys := self._blocks.further_keys(block_id):
            return set(keys)
        raise KeyError(block_id)

    def __iter__(self) -> Iterator[int]:
        return (block_id for block_id in range(len(self._blocks)) if block_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
