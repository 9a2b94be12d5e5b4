"""Multi-head latent attention (DeepSeek, Kimi, Ling): one latent a token, on every rank."""

from typing import ClassVar

import msgspec

from hybrid_blocks.model.rank import Rank, shard


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True, tag="mla", tag_field="kind"):
    """A latent of ``kv_lora_rank + qk_rope_head_dim`` elements, replicated over TP.

    Where it is ``sparse``, an index chooses the tokens that a step reads: its own where it
    ``leads``, else that of a layer before.
    """

    kind: ClassVar[str] = "mla"
    latent_dim: int
    query_heads: int | None = None
    sparse: bool = False
    leads: bool = False

    def token_bytes(self, rank: Rank) -> int:
        """Bytes a token takes in one layer: those of its latent."""
        if self.query_heads is not None:
            shard(self.query_heads, rank.tp, "attention heads")
        return rank.latent_bytes(self.latent_dim, sparse=self.sparse)
