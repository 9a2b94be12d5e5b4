"""Gated short convolution (LFM2)."""

from typing import ClassVar

from hybrid_blocks.model.layer.state import State, StateTensor
from hybrid_blocks.model.rank import Rank, shard


class ShortConv(State, frozen=True, kw_only=True, tag="short_conv", tag_field="kind"):
    """Only the last kernel - 1 columns of a convolution."""

    family: ClassVar[str] = "short_conv"
    takes_ssm_dtype: ClassVar[bool] = False
    width: int
    conv_kernel: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Kernel - 1 columns and one for each speculative token."""
        width = shard(self.width, rank.tp, "convolution channels")
        return (self.conv(self.conv_kernel, width, rank),)
