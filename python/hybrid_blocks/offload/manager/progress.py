"""Progress of transfers with the tiers below host memory."""

import time
from typing import Any, Final

from vllm.v1.kv_offload.base import OffloadKey

from hybrid_blocks.offload.manager.host import Host
from hybrid_blocks.offload.manager.promotions import Promotions
from hybrid_blocks.offload.manager.request import RequestState
from hybrid_blocks.offload.manager.write_back import WriteBack
from hybrid_blocks.offload.tiers import TiersBelow
from hybrid_blocks.offload.tiers.queue import TierQueue
from hybrid_blocks.vllm.log import logger

# Seconds that the end of an engine may take beside what is under way then.
_LONGEST_END: Final = 30.0


class Progress:
    """Takes in transfers that ended, and notices tiers that stand still."""

    def __init__(
        self, host: Host, below: TiersBelow, promotions: Promotions, write_back: WriteBack
    ) -> None:
        """Tell ``promotions`` and ``write_back`` of what ended in ``below``."""
        self._host = host
        self._below = below
        self._promotions = promotions
        self._write_back = write_back
        self._stuck: set[TierQueue[Any]] = set()
        # Tiers from before a reset whose transfers use host memory until they end.
        self._unended: list[TierQueue[Any]] = []
        # How often ended transfers were taken, and whether a question did so in this step.
        self._num_taken = 0
        self._has_taken = False

    @property
    def is_void(self) -> bool:
        """Whether host memory is not used, as transfers from before a reset still use it."""
        return bool(self._unended)

    @property
    def is_pending(self) -> bool:
        """Whether transfers are to be taken or begun."""
        if all(tier.is_stuck for tier in self._below):
            return False
        return bool(self._below.num_under_way or self._write_back)

    def take_for(self, state: RequestState, key: OffloadKey) -> None:
        """Take once a step; without steps, when a request's questions begin again."""
        is_anew = state.first_asked == (self._num_taken, key)
        if self._has_taken and not is_anew:
            if state.first_asked[0] != self._num_taken:
                state.first_asked = (self._num_taken, key)
            return
        self._has_taken = True
        state.first_asked = (self._num_taken + 1, key)
        self.take()

    def take(self, *, wait: bool = False) -> None:
        """Take in what ended; with ``wait``, all of it that makes progress."""
        self._num_taken += 1
        for tier in self._below:
            for done in tier.finished(wait=wait):
                if done.is_read:
                    self._promotions.end(tier, done.chunks.keys, done.ok)
                else:
                    self._write_back.end(tier, done.chunks)
            self._note_stuck(tier)
            for message in tier.store.take_warnings():
                logger.warning("%s", message)

    def _note_stuck(self, tier: TierQueue[Any]) -> None:
        """Let requests go on without a tier that stands still, and say so once."""
        if not tier.is_stuck:
            self._stuck.discard(tier)
            return
        self._promotions.give_up(tier)
        if tier not in self._stuck:
            self._stuck.add(tier)
            logger.warning(
                "%s does not answer; requests go on without it until it does.", tier.name
            )

    def end_step(self) -> None:
        """Take what ended in a step, and begin what has room now."""
        self.take()
        self._has_taken = False
        self._write_back.begin()
        if self._unended:
            self.empty_host()

    def finish(self) -> None:
        """Write what is under way and what is left, as far as the tiers go on, and close them."""
        deadline = time.monotonic() + _LONGEST_END
        self.take(wait=True)
        # A part of what is left at a time.
        while self._write_back and time.monotonic() < deadline:
            self._write_back.begin()
            if not self._below.num_under_way:
                break
            self.take(wait=True)
        self._close()

    def abandon(self) -> None:
        """Use the tiers no more. Host memory is empty once no transfer uses it."""
        self.take(wait=True)
        self._unended += self._close()
        self._promotions.clear()
        self.empty_host()

    def _close(self) -> list[TierQueue[Any]]:
        unended = self._below.close()
        self._write_back.clear()
        self._stuck.clear()
        return unended

    def empty_host(self) -> None:
        """Empty host memory, once no transfer from before uses it any more."""
        for tier in self._unended:
            tier.finished()
        self._unended = [tier for tier in self._unended if tier.num_under_way]
        if not self._unended:
            self._host.cache.reset()
