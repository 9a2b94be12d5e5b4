"""Host memory as the manager sees it: the core's books, and reports of them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import BlockIDsLoadStoreSpec, Medium, OffloadingEvent, OffloadKey

from hybrid_blocks._core.offload import HostCache
from hybrid_blocks.offload.layout import Groups, group_number
from hybrid_blocks.offload.manager.metrics import Counts

ABSENT, PENDING, READY = range(3)


class HostLoadStoreSpec(BlockIDsLoadStoreSpec):
    """The manager's message to workers: chunks by the first byte of each in the region.

    ``block_ids`` holds these bytes as ``int64``: vLLM's worker only counts and slices them.
    """

    def __init__(self, offsets: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Name chunks in the order of the blocks on the device."""
        super().__init__([])
        self.block_ids = np.asarray(offsets, dtype=np.int64)


class Host:
    """The core's `HostCache` with metrics and events."""

    def __init__(
        self, groups: Groups, num_bytes: int, *, with_events: bool, is_written_back: bool
    ) -> None:
        """Keep the books of ``num_bytes`` for chunks of ``groups``.

        ``is_written_back`` says whether tiers below get what a request stored, once it ends.
        """
        numbered = groups.by_number()
        self.num_bytes = num_bytes
        self._chunk_bytes = [groups.chunk_bytes(group) if group else 0 for group in numbered]
        self.cache = HostCache(
            num_bytes,
            hash_block_size=groups.tokens_per_hash,
            chunk_tokens=[group.tokens if group else 0 for group in numbered],
            chunk_bytes=self._chunk_bytes,
            windows=[group.window if group else None for group in numbered],
            drafters=[group.number for group in groups.all if group.is_drafter],
            is_written_back=is_written_back,
        )
        self.counts = Counts()
        self._events: list[OffloadingEvent] | None = [] if with_events else None

    def begin_store(
        self, chain: int, keys: Sequence[bytes], tokens: Sequence[int]
    ) -> tuple[dict[bytes, int] | None, list[OffloadKey]]:
        """Take slots for chunks that are neither here nor on their way.

        Returns the first byte of each by its key, ``None`` if nothing had room, and the keys that
        were evicted.
        """
        begun = self.cache.begin_store(chain, keys, tokens)
        evicted = [OffloadKey(key) for key in self.cache.take_evicted()]
        self.counts.evicted_chunks += len(evicted)
        self._note(evicted, removed=True)
        if begun is None:
            return None, evicted
        stored, offsets = begun
        return dict(zip(stored, offsets.tolist(), strict=True)), evicted

    def complete_store(self, keys: Sequence[bytes], *, success: bool) -> int:
        """Let chunks that were copied be found; return how many were on their way."""
        ended = [OffloadKey(key) for key in self.cache.complete_store(keys, success)]
        # A failed store was never announced; vLLM only drops the metadata that it noted.
        self._note(ended, removed=not success, metadata_only=not success)
        return len(ended)

    def size(self, keys: Iterable[bytes]) -> int:
        """Bytes of chunks."""
        return sum(self._chunk_bytes[group_number(key)] for key in keys)

    @property
    def is_busy(self) -> bool:
        """Whether transfers that will end keep anything from eviction."""
        return self.cache.pinned_bytes > 0 or self.cache.num_pending > 0

    def take_events(self) -> list[OffloadingEvent]:
        """Return what was stored, evicted and given up since this was last asked."""
        if self._events is None:
            return []
        events, self._events = self._events, []
        # A chunk whose copy failed may be on its way again: what is noted of it is still needed.
        return [event for event in map(self._without_retried, events) if event.keys]

    def _without_retried(self, event: OffloadingEvent) -> OffloadingEvent:
        if not event.metadata_only:
            return event
        presences = self.cache.presences(list(event.keys))
        here = zip(event.keys, presences, strict=True)
        return replace(event, keys=[key for key, presence in here if presence == ABSENT])

    def _note(self, keys: list[OffloadKey], *, removed: bool, metadata_only: bool = False) -> None:
        if keys and self._events is not None:
            self._events.append(
                OffloadingEvent(
                    keys=keys, medium=Medium.CPU, removed=removed, metadata_only=metadata_only
                )
            )
