"""Logs of OpenAI-style requests: JSON lines with ``messages``, as proxies and batches keep them.

A line is the body of a request, or holds it under ``request`` or ``body``. ``response`` is a text,
``{"text": …}``, or what the API returned. What the lines leave open is settled here:

- Text becomes tokens by a tokenizer (``--tokenizer``), or 4 bytes count as one without it.
- ChatML stands for the model's own template: a mark before and after each message. Tools come
  first, as JSON.
- An answer has its text, else as many unique tokens as ``completion_tokens``, else ``max_tokens``.
- A line without a time arrives a second after the line before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hybrid_blocks.trace.builder import MAX_TOKEN_ID, Span, TraceBuilder
from hybrid_blocks.trace.nearest import Fields
from hybrid_blocks.trace.text import encoding_of

GAP = 1.0
_BODIES = ("request", "body")
_TIMES = ("timestamp", "created", "time", "created_at")
_SESSIONS = ("session_id", "conversation_id", "user")
FIELDS = Fields(("messages",), (*_BODIES, "response", "prompt", *_TIMES, *_SESSIONS))
_MILLISECONDS = 1e11
"""Times above this are not in seconds: as such they would lie 3,000 years ahead."""


class Record(msgspec.Struct):
    """One request: texts of its prompt in order, and what is known of its answer.

    ``is_guessed`` where the line does not tell the length of the answer.
    """

    texts: list[str]
    answer: str | None
    output_tokens: int
    is_guessed: bool
    time: float | None
    session: str | None


_decoder = msgspec.json.Decoder(dict[str, Any])


def parse(line: bytes) -> Record:
    """Read one line; a ``ValueError`` says what is wrong with it."""
    fields = _decoder.decode(line)
    body = next((fields[key] for key in _BODIES if isinstance(fields.get(key), dict)), fields)
    response = _as_returned(fields.get("response"))
    answer, counted, asked = _answer(response), _counted(body, response), _asked(body)
    has_length = answer is not None or counted is not None
    around = {**body, **fields}
    return Record(
        texts=list(_prompt(body)),
        answer=answer,
        output_tokens=_tokens(counted, asked),
        is_guessed=not has_length and (fields.get("response") is not None or asked is None),
        time=next((_time(around[key]) for key in _TIMES if around.get(key) is not None), None),
        session=next((str(around[key]) for key in _SESSIONS if around.get(key)), None),
    )


def build(name: str, records: Sequence[Record], tokenizer: Path | None = None) -> TraceBuilder:
    """Turn records into requests; an output counts at least one token."""
    encoding = encoding_of(tokenizer)
    builder = TraceBuilder(name, num_reserved=encoding.num_reserved)
    start = min((record.time for record in records if record.time is not None), default=0.0)
    sessions: dict[str, int] = {}
    before = -GAP
    for record in records:
        prompt = [span for text in record.texts for span in encoding.spans(text, builder)]
        answer: list[Span] = []
        if record.answer:
            answer = encoding.spans(record.answer, builder)
        answer = answer or [builder.fresh(record.output_tokens)]
        session = -1
        if record.session is not None:
            if record.session not in sessions:
                sessions[record.session] = builder.new_session()
            session = sessions[record.session]
        before = before + GAP if record.time is None else record.time - start
        builder.add(
            [*prompt, *answer],
            arrival=before,
            prompt_tokens=_count(prompt),
            output_tokens=_count(answer),
            session=session,
        )
        builder.guessed_answers += record.is_guessed
    return builder


def _count(spans: Sequence[Span]) -> int:
    return sum(count for _, count in spans)


def _prompt(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    if messages is None and isinstance(body.get("prompt"), str) and body["prompt"]:
        yield body["prompt"]
        return
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages is missing or empty")
    if body.get("tools"):
        yield msgspec.json.encode(body["tools"]).decode()
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("a message has no role")
        yield f"<|im_start|>{message['role']}\n"
        yield from _content(message)
        yield "<|im_end|>\n"
    yield "<|im_start|>assistant\n"


def _content(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        if content:
            yield content
    elif isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else part
                raise ValueError(f"a part of a message is {kind!r}; only text has tokens here")
            yield part["text"]
    elif content is not None:
        raise ValueError(f"the content of a message is {content!r}")
    if message.get("tool_calls"):
        yield msgspec.json.encode(message["tool_calls"]).decode()


def _as_returned(response: object) -> Mapping[str, Any]:
    """Give a response the form in which the API returns it; nothing if its form is not known."""
    if isinstance(response, dict) and response.get("body"):
        return _as_returned(response["body"])
    text = response.get("text") if isinstance(response, dict) else response
    if isinstance(text, str):
        return {"choices": [{"text": text}]}
    return response if isinstance(response, dict) else {}


def _answer(response: Mapping[str, Any]) -> str | None:
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    message = choices[0].get("message")
    if isinstance(message, dict):
        return "".join(_content(message)) or None
    text = choices[0].get("text")
    return text if isinstance(text, str) else None


def _counted(body: Mapping[str, Any], response: Mapping[str, Any]) -> object:
    usage = response.get("usage") or body.get("usage")
    return usage.get("completion_tokens") if isinstance(usage, dict) else None


def _asked(body: Mapping[str, Any]) -> object:
    most = body.get("max_completion_tokens")
    return body.get("max_tokens") if most is None else most


def _tokens(*given: object) -> int:
    """Return the first number of tokens that is given, at least 1."""
    tokens = next((number for number in given if number is not None), 1)
    if not isinstance(tokens, int) or not 0 <= tokens <= MAX_TOKEN_ID:
        raise ValueError(f"{tokens!r} tokens of an answer")
    return max(tokens, 1)


def _time(value: object) -> float:
    if isinstance(value, str):
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{value!r} is no time")
    return value / 1e3 if value > _MILLISECONDS else float(value)
