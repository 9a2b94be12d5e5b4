"""A Rust manager that keeps a film of what it does."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hybrid_blocks import block_hasher
from hybrid_blocks.manager import Counts, Handles
from hybrid_blocks.plan import ArenaPlan
from hybrid_blocks.replay.film import NO_CHECKPOINT, Film, Lookup
from hybrid_blocks.replay.managers.rust import RustManager
from hybrid_blocks.replay.managers.wrapped import WrappedManager


class FilmedManager(WrappedManager):
    """Does what ``inner`` does. Its core has to have events."""

    def __init__(self, inner: RustManager, geometry: ArenaPlan) -> None:
        super().__init__(inner)
        self.film = Film()
        self._core = inner.core
        self._geometry = geometry
        self._hasher = block_hasher(block_size=geometry.hash_block_size)
        growing = (index for index, group in enumerate(geometry.groups) if group.grows)
        self._attention = next(growing, None)
        self._cached: Counter[bytes] = Counter()
        self._prompts: dict[int, tuple[int, npt.NDArray[np.int32]]] = {}
        self._digests: dict[int, list[bytes]] = {}
        self._slabs = np.zeros(geometry.num_slabs, dtype=np.uint8)
        self.add = inner.add_request
        self.chunk = inner.chunk
        self.append_tokens = inner.append_tokens
        self.preempt = inner.preempt
        self.free = inner.free
        self.stats = inner.stats

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request and return its handle."""
        handle = self.add(request_id, tokens)
        self._prompts[handle] = int(request_id), tokens
        return handle

    def begin_step(self) -> None:
        """Let time pass; note what the cache stored and dropped."""
        self._core.tick()
        self._read(self._core.take_events())

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Note where copies go, and record that tokens were computed."""
        copies = self._core.take_copies()
        for index, group in enumerate(self._geometry.groups):
            targets = copies[copies[:, 0] == index, 2]
            self._slabs[targets // group.blocks_per_slab] = 2 * group.pool + 2
        self._inner.advance(handles, num_tokens)

    def match_prefix(self, handle: int) -> int:
        """Return how many leading tokens the cache holds, and note why not more."""
        matched = self._core.match_prefix(handle)
        if handle in self._prompts:
            request = self._prompts[handle][0]
            limit, attention = self._core.match_limit(handle), None
            if limit == NO_CHECKPOINT and self._attention is not None:
                self._read(self._core.take_events())
                attention = max(self._attention_tokens(handle), matched)
            self.film.lookups[request] = Lookup(limit, attention)
        return matched

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for new tokens; a request that gets it is looked up no more."""
        served = self._inner.allocate(handles, num_new_tokens)
        for handle in handles[:served].tolist():
            self._prompts.pop(handle, None)
            self._digests.pop(handle, None)
        return served

    def sample(self, seconds: float, handles: Handles) -> None:
        """Take a frame, if it is time for one; ``handles`` are those of the running requests."""
        if not self.film.is_time():
            return
        self._slabs[self._slabs % 2 == 1] += 1
        for index, group in enumerate(self._geometry.groups):
            for handle in handles.tolist():
                blocks = self._core.block_ids(handle, index)
                self._slabs[blocks[blocks > 0] // group.blocks_per_slab] = 2 * group.pool + 1
        self.film.add(seconds, self._slabs[1:].copy())

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
