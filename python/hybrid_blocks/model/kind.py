"""The kinds of layer groups: which tokens each still reads, and how many blocks hold them.

The rules are the core's (``rust/core/src/group/kind/needed.rs``). Planner, replay and verifier ask
here.
"""

from functools import cache as cached
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hybrid_blocks import _core
from hybrid_blocks.model.layer import (
    Cache,
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    LatentAttention,
    SlidingWindow,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tokens = TypeVar("Tokens", int, npt.NDArray[np.int64])
else:
    Tokens = TypeVar("Tokens")


class GroupKind(msgspec.Struct, frozen=True, kw_only=True):
    """How the cache of a group of layers behaves as a request grows.

    ``window`` is the sliding window or the chunk, in tokens; ``encoder_tokens`` is set for cross
    attention. A state group holds no tokens: its slots are counted elsewhere.
    """

    name: str
    window: int | None = None
    encoder_tokens: int | None = None

    @property
    def grows(self) -> bool:
        """Whether a request's blocks keep growing with its length."""
        return self.name in {FullAttention.kind, LatentAttention.kind}

    def num_skipped_tokens(self, num_computed: Tokens) -> Tokens:
        """Leading tokens that nothing computed after ``num_computed`` tokens reads.

        A token reads itself and the ``window - 1`` tokens before it, or those of its own chunk.
        Takes one number or an array of them.
        """
        return _rules(self).num_skipped_tokens(num_computed)

    def num_live_tokens(self, length: Tokens) -> Tokens:
        """Tokens that the last of ``length`` tokens reads, itself included; 0 for states.

        These are all tokens for full attention, and the last ``window`` for a sliding window. For
        chunked attention they are those of the last, maybe partial chunk, for cross attention the
        encoder's.
        """
        return _rules(self).num_live_tokens(length)

    def peak_tokens(self, num_tokens: int, max_chunk: int) -> int:
        """Most tokens held at once on the way to ``num_tokens``, ``max_chunk`` at most a step.

        Those that the first token of a step reads of the ones computed before, at most
        ``window - 1``, and those of the step.
        """
        return _rules(self).peak_tokens(num_tokens, max_chunk)

    def peak_blocks(self, num_tokens: int, max_chunk: int, block_tokens: int) -> int:
        """Most blocks held at once on the way to ``num_tokens``, ``max_chunk`` at most a step.

        h tokens that begin anywhere in a block of b touch at most ceil((h - 1) / b) + 1 blocks. A
        chunk begins at a multiple of its length, so at most b - gcd(chunk, b) into a block.
        """
        return _rules(self).peak_blocks(num_tokens, max_chunk, block_tokens)


@cached
def _rules(kind: GroupKind) -> _core.GroupKind:
    name = FullAttention.kind if kind.name == LatentAttention.kind else kind.name
    return _core.GroupKind(name, window=kind.window, encoder_tokens=kind.encoder_tokens)


def kind_of(cache: Cache) -> GroupKind:
    """Kind of the group that a layer with this cache belongs to."""
    match cache:
        case SlidingWindow():
            return GroupKind(name=cache.kind, window=cache.window)
        case ChunkedAttention():
            return GroupKind(name=cache.kind, window=cache.chunk)
        case CrossAttention():
            return GroupKind(name=cache.kind, encoder_tokens=cache.encoder_tokens)
        case _:
            return GroupKind(name=cache.kind)
