"""Full attention: every token of the request stays."""

from typing import ClassVar

from hybrid_blocks.model.layer.attention import Attention


class FullAttention(Attention, frozen=True, kw_only=True, tag="full", tag_field="kind"):
    """Keys and values of all tokens."""

    kind: ClassVar[str] = "full"
