"""Transfers between the region and the disk, on threads of their own."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hybrid_blocks._core.offload import DiskStore

_NUM_THREADS = 4


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


class DiskQueue:
    """Reads and writes under way. The caller keeps their slots from being used meanwhile."""

    def __init__(
        self, disk: DiskStore, region: npt.NDArray[np.uint8], chunk_bytes: Sequence[int]
    ) -> None:
        """Transfer chunks of ``chunk_bytes``, by vLLM's group number, to and from ``region``."""
        self.disk = disk
        self._region: npt.NDArray[np.uint8] | None = region
        self._chunk_bytes = chunk_bytes
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "hybrid-blocks-disk")
        self._jobs: dict[Future[list[bool]], tuple[Chunks, bool]] = {}

    @property
    def num_under_way(self) -> int:
        """Transfers that have not been taken by `finished`."""
        return len(self._jobs)

    def size(self, key: bytes) -> int:
        """Bytes of a chunk."""
        return self._chunk_bytes[int.from_bytes(key[-4:], "big")]

    def read(self, chunks: Chunks) -> None:
        """Begin to fill chunks' slots from the disk."""
        self._begin(chunks, is_read=True)

    def write(self, chunks: Chunks) -> None:
        """Begin to write chunks to the disk."""
        self._begin(chunks, is_read=False)

    def _begin(self, chunks: Chunks, *, is_read: bool) -> None:
        run = self._read if is_read else self._write
        self._jobs[self._threads.submit(run, chunks)] = (chunks, is_read)

    def _views(self, chunks: Chunks) -> list[npt.NDArray[np.uint8]]:
        assert self._region is not None
        places = zip(chunks.keys, chunks.offsets, strict=True)
        return [self._region[offset : offset + self.size(key)] for key, offset in places]

    def _read(self, chunks: Chunks) -> list[bool]:
        return self.disk.load(chunks.keys, self._views(chunks))

    def _write(self, chunks: Chunks) -> list[bool]:
        self.disk.store(chunks.keys, chunks.tokens, self._views(chunks))
        return [True] * len(chunks.keys)

    def finished(self, *, wait: bool = False) -> list[Done]:
        """Return the transfers that ended since this was last asked; with ``wait``, all of them."""
        ended: list[Done] = []
        for job in [job for job in self._jobs if wait or job.done()]:
            chunks, is_read = self._jobs.pop(job)
            # A transfer that raised has put nothing in place.
            ok = [False] * len(chunks.keys) if job.exception() else job.result()
            ended.append(Done(chunks, ok, is_read))
        return ended

    def close(self) -> None:
        """End the threads and seal what was written."""
        self._threads.shutdown(wait=True)
        self._region = None
        self.disk.close()
