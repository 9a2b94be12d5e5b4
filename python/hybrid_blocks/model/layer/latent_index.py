"""Keys by which sparse latent attention chooses the tokens that it reads (DeepSeek-V3.2, GLM-5)."""

from typing import ClassVar, Final

import msgspec

from hybrid_blocks.model.rank import Rank

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
