"""Transfers between the region and a tier below it, on threads of their own."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import Locality
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks._core.offload import ChunkRegion
from hybrid_blocks.offload.layout import group_number
from hybrid_blocks.offload.tiers.codec import Codec
from hybrid_blocks.offload.tiers.rates import Read, ReadRate
from hybrid_blocks.offload.tiers.workers import Workers
from hybrid_blocks.vllm.log import logger

if TYPE_CHECKING:
    from hybrid_blocks._core.offload import ChunkStore

# In each direction, so that reads do not wait behind writes.
_NUM_THREADS: Final = 4
# Bytes of a transfer after which it is known to go on.
_PART_BYTES: Final = 16 << 20
# Seconds without any progress after which a tier is gone on without.
PATIENCE: Final = 10.0
# Seconds that the end of an engine or a reset waits for transfers that do make progress.
_LONGEST_WAIT: Final = 30.0


StoreT = TypeVar("StoreT", bound="ChunkStore")


@dataclass(frozen=True)
class Chunks:
    """Chunks of one transfer: names, tokens that they stand for, and first bytes in the region."""

    keys: Sequence[bytes]
    tokens: list[int]
    offsets: list[int]

    def select(self, places: Sequence[int]) -> "Chunks":
        """Return those at ``places``."""
        return Chunks(
            [self.keys[at] for at in places],
            [self.tokens[at] for at in places],
            [self.offsets[at] for at in places],
        )


@dataclass(frozen=True)
class Done:
    """A transfer that ended. ``ok`` says which chunks were transferred."""

    chunks: Chunks
    ok: list[bool]
    is_read: bool


class TierQueue(Generic[StoreT]):
    """Reads and writes under way. The caller keeps their slots from being used meanwhile.

    ``name`` is for logs; ``source`` and ``locality`` are what vLLM calls the tier. ``rate`` is what
    reads were measured to take.
    """

    def __init__(
        self,
        store: StoreT,
        region: npt.NDArray[np.uint8],
        chunk_bytes: Sequence[int],
        *,
        name: str,
        source: CacheHitSource,
        locality: Locality,
        codec: Codec | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """Transfer chunks of ``chunk_bytes``, by vLLM's group number, to and from ``region``.

        The tier has them in the form of ``codec``, or as they are. After ``patience`` seconds
        without progress `is_stuck` says so.
        """
        self.store = store
        self.name = name
        self.source = source
        self.locality = locality
        self._region: npt.NDArray[np.uint8] | None = region
        self._places = ChunkRegion(region, chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._codec = codec
        self._patience = patience
        self.rate = ReadRate()
        self._readers = Workers(_NUM_THREADS, f"hybrid-blocks-{source.value}-reads")
        self._writers = Workers(_NUM_THREADS, f"hybrid-blocks-{source.value}-writes")
        self._jobs: dict[Future[list[bool]], tuple[Chunks, bool]] = {}
        self._measured: dict[Future[list[bool]], Read] = {}
        # When anything was last transferred: by writes, by reads.
        self._progressed = [0.0, 0.0]

    @property
    def num_under_way(self) -> int:
        """Transfers that have not been taken by `finished`."""
        return len(self._jobs)

    @property
    def is_stuck(self) -> bool:
        """Whether transfers are under way and none of a direction has made progress for long."""
        now = time.monotonic()
        waits = (now - self._progressed[is_read] for is_read in self._directions())
        return any(seconds > self._patience for seconds in waits)

    def _directions(self) -> set[bool]:
        """Whether reads, writes or both are under way."""
        return {is_read for job, (_, is_read) in self._jobs.items() if not job.done()}

    def keys_being_read(self) -> set[bytes]:
        """Chunks whose reads have not been taken by `finished`."""
        return {key for chunks, is_read in self._jobs.values() if is_read for key in chunks.keys}

    def size(self, key: bytes) -> int:
        """Bytes of a chunk."""
        return self._chunk_bytes[group_number(key)]

    def read(self, chunks: Chunks) -> None:
        """Begin to fill chunks' slots from the tier."""
        self._begin(chunks, is_read=True)

    def write(self, chunks: Chunks) -> None:
        """Begin to store chunks."""
        self._begin(chunks, is_read=False)

    def _begin(self, chunks: Chunks, *, is_read: bool) -> None:
        if is_read not in self._directions():
            self._note_progress(is_read=is_read)
        if is_read:
            read = self.rate.begin(sum(map(self.size, chunks.keys)), time.monotonic())
            job = self._readers.submit(lambda: self._measure(chunks, read))
            self._measured[job] = read
        else:
            job = self._writers.submit(lambda: self._write(chunks))
        self._jobs[job] = (chunks, is_read)

    def _note_progress(self, *, is_read: bool) -> None:
        self._progressed[is_read] = time.monotonic()

    def _measure(self, chunks: Chunks, read: Read) -> list[bool]:
        try:
            return self._read(chunks)
        finally:  # here, as the scheduler may ask much later
            read.ended = time.monotonic()

    def _parts(self, chunks: Chunks, *, is_read: bool) -> Iterator[tuple[bool, list[int]]]:
        """Yield whether chunks are stored as they are, and where they are in the transfer."""
        codec = self._codec
        for is_plain in (True, False):
            part: list[int] = []
            size = 0
            for at, key in enumerate(chunks.keys):
                if (codec is None or codec.is_plain(key)) is not is_plain:
                    continue
                if part and size + self.size(key) > _PART_BYTES:
                    yield is_plain, part
                    self._note_progress(is_read=is_read)
                    part, size = [], 0
                part.append(at)
                size += self.size(key)
            if part:
                yield is_plain, part
                self._note_progress(is_read=is_read)

    def _views(self, chunks: Chunks) -> list[npt.NDArray[np.uint8]]:
        assert self._region is not None
        places = zip(chunks.keys, chunks.offsets, strict=True)
        return [self._region[offset : offset + self.size(key)] for key, offset in places]

    def _read(self, chunks: Chunks) -> list[bool]:
        ok = [False] * len(chunks.keys)
        for is_plain, places in self._parts(chunks, is_read=True):
            part = chunks.select(places)
            loaded = self._load_plain(part) if is_plain else self._load_coded(part)
            for at, is_loaded in zip(places, loaded, strict=True):
                ok[at] = is_loaded
        return ok

    def _write(self, chunks: Chunks) -> list[bool]:
        for is_plain, places in self._parts(chunks, is_read=False):
            part = chunks.select(places)
            if is_plain:
                self._store_plain(part)
            else:
                assert self._codec is not None
                self._codec.write(self.store, part.keys, part.tokens, self._views(part))
        return [True] * len(chunks.keys)

    def _load_plain(self, chunks: Chunks) -> list[bool]:
        return self.store.load_into(self._places, chunks.keys, chunks.offsets)

    def _load_coded(self, chunks: Chunks) -> list[bool]:
        assert self._codec is not None
        return self._codec.read(self.store, chunks.keys, self._views(chunks))

    def _store_plain(self, chunks: Chunks) -> None:
        self.store.store_from(self._places, chunks.keys, chunks.tokens, chunks.offsets)

    def finished(self, *, wait: bool = False) -> list[Done]:
        """Return the transfers that ended since this was last asked.

        With ``wait``, that is all of them, unless they are stuck or take very long.
        """
        if wait:
            self._wait(lambda: [job for job in self._jobs if not job.done()])
        ended: list[Done] = []
        for job in [job for job in self._jobs if job.done()]:
            chunks, is_read = self._jobs.pop(job)
            if (error := job.exception()) is not None:
                what = "read" if is_read else "write"
                logger.warning("A %s of %s failed: %s", what, self.name, str(error))
            # A transfer that raised has put nothing in place.
            ok = [False] * len(chunks.keys) if error else job.result()
            if (read := self._measured.pop(job, None)) is not None:
                self.rate.end(read, is_whole=all(ok))
            ended.append(Done(chunks, ok, is_read))
        return ended

    def _wait(self, left: Callable[[], list[Future[list[bool]]]]) -> None:
        deadline = time.monotonic() + _LONGEST_WAIT
        while (jobs := left()) and not self.is_stuck and time.monotonic() < deadline:
            wait(jobs, timeout=min(1.0, self._patience / 4), return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads and let the tier finish its stores, if it makes progress."""
        is_stuck = self.is_stuck
        self._readers.close(0.0 if is_stuck else self._patience)
        self._writers.close(0.0 if is_stuck else self._patience)
        closing = Workers(1, "hybrid-blocks-close")
        done, _ = wait([closing.submit(self.store.close)], timeout=self._patience)
        closing.close(self._patience if done else 0.0)
        if not done or self._jobs:
            logger.warning("%s does not answer; what it was to store is lost.", self.name)
        if not self._jobs:
            self._region = None
