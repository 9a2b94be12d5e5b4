"""The chunks that came to a tier and left it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Counts chunks by the bytes that they take in host memory and on the disk.

    ``host_bytes`` and ``disk_bytes`` tell those of a key. A promotion is a chunk that was read from
    the disk to host memory; it is wasted if it leaves host memory, or is there in the end, without
    having been loaded.
    """

    host_bytes: Callable[[bytes], int]
    disk_bytes: Callable[[bytes], int]
    host_stored_bytes: int = 0
    host_evicted_bytes: int = 0
    host_refused_stores: int = 0
    disk_stored_bytes: int = 0
    disk_refused_chunks: int = 0
    loaded_chunks: int = 0
    promotions: int = 0
    promoted_bytes: int = 0
    _wasted: int = 0
    _unused: set[bytes] = field(default_factory=set)

    @property
    def wasted_promotions(self) -> int:
        """Promotions that no request loaded so far."""
        return self._wasted + len(self._unused)

    def store(self, keys: Iterable[bytes] | None) -> None:
        """Note chunks copied from the device to host memory; None if they had no room."""
        if keys is None:
            self.host_refused_stores += 1
            return
        self.host_stored_bytes += sum(map(self.host_bytes, keys))

    def evict(self, keys: Iterable[bytes]) -> None:
        """Note chunks whose place in host memory was taken."""
        for key in keys:
            self.host_evicted_bytes += self.host_bytes(key)
            if key in self._unused:
                self._unused.remove(key)
                self._wasted += 1

    def promote(self, keys: Iterable[bytes]) -> None:
        """Note chunks read from the disk to host memory."""
        for key in keys:
            self.promotions += 1
            self.promoted_bytes += self.disk_bytes(key)
            self._unused.add(key)

    def load(self, keys: Iterable[bytes]) -> None:
        """Note chunks copied from host memory to the device."""
        for key in keys:
            self.loaded_chunks += 1
            self._unused.discard(key)

    def write(self, keys: Iterable[bytes]) -> None:
        """Note chunks written to the disk."""
        self.disk_stored_bytes += sum(map(self.disk_bytes, keys))
