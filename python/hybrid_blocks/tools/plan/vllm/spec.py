"""vLLM's description of one layer's cache, and how many blocks of it one request may hold.

Follows ``vllm/v1/kv_cache_interface.py`` (0.33).
"""

from fractions import Fraction

import msgspec

from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Layer, Rank
from hybrid_blocks.model.kind import GroupKind, kind_of
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    LatentAttention,
    LatentIndex,
    SparseIndex,
    State,
)

RING = "ring"
"""The kind of a group that holds the index keys of the last tokens."""


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's cache.

    ``unpadded_bytes`` are the bytes a block of ``block_tokens`` tokens (or one state) takes;
    ``page_bytes`` is what vLLM allocates for it. Two layers may share a group only if their specs
    are equal. ``identity`` tells apart specs whose numbers agree (heads, dims). A request has up to
    ``slots`` blocks of states, and ``states`` of them in nearly all steps. Kernels can write states
    from inside a forward every ``checkpoint_alignment`` tokens, None if they cannot.
    """

    kind: str
    block_tokens: int
    unpadded_bytes: int
    page_bytes: int
    window: int | None = None
    identity: tuple[int, ...] = ()
    slots: int | None = None
    states: int | None = None
    checkpoint_alignment: int | None = None
    encoder_tokens: int | None = None

    @property
    def rules(self) -> GroupKind:
        """Which tokens of a request the layer still reads."""
        name = State.kind if self.kind in {"mamba", RING} else self.kind
        return GroupKind(name=name, window=self.window, encoder_tokens=self.encoder_tokens)

    def blocks(self, length: int, in_flight_tokens: int) -> int:
        """Most blocks that vLLM reckons with for a request of ``length`` tokens when it starts.

        full, mla        ceil(length / block)
        sliding_window   ceil(min(window - 1 + in flight, length) / block) + 1
        chunked          ceil(min(chunk + in flight, length) / block)
        mamba            1 + speculative (none); one more (align), and one more for a state that
                         is written from inside a forward
        """
        if self.slots is not None:
            return self.slots
        if self.encoder_tokens is not None:
            return ceil_div(self.encoder_tokens, self.block_tokens)
        if self.window is None:
            return ceil_div(length, self.block_tokens)
        if self.kind == ChunkedAttention.kind:
            return ceil_div(min(self.window + in_flight_tokens, length), self.block_tokens)
        return ceil_div(min(self.window - 1 + in_flight_tokens, length), self.block_tokens) + 1

    def decode_blocks(self, length: int, scheduled_tokens: int) -> int:
        """Most blocks a request holds while it decodes up to ``length`` tokens.

        A second state (``align``) is held in one step of ``block_tokens`` only, while the last one
        is copied into the next block; so it is not counted.
        """
        if self.states is not None:
            return self.states
        return self.rules.peak_blocks(length, scheduled_tokens, self.block_tokens)

    def prefill_blocks(self, length: int, in_flight_tokens: int, step_tokens: int) -> int:
        """Most blocks a request holds while a prompt of ``length`` tokens is computed.

        What vLLM admits it for; of states one block and the drafts', one more behind the first
        block. A state that the last step writes from inside takes one more.
        """
        if self.encoder_tokens is not None:
            return self.blocks(length, in_flight_tokens)
        whole = ceil_div(length, self.block_tokens)
        if self.slots is not None and self.states is not None:
            if self.checkpoint_alignment is None:
                return min(self.slots, self.states - 1 + whole)
            return self.states + self._more_states(length, step_tokens)
        # vLLM's bound for chunks is one block short where a chunk begins inside a block.
        held = self.rules.peak_blocks(length, in_flight_tokens, self.block_tokens)
        return max(min(self.blocks(length, in_flight_tokens), whole), held)

    def _more_states(self, length: int, step_tokens: int) -> int:
        """Blocks that a step of a prompt holds at most besides the one whose state it ends with.

        Steps after the first hold the state that they begin from, and end at borders of blocks. The
        last step writes a state from inside if it reaches over a border.
        """
        if length <= max(step_tokens, self.block_tokens):
            return int(length > self.block_tokens)
        if step_tokens < self.block_tokens:
            return 1
        step = step_tokens // self.block_tokens * self.block_tokens
        begin = ceil_div(length - step_tokens, step) * step
        return 1 + int(length - begin > self.block_tokens)

    def beside(self, num_bytes: int) -> "Spec":
        """Add a page of ``num_bytes`` that shares the block table."""
        return msgspec.structs.replace(
            self,
            unpadded_bytes=self.unpadded_bytes + num_bytes,
            page_bytes=self.page_bytes + num_bytes,
        )

    def with_page(self, page_bytes: int) -> "Spec":
        """Pad the page to ``page_bytes``."""
        return msgspec.structs.replace(self, page_bytes=page_bytes)

    def with_block(self, block_tokens: int) -> "Spec":
        """Give a block another number of tokens."""
        scale = Fraction(block_tokens, self.block_tokens)
        size = int(self.unpadded_bytes * scale)
        return msgspec.structs.replace(
            self, block_tokens=block_tokens, unpadded_bytes=size, page_bytes=size
        )


def state_spec(
    size: int,
    block_tokens: int,
    deployment: Deployment,
    length: int,
    checkpoint_alignment: int | None,
) -> Spec:
    """Spec of a layer with states of ``size`` bytes, before any padding."""
    align = deployment.mamba_cache_mode == "align"
    states = 1 + deployment.num_speculative_tokens
    return Spec(
        kind="mamba",
        block_tokens=block_tokens if align else length,
        unpadded_bytes=size,
        page_bytes=size,
        slots=states + int(align) + int(checkpoint_alignment is not None),
        states=states,
        checkpoint_alignment=checkpoint_alignment,
    )


def ring_spec(index: SparseIndex, rank: Rank) -> Spec:
    """Spec of the keys that an index has not compressed yet: one block for each request."""
    size = index.ring_bytes(rank)
    return Spec(
        kind=RING,
        block_tokens=index.ring_tokens(rank),
        unpadded_bytes=size,
        page_bytes=size,
        slots=1,
        states=1,
    )


def layer_spec(layer: Layer, rank: Rank, block_tokens: int) -> Spec:
    """Spec of an attention layer before any padding."""
    cache = layer.cache
    assert not isinstance(cache, State), f"{cache.family} at depth {layer.depth} is no attention"
    size = cache.token_bytes(rank) * block_tokens
    if isinstance(cache, LatentAttention | LatentIndex):
        return Spec(
            kind=cache.kind, block_tokens=block_tokens, unpadded_bytes=size, page_bytes=size
        )
    rules = kind_of(cache)
    return Spec(
        kind=cache.kind,
        block_tokens=block_tokens,
        unpadded_bytes=size,
        page_bytes=size,
        window=rules.window,
        identity=(cache.kv_heads, cache.head_dim, cache.value_dim or cache.head_dim),
        encoder_tokens=rules.encoder_tokens,
    )
