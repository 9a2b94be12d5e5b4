"""Weka's agent traces as they are published: a JSON object a line, with whole lists of block ids.

Source: the raw files of github.com/callanjfox/kv-cache-tester, and the corpora made of them. A
file holds one conversation; several files may be put together, one a line. The conversation is
read as `hybrid_blocks.trace.conversations` reads its delta-coded form.
"""

from typing import Any

import msgspec

from hybrid_blocks.trace import conversations
from hybrid_blocks.trace.conversations import Conversation, Id, Length, Seconds


class Turn(msgspec.Struct):
    """One request, or a subagent with a list of its own."""

    t: Seconds
    type: str
    input_tokens: Length = msgspec.field(name="in", default=0)
    output_tokens: Length = msgspec.field(name="out", default=0)
    hash_ids: list[Id] = []
    think_time: Seconds | None = None
    api_time: Seconds | None = None
    requests: list["Turn"] = []
    tool_tokens: Length = 0
    system_tokens: Length = 0


class Record(msgspec.Struct):
    """One line."""

    id: str
    requests: list[Turn]
    block_size: int = conversations.TOKENS_PER_ID
    tool_tokens: Length = 0
    system_tokens: Length = 0


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Conversation:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    conversation = Conversation(
        id=record.id,
        requests=_coded(record.requests),
        block_size=record.block_size,
        tool_tokens=record.tool_tokens,
        system_tokens=record.system_tokens,
    )
    conversations.check(conversation)
    return conversation


def _coded(turns: list[Turn]) -> list[conversations.Turn]:
    """Say of each list what it keeps of the list before."""
    coded = []
    held: list[int] = []
    for turn in turns:
        fields: dict[str, Any] = msgspec.structs.asdict(turn)
        ids = fields.pop("hash_ids")
        fields["requests"] = _coded(turn.requests)
        if turn.type != "subagent":
            pairs = zip(held, ids, strict=False)
            keep = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
            fields["keep"] = min(len(held), len(ids)) if keep is None else keep
            fields["new"] = ids[fields["keep"] :]
            held = ids
        coded.append(conversations.Turn(**fields))
    return coded
