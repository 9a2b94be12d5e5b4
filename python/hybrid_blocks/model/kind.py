"""The kinds of layer groups: which tokens each still reads, and how many blocks hold them.

The one place for these rules. Planner, replay and verifier ask here; the core has its own copy in
``rust/core/src/group``.
"""

from math import gcd
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.model.layer import (
    Cache,
    ChunkedAttention,
    CrossAttention,
    SlidingWindow,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])
else:
    Tokens = TypeVar("Tokens")

KindName = Literal["full", "mla", "sliding_window", "chunked", "state", "cross"]


class GroupKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache of a group of layers behaves as a request grows.

    ``window`` is the sliding window or the chunk, in tokens; ``encoder_tokens`` is set for cross
    attention. A state group holds no tokens: its slots are counted elsewhere.
    """

    name: KindName
    window: int | None = None
    encoder_tokens: int | None = None

    @property
    def grows(self) -> bool:
        """Whether a request's blocks keep growing with its length."""
        return self.name in ("full", "mla")

    def num_skipped_tokens(self, num_computed: Tokens) -> Tokens:
        """Leading tokens that nothing computed after ``num_computed`` tokens reads.

        A token reads itself and the ``window - 1`` tokens before it, or those of its own chunk.
        Takes one number or an array of them.
        """
        if self.name == "sliding_window" and self.window is not None:
            behind = num_computed + 1 - self.window
            return behind * (behind > 0)
        if self.name == "chunked" and self.window is not None:
            return num_computed // self.window * self.window
        return num_computed * 0

    def num_live_tokens(self, length: Tokens) -> Tokens:
        """Tokens that the last of ``length`` tokens reads, itself included; 0 for states.

        All for full attention, the last ``window`` for a sliding window, those of the last, maybe
        partial chunk for chunked attention, the encoder's for cross attention.
        """
        if self.encoder_tokens is not None:
            return length * 0 + self.encoder_tokens
        if self.name == "state":
            return length * 0
        return length - self.num_skipped_tokens(length - (length > 0))

    def peak_tokens(self, num_tokens: int, max_chunk: int) -> int:
        """Most tokens held at once on the way to ``num_tokens``, ``max_chunk`` at most a step.

        Those that the first token of a step reads of the ones computed before, at most
        ``window - 1``, and those of the step.
        """
        if self.encoder_tokens is not None:
            return self.encoder_tokens
        if self.window is None:
            return num_tokens
        return min(self.window - 1 + max_chunk, num_tokens)

    def peak_blocks(self, num_tokens: int, max_chunk: int, block_tokens: int) -> int:
        """Most blocks held at once on the way to ``num_tokens``, ``max_chunk`` at most a step.

        h tokens that begin anywhere in a block of b touch at most ceil((h - 1) / b) + 1 blocks. A
        chunk begins at a multiple of its length, so at most b - gcd(chunk, b) into a block.
        """
        held = self.peak_tokens(num_tokens, max_chunk)
        if self.window is None:
            return ceil_div(held, block_tokens)
        offset = block_tokens - (gcd(self.window, block_tokens) if self.name == "chunked" else 1)
        return min(ceil_div(offset + held, block_tokens), ceil_div(num_tokens, block_tokens))


def kind_of(cache: Cache) -> GroupKind:
    """Kind of the group that a layer with this cache belongs to."""
    match cache:
        case SlidingWindow():
            return GroupKind(name="sliding_window", window=cache.window)
        case ChunkedAttention():
            return GroupKind(name="chunked", window=cache.chunk)
        case CrossAttention():
            return GroupKind(name="cross", encoder_tokens=cache.encoder_tokens)
        case _:
            return GroupKind(name=cache.kind)  # type: ignore[arg-type]
