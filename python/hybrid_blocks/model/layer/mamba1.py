"""Mamba-1 (Jamba)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class Mamba1(State, frozen=True, kw_only=True, tag="mamba1", tag_field="kind"):
    """A (inner, state) matrix and kernel - 1 convolution columns."""

    family: ClassVar[str] = "mamba1"
    inner_dim: int
    state_dim: int
    conv_kernel: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Convolution columns do not grow with speculation: the kernel has no such mode."""
        inner = shard(self.inner_dim, rank.tp, "Mamba channels")
        return (
            StateTensor("conv", (self.conv_kernel - 1, inner), rank.model_dtype),
            StateTensor("recurrent", (inner, self.state_dim), self.recurrent_dtype(rank)),
        )
