"""The tiers below host memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import Medium, ReqContext

from hybrid_blocks._core.offload import DiskStore
from hybrid_blocks.offload.tier_queue import TierQueue


@dataclass
class TiersBelow:
    """What lies below host memory, the nearest first when iterated over."""

    disk: TierQueue[DiskStore] | None = None

    def __iter__(self) -> Iterator[TierQueue[Any]]:
        """Iterate over those that are there."""
        return (tier for tier in (self.disk,) if tier is not None)

    @property
    def num_under_way(self) -> int:
        """Transfers that have not been taken."""
        return sum(tier.num_under_way for tier in self)

    def for_load(self, context: ReqContext) -> "TiersBelow":
        """Those that a request may be loaded from."""
        allows = context.load_tier_filter.allows
        disk = self.disk
        return TiersBelow(
            disk=disk if disk and allows(Medium.STORAGE, disk.locality) else None,
        )

    def close(self) -> None:
        """Finish what was stored and use them no more."""
        for tier in self:
            tier.close()
        self.disk = None
