"""Memory that an engine holds for prompts until another engine has read them."""

from collections.abc import Sequence
from typing import Any, Final

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.errors import InvalidArgumentError

SHARE: Final = "held_share"
"""The option: how much of the memory waiting prompts may hold, 0 to 1."""
DEFAULT_SHARE: Final = 0.5


class Held:
    """Slabs of finished prompts, up to a share of all. Shared blocks count for each prompt."""

    def __init__(self, config: Any, share: object) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidArgumentError(f'"{SHARE}" is {share!r}; write a number from 0 to 1')
        self._config = config
        self._most = int(share * config.num_blocks)
        self._slabs: dict[str, int] = {}
        self.num_slabs = 0
        self.num_refused = 0

    def take(self, request: str, block_ids: Sequence[Sequence[int]]) -> bool:
        """Note what a prompt holds from now on; return whether there is room for it."""
        slabs = sum(
            ceil_div(sum(map(bool, ids)), self._config.blocks_per_slab_of(group))
            for group, ids in enumerate(block_ids)
        )
        if self.num_slabs + slabs > self._most:
            self.num_refused += 1
            return False
        self._slabs[request] = slabs
        self.num_slabs += slabs
        return True

    def give_back(self, request: str) -> None:
        """Note that a prompt holds nothing any more."""
        self.num_slabs -= self._slabs.pop(request, 0)
