"""The common part of all attention caches with separate keys and values."""

import msgspec

from hybrid_blocks.model.rank import Rank, shard, shard_or_replicate


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Keys and values of ``kv_heads`` heads; ``query_heads`` only limits how far TP may go."""

    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    query_heads: int | None = None

    def token_bytes(self, rank: Rank) -> int:
        """Bytes a token takes in one layer: heads * those of a key and a value."""
        if self.query_heads is not None:
            shard(self.query_heads, rank.tp, "attention heads")
        heads = shard_or_replicate(self.kv_heads, rank.tp, "KV heads")
        value_dim = self.head_dim if self.value_dim is None else self.value_dim
        return heads * rank.head_bytes(self.head_dim, value_dim)
