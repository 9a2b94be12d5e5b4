"""Sliding-window attention: only the last ``window`` tokens are read."""

from typing import ClassVar

from hybrid_blocks.model.layer.attention import Attention


class SlidingWindow(Attention, frozen=True, kw_only=True, tag="sliding_window", tag_field="kind"):
    """Keys and values of the last ``window`` tokens."""

    kind: ClassVar[str] = "sliding_window"
    window: int
