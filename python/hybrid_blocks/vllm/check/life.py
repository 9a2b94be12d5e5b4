"""Requests and blocks as a check of provenance remembers them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from hybrid_blocks.vllm.specs import is_state, kind_of


@dataclass(eq=False, slots=True)
class Life:
    """A request from an admission to its end or its preemption."""

    request: Any
    tables: list[list[int]]
    state_size: int
    """Tokens a block of states."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of tokens: the states at block borders inside them are nowhere."""
    after_drafts: tuple[int, int] | None = None
    """Tokens that the last chunk ended after, drafts included, and without them."""
    final: int | None = None
    """Tokens computed when it ended."""

    @property
    def num_written(self) -> int:
        """Tokens whose content is written, those of the step at hand included."""
        computed: int = self.request.num_computed_tokens if self.final is None else self.final
        return computed

    def added(self, tables: Sequence[list[int]]) -> list[list[int]]:
        """Return what whole tables have beyond the blocks that are known."""
        return [ids[len(table) :] for table, ids in zip(self.tables, tables, strict=True)]

    def note_chunk(self, end: int, num_drafts: int, count: int) -> None:
        """Remember where a chunk ends that is about to be computed."""
        if self.after_drafts:
            known, kept = self.after_drafts[1], self._last_border(end - count)
            if kept - known >= self.state_size:
                self.gaps.append((known - 1, kept))
        if count > 1 + num_drafts:
            self.gaps.append((end - count, end - num_drafts))
        self.after_drafts = (end, end - num_drafts) if num_drafts else None

    def state_length(self, column: int, computed: int) -> int:
        """Return after how many tokens the state in a column is; -1 if it is none of its border.

        ``computed`` tokens count once the drafts of the last chunk are accepted or rejected.
        """
        end, known = self.after_drafts or (computed, computed)
        border, kept = (column + 1) * self.state_size, self._last_border(computed)
        # After a step with drafts, workers move the state at the last border to that border's
        # column, and the states at earlier borders nowhere.
        if known <= border <= kept:
            return border if border == kept else -1
        if column >= (end - 1) // self.state_size:
            return known
        is_inside = any(begin < border < end for begin, end in self.gaps)
        return -1 if is_inside or border > computed else border

    def _last_border(self, length: int) -> int:
        return length // self.state_size * self.state_size

    def agrees(self, other: "Life", length: int, hash_block_size: int) -> bool:
        """Return whether both have the same first ``length`` tokens, as their digests say."""
        if self.request is other.request:
            return True
        full, rest = divmod(length, hash_block_size)
        ours, theirs = self.request, other.request
        if full and (
            len(ours.block_hashes) < full
            or len(theirs.block_hashes) < full
            or ours.block_hashes[full - 1] != theirs.block_hashes[full - 1]
        ):
            return False
        start = length - rest
        same: bool = ours.all_token_ids[start:length] == theirs.all_token_ids[start:length]
        return same


@dataclass(frozen=True, slots=True)
class Group:
    """The facts of a group that tell which of its blocks a request still reads."""

    number: int
    pool: int
    per_slab: int
    kept_pool: int
    kept_per_slab: int
    block_size: int
    is_state: bool
    is_cached: bool
    is_zeroed: bool
    window: int
    chunk: int

    def first_needed(self, num_computed: int) -> int:
        """Return the first column that a request reads after ``num_computed`` tokens."""
        if self.is_state:
            return max(0, num_computed - 1) // self.block_size
        if self.window:
            return max(0, num_computed - self.window + 1) // self.block_size
        if self.chunk:
            return num_computed // self.chunk * self.chunk // self.block_size
        return 0


@dataclass(eq=False, slots=True)
class Content:
    """The content of a block: the part of a life's tokens at ``column`` of its table.

    A state that was copied to a slot of its own is that after ``length`` tokens.
    """

    life: Life
    group: Group
    column: int
    length: int | None = None


def group_of(config: KVCacheConfig, number: int, dcp_world_size: int) -> Group:
    """Return the facts of a group of a configuration, over blocks or over slabs."""
    spec: Any = config.kv_cache_groups[number].kv_cache_spec
    kind = kind_of(spec)
    size = kind.parameters.get("window", 0)
    slabs: Any = config if hasattr(config, "blocks_per_slab_of") else None
    pools = (slabs.pools[number], slabs.kept_pool_of(number)) if slabs else (0, 0)
    sizes = [slabs.blocks_per_slab[pool] if slabs else 1 for pool in pools]
    return Group(
        number=number,
        pool=pools[0],
        per_slab=sizes[0],
        kept_pool=pools[1],
        kept_per_slab=sizes[1],
        block_size=resolve_dcp_kv_block_size(spec, dcp_world_size),
        is_state=is_state(spec),
        is_cached=getattr(spec, "prefix_cacheable", True),
        is_zeroed=isinstance(spec, FullAttentionSpec),
        window=size if kind.name == "sliding_window" else 0,
        chunk=size if kind.name == "chunked" else 0,
    )
