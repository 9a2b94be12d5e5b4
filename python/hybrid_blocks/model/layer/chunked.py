"""Chunked local attention: a token reads its own chunk of ``chunk`` tokens."""

from typing import ClassVar

from hybrid_blocks.model.layer.attention import Attention


class ChunkedAttention(Attention, frozen=True, kw_only=True, tag="chunked", tag_field="kind"):
    """Keys and values of the current chunk."""

    kind: ClassVar[str] = "chunked"
    chunk: int
