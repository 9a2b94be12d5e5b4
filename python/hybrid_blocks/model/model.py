"""A model as the planner sees it: which layer keeps what."""

from typing import Literal

import msgspec

from hybrid_blocks.model.layer import Cache, SparseIndex, State, TokenConvolution

Verified = Literal["verified", "partly verified", "unverified", "config"]


class Layer(msgspec.Struct, frozen=True):
    """One cache of the decoder layer at ``depth``; a layer with two caches appears twice."""

    depth: int
    cache: Cache
    draft: bool = False


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the embeddings, of all experts, and of the rest.

    A token uses ``used_experts`` of those of experts, None where that is not known. ``bits`` are
    those of a quantized parameter with its scales, None in the model's own format. With
    ``only_experts`` nothing else is quantized.
    """

    embeddings: int
    experts: int
    rest: int
    hidden_size: int
    used_experts: int | None = None
    bits: float | None = None
    only_experts: bool = False
    source: str = "counted from config.json"

    @property
    def parameters(self) -> int:
        """Parameters of all parts together."""
        return self.embeddings + self.experts + self.rest


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """Layers in order of depth.

    ``draft_layers`` belong to the model's multi-token-prediction head and exist only while it
    speculates. ``architecture`` is the class that a ``config.json`` names. ``verified`` says how
    far the sizes were checked; ``config`` means that they were read from a file of the user's.
    ``max_model_len`` is None where the source does not say, and ``kv_cache_dtype`` where the
    checkpoint leaves the format of the cache to the model's own. ``rotary_share`` is the part of a
    key that is rotated. With ``index`` all full layers are sparse ones; ``convolutions`` keep one
    state more at their depth. ``weights`` is None where their number is not known, and
    ``weights_unknown`` then says why.
    """

    name: str
    model_type: str
    num_layers: int
    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    dtype: str = "bfloat16"
    kv_cache_dtype: str | None = None
    rotary_share: float = 1.0
    index: SparseIndex | None = None
    convolutions: tuple[TokenConvolution, ...] = ()
    max_model_len: int | None = None
    architecture: str | None = None
    verified: Verified = "config"
    notes: tuple[str, ...] = ()
    weights: Weights | None = None
    weights_unknown: str = "layers by hand tell no weights"

    def active_layers(self, num_speculative_tokens: int) -> tuple[Layer, ...]:
        """Layers that hold a cache while ``num_speculative_tokens`` are drafted."""
        return self.layers + self.draft_layers if num_speculative_tokens else self.layers

    @property
    def is_hybrid(self) -> bool:
        """Whether recurrent state lies beside token caches."""
        kinds = {layer.cache.kind for layer in self.layers}
        return State.kind in kinds and len(kinds) > 1
