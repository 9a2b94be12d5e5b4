"""``Reach``: the level and the scheduler that an engine reaches. Imports no vLLM."""

import msgspec

from hybrid_blocks.vllm.level import Level

ONE_CALL = "one call"
VLLMS = "vLLM's own"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """The level that an engine reaches: ``natural`` or, if that is refused, the one below it.

    ``manager_level`` is what level ``manager``, the default, comes to.
    """

    level: Level
    why_not_natural: str | None
    manager_level: Level
    why_not_manager: str | None
    why_not_one_call: str | None

    @property
    def scheduler(self) -> str:
        """Return which code schedules decoding requests, unless a variable switches ours off."""
        return VLLMS if self.why_not_one_call else ONE_CALL
