"""Checkpoints by their place: how many were written, used and dropped."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hybrid_blocks.model.layer import State
from hybrid_blocks.tools.plan import ArenaPlan
from hybrid_blocks.tools.replay.manager import Handles
from hybrid_blocks.tools.trace import SharedPrefixes, Trace

DISTANCES = (64, 256, 1_024, 4_096, 16_384)
"""Borders between the places, in tokens before the end of the prompt."""

ANSWER = "in the answer"
SHARED = "shared prefix"
PLACES = (
    ANSWER,
    *(f"{low:,} to {high:,}" for low, high in zip((0, *DISTANCES), DISTANCES, strict=False)),
    f"over {DISTANCES[-1]:,}",
    SHARED,
)
"""The place of a checkpoint: after the prompt, some tokens before its end, or no further than
earlier requests had computed."""


class PlaceCount(msgspec.Struct):
    """Checkpoints at one place.

    Attributes:
        place: one of `PLACES`.
        written: left for later requests. A copy that follows its request counts once.
        used: of these, those that a request resumed from.
        uses: how many requests did.
        dropped: of those written, those that are no longer cached.
    """

    place: str
    written: int = 0
    used: int = 0
    uses: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Checkpoint:
    place: str
    handle: int
    prefix: int
    is_used: bool = False


@dataclass(slots=True)
class PlaceCounter:
    """Reads a manager's cache events and counts the checkpoints of one state group.

    Of several state groups it follows the first: they keep their states at the same lengths.
    """

    trace: Trace
    prefixes: SharedPrefixes
    block_size: int
    group: int
    _requests: dict[int, int] = field(default_factory=dict)
    _cached: dict[bytes, _Checkpoint] = field(default_factory=dict)
    _by_prefix: dict[int, _Checkpoint] = field(default_factory=dict)
    _counts: dict[str, PlaceCount] = field(
        default_factory=lambda: {place: PlaceCount(place) for place in PLACES}
    )

    @classmethod
    def of(
        cls, trace: Trace, prefixes: SharedPrefixes, geometry: ArenaPlan
    ) -> "PlaceCounter | None":
        """Make a counter, or return None for a model without states."""
        for index, group in enumerate(geometry.groups):
            if group.kind == State.kind:
                return cls(trace, prefixes, geometry.hash_block_size, index)
        return None

    def register(self, handle: int, request: int) -> None:
        """Note the manager's handle of a request of the trace."""
        self._requests[handle] = request

    def finish(self, handles: Handles) -> None:
        """Note that requests ended."""
        for handle in handles.tolist():
            del self._requests[handle]

    def read(self, events: Sequence[tuple[Any, ...]]) -> None:
        """Count what the manager stored and removed since the last call."""
        for event in events:
            if event[0] == "stored" and event[2] == self.group:
                _, handle, _, first, block_size, _, digests = event
                self._store(handle, (first + 1) * block_size, digests[0])
            elif event[0] == "removed" and event[2] == self.group:
                self._remove(event[1])

    def use(self, request: int, num_tokens: int) -> None:
        """Count a request that resumes from ``num_tokens`` tokens."""
        if not num_tokens:
            return
        checkpoint = self._by_prefix.get(self._prefix(request, num_tokens))
        if checkpoint is not None:
            count = self._counts[checkpoint.place]
            count.used += not checkpoint.is_used
            count.uses += 1
            checkpoint.is_used = True

    def counts(self) -> tuple[PlaceCount, ...]:
        """Return the places at which anything was written."""
        return tuple(count for count in self._counts.values() if count.written)

    def _store(self, handle: int, num_tokens: int, digest: bytes) -> None:
        request = self._requests[handle]
        place = self._place(request, num_tokens)
        checkpoint = _Checkpoint(place, handle, self._prefix(request, num_tokens))
        self._cached[digest] = self._by_prefix[checkpoint.prefix] = checkpoint
        self._counts[place].written += 1

    def _remove(self, digest: bytes) -> None:
        checkpoint = self._cached.pop(digest, None)
        if checkpoint is None:
            return
        if self._by_prefix.get(checkpoint.prefix) is checkpoint:
            del self._by_prefix[checkpoint.prefix]
        count = self._counts[checkpoint.place]
        if checkpoint.place == ANSWER and checkpoint.handle in self._requests:
            # The request continues and takes the checkpoint along.
            count.written -= 1
        else:
            count.dropped += 1

    def _prefix(self, request: int, num_tokens: int) -> int:
        blocks = num_tokens // self.block_size
        return int(self.prefixes.ids[self.prefixes.start[request] + blocks - 1])

    def _place(self, request: int, num_tokens: int) -> str:
        before_end = int(self.trace.prompt_tokens[request]) - num_tokens
        if before_end < 0:
            return ANSWER
        if num_tokens <= int(self.prefixes.seen[request]) * self.block_size:
            return SHARED
        return PLACES[1 + bisect_left(DISTANCES, before_end)]
