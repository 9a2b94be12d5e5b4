"""Blocks that stores copy from: they keep an owner until the copies have ended."""

from collections.abc import Iterable
from typing import Any, NamedTuple

_SHARE = 10
"""States may keep this part of the slabs from others for their copies alone, as a divisor."""


class Pin(NamedTuple):
    """A block that is owned for a copy."""

    pool: int
    block: Any
    is_state: bool


class Sources:
    """Owns what is being copied, so that no other request gets it meanwhile."""

    def __init__(self, manager: Any) -> None:
        """Own blocks of a manager at level ``natural``."""
        config = manager.kv_cache_config
        self._pools = manager.block_pool.pools
        self._pool_of: tuple[int, ...] = config.pools
        # A checkpoint of all groups always fits.
        self._most_states = max(config.num_blocks // _SHARE, 2 * len(config.kv_cache_groups))
        self._num_states = 0

    def at(self, group: int, block_id: int) -> Pin:
        """Own an attention block that a request holds."""
        pool = self._pool_of[group]
        return self._own(Pin(pool, self._pools[pool][block_id], is_state=False))

    def left(self, group: int, key: bytes) -> Pin | None:
        """Own the attention block that a key leads to; ``None`` if it is gone."""
        pool = self._pool_of[group]
        block = self._pools[pool].get(key)
        return None if block is None else self._own(Pin(pool, block, is_state=False))

    def of(self, group: int, key: bytes) -> Pin | None:
        """Own the state that a key leads to; ``None`` if it is gone, or too many are owned."""
        pool = self._pool_of[group]
        block = self._pools[pool].get(key)
        if block is None or self._num_states >= self._most_states:
            return None
        return self._own(Pin(pool, block, is_state=True))

    def free(self, pins: Iterable[Pin]) -> None:
        """Own blocks no longer."""
        for pin in pins:
            self._num_states -= pin.is_state
            self._pools[pin.pool].free([pin.block])

    def _own(self, pin: Pin) -> Pin:
        self._num_states += pin.is_state
        self._pools[pin.pool].touch([pin.block])
        return pin
