"""Follows the numbers of a publisher's messages: none is written twice, none is lost in silence."""

from collections.abc import Callable, Iterator

from hybrid_blocks.trace.kv_events.message import decode
from hybrid_blocks.trace.kv_events.recorder import EventRecorder

Message = tuple[int, bytes]
"""A message's number and its payload."""


class Follower:
    """Puts messages in order and writes them.

    Attributes:
        num_damaged: messages that could not be read.
        num_restarts: how often the engine began again.
        last_error: what was wrong with the last message that could not be read.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        again: Callable[[int], Iterator[Message]] | None = None,
    ) -> None:
        """Write to ``recorder``; ``again`` yields kept messages from a number on."""
        self.num_damaged = self.num_restarts = 0
        self.last_error = ""
        self._recorder = recorder
        self._again = again
        self._next = 0
        self._last_at = float("-inf")

    def begin(self) -> None:
        """Take what the publisher has kept of the time before."""
        if self._again is not None:
            for number, payload in self._again(0):
                self._write(number, payload)

    def take(self, number: int, payload: bytes) -> None:
        """Take the next message."""
        if number < self._next and not self._began_again(payload):
            return  # it came with those that were asked for again
        if number > self._next and self._again is not None:
            for earlier, kept in self._again(self._next):
                if earlier < number:
                    self._write(earlier, kept)
        self._write(number, payload)

    def _began_again(self, payload: bytes) -> bool:
        """Whether an old number is that of a new engine; the numbers then count from 0."""
        try:
            is_new = decode(payload).at > self._last_at
        except ValueError:
            return False
        if is_new:
            self.num_restarts += 1
            self._next = 0
            self._recorder.put_cleared()
        return is_new

    def _write(self, number: int, payload: bytes) -> None:
        if number < self._next:
            return
        if number > self._next:
            self._recorder.put_lost(number - self._next)
        self._next = number + 1
        try:
            batch = decode(payload)
        except (ValueError, RecursionError) as error:
            self.num_damaged += 1
            self.last_error = str(error)
            return
        self._last_at = max(self._last_at, batch.at)
        self._recorder.put(batch)
