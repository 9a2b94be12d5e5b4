"""Gated DeltaNet (Qwen3-Next, Qwen3.5 and later, Olmo-Hybrid)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class GatedDeltaNet(State, frozen=True, kw_only=True, tag="gated_delta_net", tag_field="kind"):
    """A (value heads, value dim, key dim) matrix and the convolution's last columns."""

    family: ClassVar[str] = "gated_delta_net"
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Convolution over q, k and v: kernel - 1 columns and one for each speculative token."""
        width = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        shard(self.key_heads, rank.tp, "linear key heads")
        heads = shard(self.value_heads, rank.tp, "linear value heads")
        return (
            self.conv(self.conv_kernel, width // rank.tp, rank),
            StateTensor(
                "recurrent", (heads, self.value_dim, self.key_dim), self.recurrent_dtype(rank)
            ),
        )
