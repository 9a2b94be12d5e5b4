"""ShareGPT: conversations as text, a JSON list of them or one a line.

Source: the files that ``vllm bench serve --dataset-name sharegpt`` reads. They have no tokens and
no times: each token stands for `BYTES_PER_TOKEN` bytes, a conversation opens each
`CONVERSATION_GAP` seconds, and a person answers after `PAUSE`. Messages without an answer make no
request, and neither does an answer without a message before it.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from hybrid_blocks.tools.trace.builder import Span, TraceBuilder

CONVERSATION_GAP = 1.0
PAUSE = 15.0

_ANSWERS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})
BYTES_PER_TOKEN = 4
PIECE_TOKENS = 64


class Message(msgspec.Struct):
    """One message and its sender."""

    sender: str = msgspec.field(name="from")
    value: str

    @property
    def is_answer(self) -> bool:
        """Whether the model said it."""
        return self.sender.lower() in _ANSWERS


class Conversation(msgspec.Struct):
    """One record; other fields of the file say nothing of a cache."""

    conversations: list[Message]


_decoder = msgspec.json.Decoder(Conversation)


def parse(line: bytes) -> Conversation:
    """Read one record; a ``ValueError`` says what is wrong with it."""
    return _decoder.decode(line)


def build(name: str, records: Sequence[Conversation]) -> TraceBuilder:
    """Turn each answer into a request that follows the one before it."""
    builder = TraceBuilder(name)
    pieces = _Pieces(builder)
    for index, conversation in enumerate(records):
        history: list[Span] = []
        prompt_tokens, follows = 0, -1
        session = builder.new_session()
        for message in conversation.conversations:
            spans = pieces.spans(message.value)
            num_tokens = sum(count for _, count in spans)
            history += spans
            if message.is_answer and prompt_tokens and num_tokens:
                follows = builder.add(
                    history,
                    arrival=index * CONVERSATION_GAP if follows < 0 else PAUSE,
                    prompt_tokens=prompt_tokens,
                    output_tokens=num_tokens,
                    follows=follows,
                    session=session,
                )
            prompt_tokens += num_tokens
    return builder


class _Pieces:
    """Makes spans of text, and equal ones of equal pieces of `PIECE_TOKENS` tokens.

    A token stands for `BYTES_PER_TOKEN` bytes of UTF-8, about what tokenizers make of English.
    """

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder
        self._known: dict[bytes, Span] = {}

    def spans(self, text: str) -> list[Span]:
        return [self._span(piece) for piece in _cut(text.encode(errors="surrogatepass"))]

    def _span(self, piece: bytes) -> Span:
        span = self._known.get(piece)
        if span is None:
            span = self._known[piece] = self._builder.fresh(-(-len(piece) // BYTES_PER_TOKEN))
        return span


def _cut(text: bytes) -> Iterator[bytes]:
    size = PIECE_TOKENS * BYTES_PER_TOKEN
    ends = [*range(0, len(text), size), len(text)]
    for start, end in pairwise(ends):
        yield text[start:end]
