"""Cross attention: keys and values of the encoder's output, fixed for the request's life."""

from typing import ClassVar

from hybrid_blocks.model.layer.attention import Attention


class CrossAttention(Attention, frozen=True, kw_only=True, tag="cross", tag_field="kind"):
    """Keys and values of up to ``encoder_tokens`` encoder tokens; never prefix-cached."""

    kind: ClassVar[str] = "cross"
    encoder_tokens: int
