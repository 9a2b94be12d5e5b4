"""Host memory below the device: what it holds, and how long a request waits for it."""

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from hybrid_blocks import BlockManager, block_hasher
from hybrid_blocks._core.offload import HostCache, RequestKeys
from hybrid_blocks.model.layer import State
from hybrid_blocks.tools.plan import GroupPlan
from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.replay.managers.rust import RustManager, RustOptions

BYTES_A_SECOND: Final = 25e9
"""From host memory to a card, by half of what 16 lanes of PCIe 5 carry."""

_Stored = tuple[str, int, int, int, int, bytes, list[bytes]]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt, and the names of what host memory may hold of it."""

    num_tokens: int
    keys: RequestKeys


class HostedManager(RustManager):
    """The device's manager over the host memory of `HybridOffloadingSpec`.

    What the device caches is copied to host memory, states at the places where the device keeps
    them. A request whose prefix reaches further there is loaded before its first step.
    """

    def __init__(self, core: BlockManager, cache: Cache, options: RustOptions) -> None:
        super().__init__(core, cache, options)
        geometry, num_cards = cache.geometry, cache.deployment.tp if cache.deployment else 1
        self._tokens_per_hash = geometry.hash_block_size
        self._hasher = block_hasher(block_size=geometry.hash_block_size)
        self._chunk_tokens = [group.block_tokens for group in geometry.groups]
        self._chunk_bytes = [group.block_bytes * num_cards for group in geometry.groups]
        self._rate = BYTES_A_SECOND * num_cards
        self._host = HostCache(
            options.host_bytes,
            hash_block_size=geometry.hash_block_size,
            chunk_tokens=self._chunk_tokens,
            chunk_bytes=self._chunk_bytes,
            windows=[_window(group) for group in geometry.groups],
        )
        self._prompts: dict[int, _Prompt] = {}
        self._stores: dict[int, int] = {}
        self._loads: dict[int, tuple[int, int, list[bytes]]] = {}
        self._load_seconds = 0.0
        self._loaded_tokens = 0

    def add_request(self, request_id: str, tokens: npt.NDArray[np.int32]) -> int:
        """Register a request; ``request_id`` is its index in the trace."""
        handle = super().add_request(request_id, tokens)
        digests = self._hasher.hash_blocks(tokens)
        chunks = [
            (_key(digests[end // self._tokens_per_hash - 1], group), end)
            for group, size in enumerate(self._chunk_tokens)
            for end in range(size, len(tokens) + 1, size)
        ]
        keys = RequestKeys(self._host)
        keys.extend([key for key, _ in chunks], [end for _, end in chunks])
        self._prompts[handle] = _Prompt(len(tokens), keys)
        return handle

    def match_prefix(self, handle: int) -> int:
        """Return what the device holds, or host memory if that is more."""
        computed = super().match_prefix(handle)
        prompt = self._prompts[handle]
        found = self._host.lookup(prompt.keys, num_computed=computed, limit=prompt.num_tokens - 1)
        self._loads.pop(handle, None)
        if found.num_tokens <= computed:
            return computed
        self._loads[handle] = computed, found.num_tokens, found.on_host
        return found.num_tokens

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:
        """End the chunk where a checkpoint is to be taken."""
        if handle in self._loads and start != self._loads[handle][1]:
            del self._loads[handle]
        return super().chunk(handle, start, num_new_tokens)

    def allocate(self, handles: Handles, num_new_tokens: Counts) -> int:
        """Make room for new tokens, and first for those of host memory."""
        load = self._loads.pop(int(handles[0]), None) if len(handles) == 1 else None
        if load is None:
            return super().allocate(handles, num_new_tokens)
        computed, length, keys = load
        loaded = np.array([length - computed], dtype=np.int32)
        if super().allocate(handles, loaded) == 0:
            return 0
        self.core.advance(handles, loaded)
        if super().allocate(handles, num_new_tokens) == 0:
            self.preempt(handles)
            return 0
        self._host.touch(keys)
        self._loaded_tokens += length - computed
        self._load_seconds += sum(self._chunk_bytes[_group(key)] for key in keys) / self._rate
        return 1

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        """Run the step's copies, and copy to host memory what the device caches."""
        super().advance(handles, num_tokens)
        self._store()

    def free(self, handles: Handles) -> None:
        """Give back the blocks of requests and forget the requests."""
        super().free(handles)
        self._store()
        for handle in handles.tolist():
            del self._prompts[handle]
            if handle in self._stores:
                self._host.close_request(self._stores.pop(handle))

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` with the first contradiction in the books of either."""
        self.core.check_integrity()
        self._host.check_integrity()

    def stats(self) -> dict[str, int]:
        """Return the counters of the device, and the tokens that were loaded."""
        return super().stats() | {"host_tokens": self._loaded_tokens}

    def take_load_seconds(self) -> float:
        """Return how long the loads since the last call took."""
        seconds, self._load_seconds = self._load_seconds, 0.0
        return seconds

    def _store(self) -> None:
        """Copy to host memory what the device has cached since the last call."""
        stored: dict[int, tuple[list[bytes], list[int]]] = {}
        for event in self.core.take_events():
            if event[0] == "stored":
                _, handle, group, first, size, _, digests = cast("_Stored", event)
                keys, ends = stored.setdefault(handle, ([], []))
                keys += [_key(digest, group) for digest in digests]
                ends += [(first + 1 + at) * size for at in range(len(digests))]
        for handle, (keys, ends) in stored.items():
            if (begun := self._host.begin_store(self._chain(handle), keys, ends)) is not None:
                self._host.complete_store(begun[0])
        self._host.take_evicted()

    def _chain(self, handle: int) -> int:
        """Return the number under which host memory knows a request that stores."""
        if handle not in self._stores:
            self._stores[handle] = self._host.open_request(self._prompts[handle].keys)
        return self._stores[handle]


def _key(digest: bytes, group: int) -> bytes:
    return digest + group.to_bytes(4, "big")


def _group(key: bytes) -> int:
    return int.from_bytes(key[-4:], "big")


def _window(group: GroupPlan) -> int | None:
    """Chunks that the next token needs; None for all."""
    if group.kind == State.kind:
        return 1
    return None if group.window is None else -(-(group.window - 1) // group.block_tokens)
