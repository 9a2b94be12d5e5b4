"""KV-cache events of attention that a hit can end at or pass: what routers may count."""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.vllm.manager.geometry import Geometry

Hash = bytes | int


@dataclass(slots=True, eq=False)
class _Block:
    """The cached parts of the tokens up to one hash, by group."""

    key: Hash
    parent: Hash | None = None
    is_linked: bool = False
    """Whether ``parent`` is known: events of attention tell it."""
    attention: dict[int, BlockStored] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    runs: dict[int, int] = field(default_factory=dict)
    """Blocks of a window's group that end here without a gap, up to those of a window."""
    is_checkpoint: bool = False
    num_needing: int = 0
    """The block itself, if it is a checkpoint, and its children that lead to one."""
    is_attached: bool = False
    """Whether all groups of full attention hold the block."""
    is_whole: bool = False
    """Whether they hold all blocks up to here as well."""
    is_published: bool = False


class UsableEvents:
    """Turns plain events into those of usable attention.

    An attention block is published while a checkpoint lies at it or below it, over whole attention.
    """

    def __init__(self, full: Iterable[int], states: Iterable[int], windows: Mapping[int, int]):
        """Name groups by kind; ``windows`` gives the blocks that a hit needs of each."""
        self._full, self._states = frozenset(full), frozenset(states)
        self._windows = dict(windows)
        self._blocks: dict[Hash, _Block] = {}
        self._children: dict[Hash, dict[Hash, _Block]] = {}

    @classmethod
    def of(cls, geometry: Geometry) -> "UsableEvents | None":
        """Return what an engine needs, or None where its plain events are taken as they are."""
        full, states, windows = [], [], {}
        if geometry.drops_eagle_block or geometry.lookup != "hybrid":
            return None
        for number, group in enumerate(geometry.groups):
            if not group.is_cached:
                continue
            kind = group.rules
            if kind.name == "mamba_aligned":
                states.append(number)
            elif group.block_size != geometry.hash_block_size:
                return None
            elif kind.name == "full":
                full.append(number)
            elif kind.name == "sliding_window":
                window = kind.parameters["window"]
                windows[number] = max(1, ceil_div(window - 1, group.block_size))
            else:
                return None
        return cls(full, states, windows) if full and (states or windows) else None

    @property
    def num_blocks(self) -> int:
        """How many hashes are known: all of them are cached in some group."""
        return len(self._blocks)

    def turn(
        self, events: Iterable[KVCacheEvent], reports: Iterable[KVCacheEvent] = ()
    ) -> list[KVCacheEvent]:
        """Return the events to publish instead of ``events``.

        ``reports`` are the events among them that repeat the blocks of a hit, and are passed on.
        """
        out: list[KVCacheEvent] = []
        reported = set(map(id, reports))
        for event in events:
            group: Any = getattr(event, "group_idx", None)
            if isinstance(event, AllBlocksCleared):
                self._blocks.clear()
                self._children.clear()
            if group not in self._full:
                out.append(event)
            if isinstance(event, BlockStored):
                if group in self._full:
                    self._store_attention(event, group, out, repeats=id(event) in reported)
                else:
                    for key in event.block_hashes:
                        self._store(self._block(key), group, out)
            elif isinstance(event, BlockRemoved):
                for key in event.block_hashes:
                    if (block := self._blocks.get(key)) is not None:
                        self._remove(block, group, out)
        return out

    # --- what is cached -------------------------------------------------------

    def _block(self, key: Hash) -> _Block:
        return self._blocks.get(key) or self._blocks.setdefault(key, _Block(key))

    def _parent(self, block: _Block) -> _Block | None:
        return None if block.parent is None else self._blocks.get(block.parent)

    def _children_of(self, block: _Block) -> list[_Block]:
        return list(self._children.get(block.key, {}).values())

    def _store_attention(
        self, event: BlockStored, group: int, out: list[KVCacheEvent], *, repeats: bool
    ) -> None:
        """Note what is stored. Blocks that are published already are named again if it ``repeats``.

        Otherwise a second block of the same content would be stored twice and removed once.
        """
        again = []
        for one in _split(event):
            block = self._block(one.block_hashes[0])
            block.attention[group] = one
            if not block.is_linked:
                block.is_linked, block.parent = True, one.parent_block_hash
                if block.parent is not None:
                    self._children.setdefault(block.parent, {})[block.key] = block
                for window in list(block.runs):
                    self._count_run(block, window, out)
            if block.is_published:
                again.append(one)
            elif not block.is_attached and block.attention.keys() == self._full:
                self._attach(block, out)
        if repeats:
            out += _joined(again)

    def _store(self, block: _Block, group: int, out: list[KVCacheEvent]) -> None:
        if group in self._states:
            block.states.add(group)
            self._see_checkpoint(block, out)
        elif group in self._windows:
            block.runs.setdefault(group, 0)
            self._count_run(block, group, out)

    def _remove(self, block: _Block, group: int, out: list[KVCacheEvent]) -> None:
        if group in self._full:
            if block.is_attached and group in block.attention:
                self._detach(block, out)
            block.attention.pop(group, None)
        elif group in self._windows:
            if block.runs.pop(group, None) is not None:
                self._see_checkpoint(block, out)
                for child in self._children_of(block):
                    self._count_run(child, group, out)
        else:
            block.states.discard(group)
            self._see_checkpoint(block, out)
        if not (block.attention or block.states or block.runs):
            del self._blocks[block.key]
            if block.parent is not None:
                siblings = self._children[block.parent]
                del siblings[block.key]
                if not siblings:
                    del self._children[block.parent]

    # --- what is usable -------------------------------------------------------

    def _count_run(self, block: _Block, group: int, out: list[KVCacheEvent]) -> None:
        most, changed = self._windows[group], [block]
        while changed:
            block = changed.pop()
            if group not in block.runs:
                continue
            parent = self._parent(block)
            before = parent.runs.get(group, 0) if parent else 0
            if block.is_linked and block.parent is None:
                before = most
            run = min(most, before + 1)
            if run != block.runs[group]:
                block.runs[group] = run
                self._see_checkpoint(block, out)
                changed += self._children_of(block)

    def _see_checkpoint(self, block: _Block, out: list[KVCacheEvent]) -> None:
        is_checkpoint = block.states == self._states and all(
            block.runs.get(group, 0) >= most for group, most in self._windows.items()
        )
        if is_checkpoint != block.is_checkpoint:
            block.is_checkpoint = is_checkpoint
            self._tell(reversed(self._need(block, 1 if is_checkpoint else -1)), out)

    def _attach(self, block: _Block, out: list[KVCacheEvent]) -> None:
        block.is_attached = True
        parent = self._parent(block)
        is_whole = block.parent is None or (parent is not None and parent.is_whole)
        block.num_needing = block.is_checkpoint + sum(
            child.is_attached and child.num_needing > 0 for child in self._children_of(block)
        )
        above = self._need(parent, 1) if block.num_needing else []
        below = self._spread(block, is_whole=True) if is_whole else []
        self._tell([*reversed(above), *below], out)

    def _detach(self, block: _Block, out: list[KVCacheEvent]) -> None:
        above = self._need(self._parent(block), -1) if block.num_needing else []
        below = self._spread(block, is_whole=False) if block.is_whole else []
        self._tell([*reversed(above), *below], out)
        block.is_attached, block.num_needing = False, 0

    def _need(self, block: _Block | None, change: int) -> list[_Block]:
        """Count what needs a block and those above it; return them, the last one first."""
        seen = []
        while block is not None and block.is_attached:
            was_needed = block.num_needing > 0
            block.num_needing += change
            seen.append(block)
            if was_needed == (block.num_needing > 0):
                break
            block = self._parent(block)
        return seen

    def _spread(self, block: _Block, *, is_whole: bool) -> list[_Block]:
        """Say whether attention is whole up to a block and those below; return them in order."""
        seen, waiting = [], [block]
        while waiting:
            block = waiting.pop()
            block.is_whole = is_whole
            seen.append(block)
            waiting += [child for child in self._children_of(block) if child.is_attached]
        return seen

    def _tell(self, blocks: Iterable[_Block], out: list[KVCacheEvent]) -> None:
        """Append events of what changed among blocks, given parents first."""
        new: list[_Block] = []
        gone: list[_Block] = []
        for block in blocks:
            is_usable = block.is_whole and block.num_needing > 0
            if is_usable != block.is_published:
                block.is_published = is_usable
                (new if is_usable else gone).append(block)
        for group in sorted(self._full):
            if gone:
                hashes = [block.key for block in reversed(gone)]
                medium = gone[0].attention[group].medium
                out.append(BlockRemoved(block_hashes=hashes, medium=medium, group_idx=group))
            out += _joined([block.attention[group] for block in new])


_LISTS = ("block_hashes", "token_ids", "extra_keys", "lookahead_token_ids")
"""Fields of a stored event that list something for each block; the last two may be missing."""

_SHARED = (
    *("block_size", "lora_id", "lora_name", "medium", "group_idx", "session_id"),
    *("kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership"),
)
"""Fields that are the same for all blocks of an event; a release may lack some."""


def _split(event: BlockStored) -> Iterable[BlockStored]:
    """Yield an event of each block, with what the whole one said of it."""
    parent = event.parent_block_hash
    for at, key in enumerate(event.block_hashes):
        one = copy(event)
        one.parent_block_hash = parent
        for name in _LISTS:
            size = event.block_size if name == "token_ids" else 1
            if listed := getattr(event, name, None):
                setattr(one, name, listed[at * size : (at + 1) * size])
        yield one
        parent = key


def _joined(events: list[BlockStored]) -> list[BlockStored]:
    """Return one event for blocks that follow each other and differ in nothing else."""
    joined: list[BlockStored] = []
    for event in events:
        continues = bool(joined) and _continues(joined[-1], event)
        if not continues:
            joined.append(copy(event))
        for name in _LISTS:
            if listed := getattr(event, name, None):
                if continues:
                    getattr(joined[-1], name).extend(listed)
                else:
                    setattr(joined[-1], name, list(listed))
    return joined


def _continues(last: BlockStored, event: BlockStored) -> bool:
    if event.parent_block_hash != last.block_hashes[-1]:
        return False
    if (event.extra_keys is None) != (last.extra_keys is None):
        return False
    return all(getattr(last, name, None) == getattr(event, name, None) for name in _SHARED)
