"""Layer families: what one layer keeps for a request, and how many bytes that takes on one rank."""

from math import prod
from typing import ClassVar, Final, Literal

import msgspec

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.model import formats
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


StateFormat = Literal["full", "bf16", "fp8", "int8"]
"""How a checkpoint keeps a state: as it is, or with its float32 numbers in fewer bytes."""

RUNNING: Final[StateFormat] = "full"
"""The format of running states, and of checkpoints unless the user asks for a smaller one."""


class StateTensor(msgspec.Struct, frozen=True):
    """One tensor of a state on one rank, without the slot dimension."""

    role: Literal["conv", "recurrent"]
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * formats.element_bytes(self.dtype)

    def kept_bytes(self, state_format: StateFormat) -> int:
        """Bytes of the tensor in a checkpoint: only recurrent numbers of float32 are converted.

        Formats of 8 bits keep a scale of 4 bytes for each head, the first dimension.
        """
        if state_format == RUNNING or self.role != "recurrent" or self.dtype != "float32":
            return self.nbytes
        heads, numbers = self.shape[0], prod(self.shape[1:])
        return min(self.nbytes, heads * (2 * numbers if state_format == "bf16" else numbers + 4))


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A recurrent layer.

    ``ssm_dtype`` is the format that the model asks for when the deployment says ``auto``; None
    stands for the model's own format.
    """

    family: ClassVar[str]
    kind: ClassVar[str] = "state"
    takes_ssm_dtype: ClassVar[bool] = True
    is_left_beside_drafts: ClassVar[bool] = True
    """Whether a forward leaves states inside chunks of prompts where requests draft."""
    ssm_dtype: str | None = None

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """Tensors of one state on one rank."""
        raise NotImplementedError

    def state_bytes(self, rank: Rank) -> int:
        """Bytes of one state of one layer on one rank."""
        return sum(tensor.nbytes for tensor in self.tensors(rank))

    def kept_bytes(self, rank: Rank, state_format: StateFormat) -> int:
        """Bytes of a checkpoint of one layer on one rank."""
        return sum(tensor.kept_bytes(state_format) for tensor in self.tensors(rank))

    def conv(self, kernel: int, width: int, rank: Rank) -> StateTensor:
        """Tensor of a convolution: kernel - 1 columns, and one for each speculative token."""
        columns = kernel - 1 + rank.num_speculative_tokens
        return StateTensor("conv", (columns, width), rank.model_dtype)

    def recurrent_dtype(self, rank: Rank) -> str:
        """Format of the recurrent tensor: the deployment's, else the model's wish, else its own."""
        if rank.ssm_dtype != "auto":
            return formats.canonical_dtype(rank.ssm_dtype)
        return formats.canonical_dtype(self.ssm_dtype or rank.model_dtype)


# Gated DeltaNet (Qwen3-Next, Qwen3.5 and later, Olmo-Hybrid).
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


# Kimi delta attention (Kimi-Linear, Kimi-K3, Ling-3).
class KimiDeltaAttention(State, frozen=True, kw_only=True, tag="kda", tag_field="kind"):
    """A (heads, dim, dim) tensor, float32 by default, and q, k, v convolutions.

    ``flash`` is the full-rank and bounded gate of Kimi-K3, which vLLM's FlashKDA kernel takes.
    """

    family: ClassVar[str] = "kda"
    heads: int
    head_dim: int
    conv_kernel: int
    flash: bool = False
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


# Lightning attention (MiniMax-01, Ring/Ling-2.5).
class LightningAttention(State, frozen=True, kw_only=True, tag="lightning", tag_field="kind"):
    """A (heads, dim, dim) matrix in the model's own format; no convolution."""

    family: ClassVar[str] = "lightning"
    takes_ssm_dtype: ClassVar[bool] = False
    is_left_beside_drafts: ClassVar[bool] = False
    heads: int
    head_dim: int

    def tensors(self, rank: Rank) -> tuple[StateTensor, ...]:
        """One matrix a head; the format follows the model, not ``--mamba-ssm-dtype``."""
        heads = shard(self.heads, rank.tp, "linear attention heads")
        return (StateTensor("recurrent", (heads, self.head_dim, self.head_dim), rank.model_dtype),)


# Mamba-1, as Jamba has it.
class Mamba1(State, frozen=True, kw_only=True, tag="mamba1", tag_field="kind"):
    """A (inner, state) matrix and kernel - 1 convolution columns."""

    family: ClassVar[str] = "mamba1"
    is_left_beside_drafts: ClassVar[bool] = False
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


# Mamba-2 (Nemotron-H, Granite-4-H, Bamba, Falcon-H1, Zamba2, PLaMo-2).
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


# Real-gated linear recurrent unit (RecurrentGemma).
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


# Gated short convolution (LFM2).
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


_INDEX_BYTES: Final = 2
"""Bytes of an element of an index key: bfloat16, vLLM's default."""


class SparseIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Keys by which a layer chooses the tokens that it reads; each rank has all of them.

    One key stands for ``compress_ratio`` tokens. The keys of the last tokens lie in a ring, one
    for each request, until they are compressed.
    """

    head_dim: int
    compress_ratio: int

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes of the compressed keys of whole ``compress_ratio`` tokens."""
        return num_tokens // self.compress_ratio * self.head_dim * _INDEX_BYTES

    def ring_tokens(self, rank: Rank) -> int:
        """Tokens of a ring: those that are not compressed yet, and the drafts of a step."""
        return round_up(self.compress_ratio + rank.num_speculative_tokens, self.compress_ratio)

    def ring_bytes(self, rank: Rank) -> int:
        """Bytes of a ring."""
        return self.ring_tokens(rank) * self.head_dim * _INDEX_BYTES


class TokenConvolution(msgspec.Struct, frozen=True, kw_only=True):
    """A dilated convolution over n-gram embeddings at one depth; each rank has all of it."""

    depth: int
    width: int
    columns: int

    def state_bytes(self, rank: Rank) -> int:
        """Bytes of its columns, and one for each speculative token, in the model's format."""
        columns = self.columns + rank.num_speculative_tokens
        return columns * self.width * formats.element_bytes(rank.model_dtype)


TokenCache = (
    FullAttention
    | LatentAttention
    | LatentIndex
    | SlidingWindow
    | ChunkedAttention
    | CrossAttention
)
"""Caches made of pages of tokens."""

StateCache = (
    GatedDeltaNet | Mamba1 | Mamba2 | KimiDeltaAttention | LightningAttention | RgLru | ShortConv
)
"""Caches made of one state."""

Cache = TokenCache | StateCache
