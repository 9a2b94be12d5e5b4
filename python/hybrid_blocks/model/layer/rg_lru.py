"""Real-gated linear recurrent unit (RecurrentGemma)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class RgLru(State, frozen=True, kw_only=True, tag="rg_lru", tag_field="kind"):
    """A vector of ``width``, float32 by default, and kernel - 1 convolution columns."""

    family: ClassVar[str] = "rg_lru"
    width: int
    conv_kernel: int
    ssm_dtype: str | None = "float32"

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Convolution columns grow with speculation as in the other families."""
        width = shard(self.width, rank.tp, "RG-LRU channels")
        return (
            self.conv(self.conv_kernel, width, rank),
            StateTensor("recurrent", (width,), self.recurrent_dtype(rank)),
        )
