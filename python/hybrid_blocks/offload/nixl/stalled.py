"""Reads that do not end in time: their requests go on, and the blocks keep an owner.

NIXL cannot stop a read. An engine that halts still answers its reads when it wakes up.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.slabs.sources import Pin, Sources

TIMEOUT: Final = "read_timeout"
"""The option: the seconds after which a request goes on without what it reads."""
DEFAULT_TIMEOUT_S: Final = 60.0


def timeout_of(transfer: Any) -> float:
    """Return the seconds that a read may take."""
    value = transfer.get_from_extra_config(TIMEOUT, DEFAULT_TIMEOUT_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise InvalidArgumentError(f'"{TIMEOUT}" is {value!r}; write seconds above 0')
    return float(value)


@dataclass(frozen=True, slots=True)
class StalledReads(KVConnectorWorkerMetadata):
    """Requests whose reads a rank gave up, and those whose reads have ended since."""

    given_up: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StalledReads":
        """Return what two ranks report."""
        assert isinstance(other, StalledReads)
        return StalledReads(self.given_up + other.given_up, self.ended + other.ended)


class Stalled:
    """Owns the blocks that a read may still write after its request went on."""

    def __init__(self, manager: Any) -> None:
        """Own no block of a manager at level ``natural``."""
        self._manager = manager
        self._blocks = Sources(manager)
        self._num_ranks: Counter[str] = Counter()
        self._pins: dict[str, list[Pin]] = {}
        self.num_given_up = 0

    @property
    def num_slabs(self) -> int:
        """Slabs that reads which were given up may still write."""
        config = self._manager.kv_cache_config
        slabs = set()
        for pin in (pin for pins in self._pins.values() for pin in pins):
            slabs.add(pin.block.block_id // config.blocks_per_slab[pin.pool])
        return len(slabs)

    def hear(self, reads: StalledReads) -> None:
        """Take the reports of all ranks of a step."""
        self._num_ranks.update(reads.given_up)
        self._num_ranks.subtract(reads.ended)
        for request in set(reads.ended):
            if self._num_ranks[request] <= 0:
                del self._num_ranks[request]
                self._blocks.free(self._pins.pop(request, ()))

    def keep(self, request: str) -> None:
        """Own the blocks of a request before it gives them back, if a read may still write them."""
        if request not in self._num_ranks:
            return
        self.num_given_up += 1
        self._pins[request] = [
            self._blocks.at(group, block)
            for group, blocks in enumerate(self._manager.get_block_ids(request))
            for block in blocks
            if block
        ]
