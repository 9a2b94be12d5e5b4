"""One line of a file of KV events. It holds no token and no text, and nothing holds the key."""

from typing import Annotated, Literal

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID
from hybrid_blocks.trace.digests import count, split

MARK = b'"hybrid_blocks_event"'
"""What each line contains, and no other format does."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What an engine said of its cache.

    Attributes:
        number: counts the lines of the file, from 0.
        at: the engine's time, in seconds since the file's first line.
        what: blocks were stored (or found, where the engine reports that), or removed; the cache
            was cleared; or messages were lost.
        blocks: a keyed digest of 12 characters for each block, in order.
        parent: the digest of the block before the first one; None at the beginning of a prompt.
        block_tokens: tokens of a stored block.
        tokens: tokens of all stored blocks; more than theirs where some in between were not stored.
        group: number of the layers whose blocks these are; None if the engine has one group.
        layers: the kind of these layers, as vLLM names it; None if the engine did not say.
        session: counts the sessions of the file, from 0; None without a session.
        adapter: counts the LoRA adapters of the file, from 0; None without one.
        messages: how many were lost.
    """

    number: Count = msgspec.field(name="hybrid_blocks_event")
    at: float
    what: Literal["stored", "removed", "cleared", "lost"]
    blocks: str = ""
    parent: str | None = None
    block_tokens: Count = 0
    tokens: Count = 0
    group: Count | None = None
    layers: str | None = None
    session: Count | None = None
    adapter: Count | None = None
    messages: Count = 0

    @property
    def num_blocks(self) -> int:
        """How many digests ``blocks`` has."""
        return count(self.blocks)

    @property
    def digests(self) -> list[str]:
        """The digests of ``blocks``."""
        return split(self.blocks)


_decoder = msgspec.json.Decoder(Line)


def parse(text: bytes) -> Line:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    line = _decoder.decode(text)
    count(line.blocks)
    count(line.parent or "")
    if line.what == "stored" and (not line.blocks or not line.block_tokens):
        raise ValueError("blocks were stored, and the line has no blocks or no block_tokens")
    return line
