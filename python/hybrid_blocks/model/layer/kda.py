"""Kimi delta attention (Kimi-Linear, Kimi-K3, Ling-3)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class KimiDeltaAttention(State, frozen=True, kw_only=True, tag="kda", tag_field="kind"):
    """A (heads, dim, dim) tensor, float32 by default, and q, k, v convolutions."""

    family: ClassVar[str] = "kda"
    heads: int
    head_dim: int
    conv_kernel: int
    ssm_dtype: str | None = "float32"

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Convolution width: 3 * heads * dim; kernel - 1 + speculative columns."""
        heads = shard(self.heads, rank.tp, "KDA heads")
        return (
            self.conv(self.conv_kernel, 3 * heads * self.head_dim, rank),
            StateTensor(
                "recurrent", (heads, self.head_dim, self.head_dim), self.recurrent_dtype(rank)
            ),
        )
