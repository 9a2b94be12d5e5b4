"""The plain Python manager, for one group that keeps every token."""

from collections.abc import Sequence

from hybrid_blocks.reference import ReferenceManager
from hybrid_blocks.replay.cache import Cache
from hybrid_blocks.replay.errors import ReplayError


class ReferenceReplayManager(ReferenceManager):
    """The reference as the engine drives it."""

    def begin_step(self) -> None:
        """Do nothing: there is no state to copy, and age is an order."""

    def chunk(self, handle: int, start: int, num_new_tokens: int) -> int:  # noqa: ARG002
        """Return all: a prefill may end anywhere."""
        return num_new_tokens

    def could_hold(self, num_tokens: int, under_way: Sequence[tuple[int, int]]) -> bool:
        """Compare with the blocks without an owner."""
        needed = self._blocks(num_tokens)
        needed += sum(self._blocks(known) - self._blocks(computed) for computed, known in under_way)
        return needed <= self.num_free_blocks

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def stats(self) -> dict[str, int]:
        """Return nothing: the reference does not count."""
        return {}

    @property
    def num_live_blocks(self) -> tuple[int, ...]:
        """Blocks with an owner, pool by pool."""
        return (self.num_blocks - self.num_free_blocks,)

    @property
    def used_bytes(self) -> int:
        """Bytes of blocks with an owner, one byte a token."""
        return (self.num_blocks - self.num_free_blocks) * self.block_size

    @property
    def max_request_tokens(self) -> int:
        """Tokens of the whole pool."""
        return self.num_blocks * self.block_size


def make_reference(cache: Cache) -> ReferenceReplayManager:
    """Make a reference manager of as many tokens."""
    geometry = cache.geometry
    (group, *others) = geometry.groups
    if others or not group.grows or cache.num_speculative_tokens:
        raise ReplayError(
            "the python manager knows one group of layers that keep every token, and no drafts; "
            f"{cache.model.name if cache.model else 'the cache'} has "
            f"{', '.join(group.kind for group in geometry.groups)}. Use --manager rust"
        )
    return ReferenceReplayManager(geometry.usable_slabs * group.blocks_per_slab, group.block_tokens)
