"""The bytes of the tiers below the device: given, and at a model's scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.units import parse_memory


@dataclass(frozen=True, kw_only=True)
class TierBytes:
    """Bytes of host memory and, below it, of a disk; 0 where there is no disk."""

    host: int
    disk: int = 0

    @classmethod
    def parse(cls, host: str | None, disk: str | None) -> "TierBytes | None":
        """Read ``--host`` and ``--disk``; None if neither is given.

        Raises:
            InvalidArgumentError: no size.
            ReplayError: a disk without host memory, through which its chunks go.

        """
        if host is None:
            if disk is not None:
                raise ReplayError(
                    f"--disk {disk} without --host: chunks go to the disk and back through host "
                    "memory; give for example --host 64GiB too"
                )
            return None
        return cls(
            host=parse_memory(host, "--host"),
            disk=0 if disk is None else parse_memory(disk, "--disk"),
        )


PAGE = 4096
_PAGES_A_CHUNK = 128
"""The fewest pages of the largest chunk, and the share of any that rounding may add, as a divisor.

The disk rounds a chunk up to whole pages, and does not scale the pages that a segment has beside
its chunks. Both then change little, never in the disk's favour."""


@dataclass(frozen=True)
class Scale:
    """One byte stands for ``factor`` bytes. Chunks are rounded up, what holds them down."""

    factor: int

    @classmethod
    def of(cls, chunk_bytes: Sequence[int]) -> "Scale":
        """The largest power of two that leaves chunks enough pages, or rounds them little."""
        sizes = [size for size in chunk_bytes if size]
        most = max(max(sizes) // (PAGE * _PAGES_A_CHUNK), 1).bit_length()
        scales = [cls(1 << power) for power in reversed(range(most))]
        return next((it for it in scales if it._adds_little(sizes)), cls(1))

    def _adds_little(self, sizes: Sequence[int]) -> bool:
        added = (self.chunk(size) * self.factor - size for size in sizes)
        return all(more * _PAGES_A_CHUNK <= size for more, size in zip(added, sizes, strict=True))

    def chunk(self, num_bytes: int) -> int:
        """Bytes that stand for a chunk, in whole pages."""
        return -(-num_bytes // (self.factor * PAGE)) * PAGE

    def disk(self, num_bytes: int) -> int:
        """Bytes that stand for a disk."""
        return num_bytes // self.factor

    def segment(self, num_bytes: int, largest_chunk: int) -> int:
        """Bytes that stand for a segment of a disk of ``num_bytes``, in whole pages.

        As the disk tier chooses them: beside its largest chunk a segment has four pages.
        """
        whole = min(max(num_bytes // 64, 16 << 20), 256 << 20, num_bytes // 4)
        least = self.chunk(largest_chunk) + 4 * PAGE
        return max(whole // (self.factor * PAGE) * PAGE, least)
