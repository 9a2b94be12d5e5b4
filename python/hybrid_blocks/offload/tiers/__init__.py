"""The tiers below host memory."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import Medium, ReqContext

from hybrid_blocks._core.offload import DiskStore, HostCache, Lookup, ObjectStore, RequestKeys
from hybrid_blocks.offload.tiers.queue import TierQueue


@dataclass
class TiersBelow:
    """The tiers below host memory; iteration begins with the nearest."""

    disk: TierQueue[DiskStore] | None = None
    objects: TierQueue[ObjectStore] | None = None

    def __iter__(self) -> Iterator[TierQueue[Any]]:
        """Iterate over those that are there."""
        return (tier for tier in (self.disk, self.objects) if tier is not None)

    @property
    def num_under_way(self) -> int:
        """Transfers that have not been taken and go on."""
        return sum(tier.num_under_way for tier in self if not tier.is_stuck)

    def for_load(self, context: ReqContext) -> "TiersBelow":
        """Return the tiers that may serve a request's loads and do not stand still."""
        allows = context.load_tier_filter.allows

        def may_load(tier: TierQueue[Any]) -> bool:
            return allows(Medium.STORAGE, tier.locality) and not tier.is_stuck

        disk, objects = self.disk, self.objects
        return TiersBelow(
            disk=disk if disk and may_load(disk) else None,
            objects=objects if objects and may_load(objects) else None,
        )

    def look_up(
        self,
        cache: HostCache,
        keys: RequestKeys,
        *,
        num_computed: int,
        limit: int | None,
        token_seconds: float | None = None,
    ) -> Lookup:
        """Find what of at most ``limit`` tokens to restore from these and host memory.

        That is the longest prefix or, where computing a token takes ``token_seconds``, the one
        from which the request goes on soonest.
        """
        now = time.monotonic()
        return cache.lookup(
            keys,
            num_computed=num_computed,
            limit=limit,
            disk=None if self.disk is None else self.disk.store,
            objects=None if self.objects is None else self.objects.store,
            disk_cost=None if self.disk is None else self.disk.rate.cost(now),
            objects_cost=None if self.objects is None else self.objects.rate.cost(now),
            token_cost=token_seconds,
        )

    def close(self) -> list[TierQueue[Any]]:
        """Finish what was stored and use them no more; return those with transfers under way."""
        tiers = list(self)
        for tier in tiers:
            tier.close()
        self.disk = self.objects = None
        return [tier for tier in tiers if tier.num_under_way]
