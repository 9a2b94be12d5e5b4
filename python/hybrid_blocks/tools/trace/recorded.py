"""Traffic that an engine recorded itself: ``HYBRID_BLOCKS_RECORD`` of the plugin writes it.

Each line is one finished request. Its blocks have keyed digests: two lines with the same leading
digests shared that prefix. The file holds no token and no text, and nothing holds the key.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from hybrid_blocks.recording.recorder import DIGEST_CHARACTERS
from hybrid_blocks.tools.trace.builder import MAX_TOKEN_ID, TraceBuilder

MARKS: Final = (b'"hybrid_blocks_request"',)
"""Fields of each line that no other format has."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKEN_ID)]


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One finished request.

    Attributes:
        number: counts the requests of the file, from 0.
        arrival: seconds since the engine began.
        block_tokens: tokens of a block that has a digest.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        found_tokens: prompt tokens that the engine found in its cache; None if it did not say.
        blocks: a keyed digest of 12 characters for each whole block of prompt and answer, in order.
        session: counts the sessions of the file, from 0; None without a session.
        adapter: counts the LoRA adapters of the file, from 0; None without one.
        priority: the request's priority in vLLM.
        aborted: whether the client gave up.
        scheduled: when it first ran, in seconds after its arrival. This and the next two are None
            in files of engines that do not tell them.
        first_token: when its first token was there, in the same seconds.
        finished: when its last token was there.
    """

    number: Count = msgspec.field(name="hybrid_blocks_request")
    arrival: float
    block_tokens: Tokens
    prompt_tokens: Tokens
    output_tokens: Count
    blocks: str
    found_tokens: Count | None = None
    session: Count | None = None
    adapter: Count | None = None
    priority: int = 0
    aborted: bool = False
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


_decoder = msgspec.json.Decoder(Record)


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    record = _decoder.decode(line)
    held = (record.prompt_tokens + record.output_tokens) // record.block_tokens
    num_digests = count_digests(record.blocks)
    if num_digests > held:
        raise ValueError(
            f"{record.prompt_tokens} + {record.output_tokens} tokens hold {held} blocks of "
            f"{record.block_tokens} tokens; the line has {num_digests} digests"
        )
    return record


def build(name: str, records: Sequence[Record]) -> TraceBuilder:
    """Turn records into requests in the order of arrival; an answer counts at least one token."""
    records = sorted(records, key=lambda record: record.arrival)
    tokens = max((record.block_tokens for record in records), default=1)
    numbers: dict[str, int] = {}
    for record in records:
        for digest in split_digests(record.blocks):
            numbers.setdefault(digest, len(numbers))
    builder = TraceBuilder(name, num_reserved=len(numbers) * tokens)
    sessions: dict[int, int] = {}
    for record in records:
        spans = [
            (numbers[digest] * tokens, record.block_tokens)
            for digest in split_digests(record.blocks)
        ]
        output = max(record.output_tokens, 1)
        rest = record.prompt_tokens + output - len(spans) * record.block_tokens
        if rest > 0:
            spans.append(builder.fresh(rest))
        session = -1
        if record.session is not None:
            session = sessions.setdefault(record.session, -1)
            if session < 0:
                session = sessions[record.session] = builder.new_session()
        builder.add(
            spans,
            arrival=record.arrival,
            prompt_tokens=record.prompt_tokens,
            output_tokens=output,
            session=session,
        )
    return builder


def count_digests(text: str) -> int:
    """Return how many digests stand one behind another; a ``ValueError`` if one is cut off."""
    number, rest = divmod(len(text), DIGEST_CHARACTERS)
    if rest:
        raise ValueError(
            f"digests have {DIGEST_CHARACTERS} characters each, and these have {len(text)} together"
        )
    return number


def split_digests(text: str) -> list[str]:
    """Return the digests that stand one behind another."""
    return [text[at : at + DIGEST_CHARACTERS] for at in range(0, len(text), DIGEST_CHARACTERS)]
