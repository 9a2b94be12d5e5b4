"""Lightning attention (MiniMax-01, Ring/Ling-2.5)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class LightningAttention(State, frozen=True, kw_only=True, tag="lightning", tag_field="kind"):
    """A (heads, dim, dim) matrix in the model's own format; no convolution."""

    family: ClassVar[str] = "lightning"
    takes_ssm_dtype: ClassVar[bool] = False
    heads: int
    head_dim: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """One matrix a head; the format follows the model, not ``--mamba-ssm-dtype``."""
        heads = shard(self.heads, rank.tp, "linear attention heads")
        return (StateTensor("recurrent", (heads, self.head_dim, self.head_dim), rank.model_dtype),)
