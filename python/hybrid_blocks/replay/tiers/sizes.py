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
"""The fewest pages of a chunk. The disk rounds a chunk up to whole pages, and does not scale the
pages that a segment has beside its chunks. Both then change little, never in the disk's favour."""


@dataclass(frozen=True)
class Scale:
    """One byte stands for ``factor`` bytes. Chunks are rounded up, what holds them down."""

    factor: int

    @classmethod
    def of(cls, chunk_bytes: Sequence[int]) -> "Scale":
        """The largest power of two that leaves the smallest chunk enough pages."""
        pages = min(size for size in chunk_bytes if size) // PAGE
        return cls(1 << max(0, (pages // _PAGES_A_CHUNK).bit_length() - 1))

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
