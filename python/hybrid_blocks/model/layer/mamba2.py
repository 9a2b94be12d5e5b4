"""Mamba-2 (Nemotron-H, Granite-4-H, Bamba, Falcon-H1, Zamba2, PLaMo-2)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class Mamba2(State, frozen=True, kw_only=True, tag="mamba2", tag_field="kind"):
    """A (heads, head dim, state) tensor and the convolution over inputs, B and C.

    Groups that TP does not divide are replicated, so that each rank has the groups of its heads.
    """

    family: ClassVar[str] = "mamba2"
    inner_dim: int
    groups: int
    heads: int
    head_dim: int
    state_dim: int
    conv_kernel: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Convolution width: inner + 2 * groups * state; kernel - 1 + speculative columns."""
        replicas = rank.tp - self.groups if self.groups % rank.tp else 0
        width = self.inner_dim + 2 * (self.groups + replicas) * self.state_dim
        heads = shard(self.heads, rank.tp, "Mamba heads")
        return (
            self.conv(self.conv_kernel, shard(width, rank.tp, "convolution channels"), rank),
            StateTensor(
                "recurrent", (heads, self.head_dim, self.state_dim), self.recurrent_dtype(rank)
            ),
        )
