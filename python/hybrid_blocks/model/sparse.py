"""Caches of sparse attention beside its keys and values: an index, and an n-gram embedding."""

from typing import Final

import msgspec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.model import dtype
from hybrid_blocks.model.rank import Rank

_INDEX_BYTES: Final = 2
"""Bytes of an element of an index key: bfloat16, vLLM's default."""


class SparseIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by which a layer chooses the tokens that it reads; each rank has all of them.

    One key stands for ``compress_ratio`` tokens. The keys of the last tokens lie in a ring, one
    for each request, until they are compressed.
    """

    head_dim: int
    compress_ratio: int

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes of the compressed keys of whole ``compress_ratio`` tokens."""
        return num_tokens // self.compress_ratio * self.head_dim * _INDEX_BYTES

    def ring_tokens(self, rank: Rank) -> int:
        """Tokens of a ring: those that are not compressed yet, and the drafts of a step."""
        return round_up(self.compress_ratio + rank.num_speculative_tokens, self.compress_ratio)

    def ring_bytes(self, rank: Rank) -> int:
        """Bytes of a ring."""
        return self.ring_tokens(rank) * self.head_dim * _INDEX_BYTES


class TokenConvolution(msgspec.Struct, frozen=True, kw_only=True):
    """A dilated convolution over n-gram embeddings at one depth; each rank has all of it."""

    depth: int
    width: int
    columns: int

    def state_bytes(self, rank: Rank) -> int:
        """Bytes of its columns, and one for each speculative token, in the model's format."""
        columns = self.columns + rank.num_speculative_tokens
        return columns * self.width * dtype.size(rank.model_dtype)
