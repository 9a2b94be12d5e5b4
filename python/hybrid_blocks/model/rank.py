"""One tensor-parallel rank of a deployment: the facts that every layer page depends on."""

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.model import formats


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's share and number formats.

    ``ssm_dtype`` is ``auto`` where each recurrent family keeps its own default. ``rotary_share`` is
    the part of a key that is rotated, which one format of the cache stores apart.
    """

    tp: int = 1
    num_speculative_tokens: int = 0
    model_dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    ssm_dtype: str = "auto"
    rotary_share: float = 1.0

    def head_bytes(self, key_dim: int, value_dim: int) -> int:
        """Bytes of one token's key and value in one head."""
        return formats.head_bytes(self.kv_dtype, key_dim, value_dim, self.rotary_share)

    def latent_bytes(self, latent_dim: int, *, sparse: bool = False) -> int:
        """Bytes of one token's latent."""
        return formats.latent_bytes(self.kv_dtype, latent_dim, sparse=sparse)


def shard(total: int, tp: int, what: str) -> int:
    """Share of ``total`` that one of ``tp`` ranks holds; it must divide."""
    if total % tp:
        raise PlanError(f"--tp {tp} does not divide {total} {what}")
    return total // tp


def shard_or_replicate(heads: int, tp: int, what: str) -> int:
    """Heads a rank holds: a share, or one replicated head if there are fewer heads than ranks."""
    if heads >= tp:
        return shard(heads, tp, what)
    if tp % heads:
        raise PlanError(f"--tp {tp} is not a multiple of {heads} {what}")
    return 1
