"""Transfers between the region and a tier below it, on threads of their own."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import Locality
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from hybrid_blocks.offload.codec import Codec
from hybrid_blocks.offload.groups import group_number
from hybrid_blocks.offload.rates import Read, ReadRate

_NUM_THREADS = 4


class Store(Protocol):
    """A tier below host memory, for any number of threads."""

    @property
    def is_paused(self) -> bool:
        """Whether nothing is stored for now."""
        ...

    def take_warnings(self) -> list[str]:
        """Return what went wrong since this was last asked."""
        ...

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Say which chunks can be read, without waiting."""
        ...

    def store(
        self, keys: Sequence[bytes], tokens: Sequence[int], chunks: Sequence[npt.NDArray[np.uint8]]
    ) -> int:
        """Store chunks; return how many were taken."""
        ...

    def load(self, keys: Sequence[bytes], chunks: Sequence[npt.NDArray[np.uint8]]) -> list[bool]:
        """Fill arrays with chunks; ``False`` for what could not be read."""
        ...

    def close(self) -> None:
        """Finish what was stored."""
        ...


StoreT = TypeVar("StoreT", bound=Store)


@dataclass(frozen=True)
class Chunks:
    """Chunks of one transfer: names, tokens that they stand for, and first bytes in the region."""

    keys: Sequence[bytes]
    tokens: list[int]
    offsets: list[int]


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
    ) -> None:
        """Transfer chunks of ``chunk_bytes``, by vLLM's group number, to and from ``region``.

        The tier has them in the form of ``codec``, or as they are.
        """
        self.store = store
        self.name = name
        self.source = source
        self.locality = locality
        self._region: npt.NDArray[np.uint8] | None = region
        self._chunk_bytes = chunk_bytes
        self._codec = codec
        self.rate = ReadRate()
        self._threads = ThreadPoolExecutor(_NUM_THREADS, f"hybrid-blocks-{source.value}")
        self._jobs: dict[Future[list[bool]], tuple[Chunks, bool]] = {}
        self._measured: dict[Future[list[bool]], Read] = {}

    @property
    def num_under_way(self) -> int:
        """Transfers that have not been taken by `finished`."""
        return len(self._jobs)

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
        if is_read:
            read = self.rate.begin(sum(map(self.size, chunks.keys)), time.monotonic())
            job = self._threads.submit(self._measure, chunks, read)
            self._measured[job] = read
        else:
            job = self._threads.submit(self._write, chunks)
        self._jobs[job] = (chunks, is_read)

    def _measure(self, chunks: Chunks, read: Read) -> list[bool]:
        try:
            return self._read(chunks)
        finally:  # here, as the scheduler may ask much later
            read.ended = time.monotonic()

    def _views(self, chunks: Chunks) -> list[npt.NDArray[np.uint8]]:
        assert self._region is not None
        places = zip(chunks.keys, chunks.offsets, strict=True)
        return [self._region[offset : offset + self.size(key)] for key, offset in places]

    def _read(self, chunks: Chunks) -> list[bool]:
        if self._codec is not None:
            return self._codec.read(self.store, chunks.keys, self._views(chunks))
        return self.store.load(chunks.keys, self._views(chunks))

    def _write(self, chunks: Chunks) -> list[bool]:
        if self._codec is not None:
            self._codec.write(self.store, chunks.keys, chunks.tokens, self._views(chunks))
        else:
            self.store.store(chunks.keys, chunks.tokens, self._views(chunks))
        return [True] * len(chunks.keys)

    def finished(self, *, wait: bool = False) -> list[Done]:
        """Return the transfers that ended since this was last asked; with ``wait``, all of them."""
        ended: list[Done] = []
        for job in [job for job in self._jobs if wait or job.done()]:
            chunks, is_read = self._jobs.pop(job)
            # A transfer that raised has put nothing in place.
            ok = [False] * len(chunks.keys) if job.exception() else job.result()
            if (read := self._measured.pop(job, None)) is not None:
                self.rate.end(read, is_whole=all(ok))
            ended.append(Done(chunks, ok, is_read))
        return ended

    def close(self) -> None:
        """End the threads and let the tier finish what was stored."""
        self._threads.shutdown(wait=True)
        self._region = None
        self.store.close()
