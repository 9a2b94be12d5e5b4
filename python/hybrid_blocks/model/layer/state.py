"""The common part of all recurrent layers: a state of fixed size, made of a few tensors."""

from math import prod
from typing import ClassVar, Literal

import msgspec

from hybrid_blocks.model import dtype
from hybrid_blocks.model.rank import Rank


class StateTensor(msgspec.Struct, frozen=True):
    """One tensor of a state on one rank, without the slot dimension."""

    role: Literal["conv", "recurrent"]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * dtype.size(self.dtype)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A recurrent layer.

    ``ssm_dtype`` is the format that the model asks for when the deployment says ``auto``; None
    stands for the model's own format.
    """

    family: ClassVar[str]
    kind: ClassVar[str] = "state"
    takes_ssm_dtype: ClassVar[bool] = True
    ssm_dtype: str | None = None

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Tensors of one state on one rank."""
        raise NotImplementedError

    def state_bytes(self, rank: Rank) -> int:
        """Bytes of one state of one layer on one rank."""
        return sum(tensor.nbytes for tensor in self.tensors(rank))

    def conv(self, kernel: int, width: int, rank: Rank) -> StateTensor:
        """Tensor of a convolution: kernel - 1 columns, and one for each speculative token."""
        columns = kernel - 1 + rank.num_speculative_tokens
        return StateTensor("conv", (columns, width), rank.model_dtype)

    def recurrent_dtype(self, rank: Rank) -> str:
        """Format of the recurrent tensor: the deployment's, else the model's wish, else its own."""
        if rank.ssm_dtype != "auto":
            return dtype.canonical(rank.ssm_dtype)
        return dtype.canonical(self.ssm_dtype or rank.model_dtype)
