"""A replay as a page shows it: slabs at many times, look-ups and hits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hybrid_blocks import BlockManager, block_hasher
from hybrid_blocks.tools.plan import ArenaPlan
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.replay.managers.rust import RustManager, RustOptions, pools_of

MOST_FRAMES: Final = 400
MOST_TILES: Final = 1000

NO_CHECKPOINT: Final = "no_checkpoint"

Slabs = npt.NDArray[np.uint8]
BlockCounts = npt.NDArray[np.uint16]
Places = npt.NDArray[np.int32]
"""Slabs, each with the pool that has it; shape ``[n, 2]``."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lookup:
    """The last look-up of a request before it first ran.

    Attributes:
        limit: why the hit is not longer, as `BlockManager.match_limit` has it.
        attention_tokens: prompt tokens whose attention was there, if only a state ended the hit.
    """

    limit: str
    attention_tokens: int | None


def slabs_of_a_tile(num_slabs: int) -> int:
    """Return of how many slabs a film keeps one, so that it has ``MOST_TILES`` at most."""
    return -(-num_slabs // MOST_TILES)


class Frame(NamedTuple):
    """Slabs at one time; with many slabs, one of `slabs_of_a_tile`.

    Attributes:
        seconds: virtual time.
        slabs: who holds each slab. 0 is a slab that no frame saw an owner of. A request holds
            blocks in a slab of ``2 * pool + 1``. The pool held ``2 * pool + 2`` last, by blocks or
            a checkpoint.
        live: blocks of each slab that running requests hold.
        used: blocks of each slab that held something since its pool took it.
    """

    seconds: float
    slabs: Slabs
    live: BlockCounts
    used: BlockCounts


@dataclass(slots=True)
class Hit:
    """Where a request's prompt lies when it first runs.

    Attributes:
        request: of the trace.
        tokens: that were found.
        found: of each block with some of them.
        checkpoint: of the states from which the request resumes.
        computed: of each block of attention after the hit, in the order of the prompt.
    """

    request: int
    tokens: int
    found: Places
    checkpoint: Places
    computed: Places


@dataclass(slots=True)
class Thinned(Generic[T]):
    """At most ``2 * MOST_FRAMES`` of many things, spread evenly over their order.

    Each is kept at first. Each time that there are too many, every second one goes, and new ones
    are kept half as often.
    """

    kept: list[T] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def is_time(self) -> bool:
        """Count a thing, and return whether it is to be kept."""
        self._seen += 1
        return self._seen % self._every == 0

    def add(self, thing: T) -> None:
        """Keep a thing."""
        self.kept.append(thing)
        if len(self.kept) > 2 * MOST_FRAMES:
            self.kept = self.kept[1::2]
            self._every *= 2


@dataclass(slots=True)
class Film:
    """Frames of an arena at samples of the engine, hits, and look-ups.

    Attributes:
        geometry: of the arena.
        frames: in the order of time.
        hits: in the order in which their prompts were computed.
        lookups: the look-up of each request of the trace that ran.
    """

    geometry: ArenaPlan
    frames: Thinned[Frame] = field(default_factory=Thinned)
    hits: Thinned[Hit] = field(default_factory=Thinned)
    lookups: dict[int, Lookup] = field(default_factory=dict)


Blocks = npt.NDArray[np.int32]

_NONE: Final[Places] = np.zeros((0, 2), dtype=np.int32)


class FilmedManager(RustManager):
    """Films its core, which has to have events."""

    def __init__(self, core: BlockManager, cache: Cache, options: RustOptions) -> None:
        super().__init__(core, cache, options)
        geometry = cache.geometry
        self.film = Film(geometry)
        self._pool_of_group = np.array([group.pool for group in geometry.groups], dtype=np.int32)
        self._hasher = block_hasher(block_size=geometry.hash_block_size)
        growing = (index for index, group in enumerate(geometry.groups) if group.grows)
        self._attention = next(growing, None)
        self._cached: Counter[bytes] = Counter()
        self._prompts: dict[int, tuple[int, npt.NDArray[np.int32]]] = {}
        self._digests: dict[int, list[bytes]] = {}
        self._slabs = np.zeros(geometry.num_slabs, dtype=np.uint8)
        self._shown = slice(1, None, slabs_of_a_tile(geometry.usable_slabs))
        self._used = [np.zeros((geometry.num_slabs, cut), dtype=bool) for cut in geometry.pools]
        self._hits: dict[int, tuple[Hit, int]] = {}
        self._admitted: set[int] = set()

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request and return its handle."""
        handle = super().add_request(request_id, tokens)
        self._prompts[handle] = int(request_id), tokens
        return handle

    def begin_step(self) -> None:
        """Let time pass; note what the cache stored and dropped."""
        self.core.tick()
        self._read(self.core.take_events())

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Note where copies go, and record that tokens were computed."""
        copies = self._with_pools(self.core.take_copies())
        inside = self.core.take_prefill_checkpoints()
        for pool in range(len(self._used)):
            self._take(pool, copies[copies[:, 4] == pool, 2])
            self._take(pool, inside[self._pool_of_group[inside[:, 1]] == pool, 4])
        for handle in self._hits.keys() & self._admitted:
            self._hits[handle][0].checkpoint = self._resumed_from(handle, copies)
        self._admitted.clear()
        super().advance(handles, num_tokens)
        for handle, (_, prompt) in list(self._hits.items()):
            if self.core.progress(handle)[1] >= prompt:
                self._end(handle)

    def preempt(self, handles: Handles) -> None:
        """Give back the blocks of requests, and note what they held."""
        self._leave(handles)
        self.core.preempt(handles)

    def free(self, handles: Handles) -> None:
        """Give back the blocks of requests and forget the requests, and note what they held."""
        self._leave(handles)
        super().free(handles)

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the cache holds, and note why not more."""
        matched = self.core.match_prefix(handle)
        if handle in self._prompts:
            request = self._prompts[handle][0]
            limit, attention = self.core.match_limit(handle), None
            if limit == NO_CHECKPOINT and self._attention is not None:
                self._read(self.core.take_events())
                attention = max(self._attention_tokens(handle), matched)
            self.film.lookups[request] = Lookup(limit, attention)
        return matched

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for new tokens; a request that gets it is looked up no more."""
        served = super().allocate(handles, num_new_tokens)
        for handle in handles[:served].tolist():
            prompt = self._prompts.pop(handle, None)
            self._digests.pop(handle, None)
            if prompt is not None and self.film.hits.is_time():
                request, tokens = prompt
                self._hits[handle] = self._hit(handle, request), len(tokens)
                self._admitted.add(handle)
        return served

    def sample(self, seconds: float, handles: Handles) -> None:
        """Take a frame, if it is time for one; ``handles`` are those of the running requests."""
        if not self.film.frames.is_time():
            return
        self._slabs[self._slabs % 2 == 1] += 1
        live = [np.zeros_like(used) for used in self._used]
        for index, group in enumerate(self._geometry.groups):
            for handle in handles.tolist():
                blocks = self.core.block_ids(handle, index)
                held = blocks[blocks > 0]
                self._take(group.pool, held)
                live[group.pool].reshape(-1)[held] = True
        for pool, held in enumerate(live):
            self._slabs[held.any(axis=1)] = 2 * pool + 1
        counts = self._of_owners(live), self._of_owners(self._used)
        self.film.frames.add(Frame(seconds, self._slabs[self._shown].copy(), *counts))

    def _with_pools(self, copies: Blocks) -> Blocks:
        """Return copies with the pools of both blocks: the group's, unless they name two."""
        return np.column_stack((copies[:, :3], pools_of(copies, self._pool_of_group)))

    def _take(self, pool: int, blocks: Blocks) -> None:
        """Note that a pool has some blocks; what other pools left in their slabs is gone."""
        slabs = blocks // self._geometry.pools[pool]
        for other, used in enumerate(self._used):
            if other != pool:
                used[slabs] = False
        self._used[pool].reshape(-1)[blocks] = True
        self._slabs[slabs] = 2 * pool + 2

    def _leave(self, handles: Handles) -> None:
        """Note what requests hold that are about to give it back."""
        for handle in handles.tolist():
            for index, group in enumerate(self._geometry.groups):
                blocks = self.core.block_ids(handle, index)
                self._take(group.pool, blocks[blocks > 0])
            if handle in self._hits:
                self._end(handle)

    def _of_owners(self, blocks: Sequence[npt.NDArray[np.bool_]]) -> npt.NDArray[np.uint16]:
        """Count blocks of each slab's owner."""
        owners = (self._slabs[self._shown] + 1) // 2
        counts = np.zeros(len(owners), dtype=np.uint16)
        for pool, held in enumerate(blocks):
            counts[owners == pool + 1] = held[self._shown][owners == pool + 1].sum(axis=1)
        return counts

    def _hit(self, handle: int, request: int) -> Hit:
        _, tokens, _ = self.core.progress(handle)
        found = [_NONE]
        for index, group in enumerate(self._geometry.groups):
            if group.slots_per_request is None and group.encoder_tokens is None:
                blocks = self.core.block_ids(handle, index)[: tokens // group.block_tokens]
                found.append(self._places_of(group.pool, blocks[blocks > 0]))
        return Hit(request, tokens, np.concatenate(found), _NONE, _NONE)

    def _resumed_from(self, handle: int, copies: npt.NDArray[np.int32]) -> Places:
        """Return where the states are that are copied to a request."""
        sources = [_NONE]
        for index, group in enumerate(self._geometry.groups):
            if group.slots_per_request is not None:
                of_group = copies[copies[:, 0] == index]
                own = np.isin(of_group[:, 2], self.core.block_ids(handle, index))
                own &= of_group[:, 4] == group.pool
                for pool in set(of_group[own, 3].tolist()):
                    blocks = of_group[own & (of_group[:, 3] == pool), 1]
                    sources.append(self._places_of(pool, blocks))
        return np.concatenate(sources)

    def _places_of(self, pool: int, blocks: Blocks) -> Places:
        slabs = blocks // self._geometry.pools[pool]
        return np.column_stack([slabs, np.full_like(slabs, pool)])

    def _end(self, handle: int) -> None:
        """Note where a prompt lies that is computed, or as far as it came."""
        hit, prompt = self._hits.pop(handle)
        if self._attention is not None:
            group = self._geometry.groups[self._attention]
            first = hit.tokens // group.block_tokens
            last = -(-min(self.core.progress(handle)[1], prompt) // group.block_tokens)
            blocks = self.core.block_ids(handle, self._attention)[first:last]
            hit.computed = self._places_of(group.pool, blocks[blocks > 0])
        self.film.hits.add(hit)

    def _read(self, events: Sequence[tuple[Any, ...]]) -> None:
        for event in events:
            if event[0] == "stored" and event[2] == self._attention:
                self._cached.update(event[6])
            elif event[0] == "removed" and event[2] == self._attention:
                # Several blocks may have the same content.
                self._cached[event[1]] -= 1
                if self._cached[event[1]] <= 0:
                    del self._cached[event[1]]

    def _attention_tokens(self, handle: int) -> int:
        if handle not in self._digests:
            self._digests[handle] = self._hasher.hash_blocks(self._prompts[handle][1][:-1])
        found = 0
        for digest in self._digests[handle]:
            if digest not in self._cached:
                break
            found += 1
        return found * self._hasher.block_size
