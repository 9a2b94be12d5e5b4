"""How large the tiers are."""

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
