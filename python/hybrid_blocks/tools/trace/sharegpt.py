"""ShareGPT: conversations as text, a JSON list of them or one a line.

Source: the files that ``vllm bench serve --dataset-name sharegpt`` reads. They leave some questions
open. This module answers them:

- There are no tokens. A tokenizer makes them (``--tokenizer``), or `Pieces` without one. Prompts
  share what they begin with alike.
- There are no times. A conversation opens each `CONVERSATION_GAP` seconds, and a person answers
  after `PAUSE` seconds.
- Each answer of the model is a request whose prompt is the conversation before it. Messages without
  an answer make no request, and neither does an answer without a message before it.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import msgspec

from hybrid_blocks.inputs import read_input
from hybrid_blocks.tools.trace.builder import Span, TraceBuilder
from hybrid_blocks.tools.trace.errors import TraceError

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


def build(
    name: str, records: Sequence[Conversation], tokenizer: Path | None = None
) -> TraceBuilder:
    """Turn each answer into a request that follows the one before it."""
    encoding = encoding_of(tokenizer)
    builder = TraceBuilder(name, num_reserved=encoding.num_reserved)
    for index, conversation in enumerate(records):
        history: list[Span] = []
        prompt_tokens, follows = 0, -1
        session = builder.new_session()
        for message in conversation.conversations:
            spans = encoding.spans(message.value, builder)
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


class Encoding(Protocol):
    """Makes spans of text; equal text has equal spans."""

    @property
    def num_reserved(self) -> int:
        """Token ids that belong to the encoding."""

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:
        """Return the spans of a text."""


class Pieces:
    """A token stands for `BYTES_PER_TOKEN` bytes of UTF-8, about what tokenizers make of English.

    Text is cut into pieces of `PIECE_TOKENS` tokens, and equal pieces have equal ids.
    """

    num_reserved = 0

    def __init__(self) -> None:
        self._known: dict[bytes, Span] = {}

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:
        """Return one span for each piece."""
        return [self._span(piece, builder) for piece in _cut(text.encode(errors="surrogatepass"))]

    def _span(self, piece: bytes, builder: TraceBuilder) -> Span:
        span = self._known.get(piece)
        if span is None:
            span = self._known[piece] = builder.fresh(-(-len(piece) // BYTES_PER_TOKEN))
        return span


class Tokenizer:
    """Tokens as a model's ``tokenizer.json`` makes them.

    Raises:
        TraceError: the package ``tokenizers`` is missing, or the file cannot be read.

    """

    def __init__(self, file: Path) -> None:
        path = file / "tokenizer.json" if file.is_dir() else file
        try:
            from tokenizers import Tokenizer as Loaded  # noqa: PLC0415 -- optional, slow
        except ImportError:
            raise TraceError("--tokenizer needs tokenizers: pip install tokenizers") from None
        try:
            self._tokenizer: Any = Loaded.from_buffer(read_input(path))
        except Exception as error:  # noqa: BLE001 -- tokenizers raises it as it is
            raise TraceError(f"--tokenizer {path}: {error}") from None
        self.num_reserved = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        self._ids = lru_cache(maxsize=4096)(self._encode)

    def spans(self, text: str, builder: TraceBuilder) -> list[Span]:  # noqa: ARG002 -- as Pieces
        """Return one span for each token."""
        return [(token, 1) for token in self._ids(text)]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def encoding_of(tokenizer: Path | None) -> Encoding:
    """Return the tokenizer of a file, or pieces without one."""
    return Pieces() if tokenizer is None else Tokenizer(tokenizer)


def _cut(text: bytes) -> Iterator[bytes]:
    size = PIECE_TOKENS * BYTES_PER_TOKEN
    ends = [*range(0, len(text), size), len(text)]
    for start, end in pairwise(ends):
        yield text[start:end]
