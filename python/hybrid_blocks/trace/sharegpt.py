"""ShareGPT: conversations as text, a JSON list of them or one a line.

Source: the files that ``vllm bench serve --dataset-name sharegpt`` reads. They leave some questions
open. This module answers them:

- There are no tokens. A tokenizer makes them (``--tokenizer``), or `hybrid_blocks.trace.text`
  without one. Prompts share what they begin with alike.
- There are no times. A conversation opens each `CONVERSATION_GAP` seconds, and a person answers
  after `PAUSE` seconds.
- Each answer of the model is a request whose prompt is the conversation before it. Messages without
  an answer make no request, and neither does an answer without a message before it.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from hybrid_blocks.trace.builder import Span, TraceBuilder
from hybrid_blocks.trace.text import encoding_of

CONVERSATION_GAP = 1.0
PAUSE = 15.0

_ANSWERS = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model"})


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
