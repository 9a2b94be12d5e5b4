"""Layers with attention: what each keeps for the tokens of a request."""

from typing import ClassVar, Final

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


# Full attention: every token of the request stays.
class FullAttention(Attention, frozen=True, kw_only=True, tag="full", tag_field="kind"):
    """Keys and values of all tokens."""

    kind: ClassVar[str] = "full"


# Sliding-window attention: only the last ``window`` tokens are read.
class SlidingWindow(Attention, frozen=True, kw_only=True, tag="sliding_window", tag_field="kind"):
    """Keys and values of the last ``window`` tokens."""

    kind: ClassVar[str] = "sliding_window"
    window: int


# Chunked local attention: a token reads its own chunk of ``chunk`` tokens.
class ChunkedAttention(Attention, frozen=True, kw_only=True, tag="chunked", tag_field="kind"):
    """Keys and values of the current chunk."""

    kind: ClassVar[str] = "chunked"
    chunk: int


# Cross attention: keys and values of the encoder's output, fixed for the request's life.
class CrossAttention(Attention, frozen=True, kw_only=True, tag="cross", tag_field="kind"):
    """Keys and values of up to ``encoder_tokens`` encoder tokens; never prefix-cached."""

    kind: ClassVar[str] = "cross"
    encoder_tokens: int


# Multi-head latent attention (DeepSeek, Kimi, Ling): one latent a token, on every rank.
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


# Keys by which sparse latent attention chooses the tokens that it reads (DeepSeek-V3.2, GLM-5).
_SCALED: Final = 128
"""Elements of a key that share a scale."""

_SCALE_BYTES: Final = 4


class LatentIndex(msgspec.Struct, frozen=True, kw_only=True, tag="mla_index", tag_field="kind"):
    """A key of ``head_dim`` bytes and its scales for each token, on every rank."""

    kind: ClassVar[str] = "mla"
    head_dim: int

    def token_bytes(self, _: Rank) -> int:
        """Bytes a token takes in one layer, whatever the format of the latents."""
        return self.head_dim + self.head_dim // _SCALED * _SCALE_BYTES
