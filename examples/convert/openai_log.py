"""Make requests of a log of OpenAI-style requests, as proxies and batches keep them.

    python examples/convert/openai_log.py < log.jsonl > requests.jsonl

A line is the body of a request, or holds it under ``request`` or ``body``. Its ``response`` is a
text or what the API returned. 4 bytes count as a token, and ChatML stands for the model's template.
An answer has its text, else ``completion_tokens``, else ``max_tokens``, else one token. A line
without a time comes a second after the line before it.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from request_lines import BLOCK, Piece, line

BYTES_PER_TOKEN = 4
TIMES = ("timestamp", "created", "time", "created_at")
SESSIONS = ("session_id", "conversation_id", "user")
MILLISECONDS = 1e11  # times above this would lie 3,000 years ahead in seconds


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each request."""
    when = -1.0
    sessions: dict[Any, int] = {}
    for number, text in enumerate(filter(str.strip, lines)):
        fields = json.loads(text)
        body = next((it for it in map(fields.get, ("request", "body")) if it), fields)
        known = {**body, **fields}
        name = next((known[key] for key in SESSIONS if known.get(key)), number)
        session = sessions.setdefault(name, len(sessions))
        when = next((_seconds(known[key]) for key in TIMES if known.get(key)), when + 1)
        prompt = [piece for text in _prompt(body) for piece in _pieces(text)]
        answer = _answer(body, fields.get("response"))
        counted: list[Piece] = [(("answer", number), answer)] if isinstance(answer, int) else []
        yield line(number, when, prompt, counted or _pieces(str(answer)), session)


def _prompt(body: dict[str, Any]) -> Iterator[str]:
    if isinstance(body.get("prompt"), str):
        yield body["prompt"]
        return
    if body.get("tools"):
        yield json.dumps(body["tools"])
    for message in body["messages"]:
        yield f"<|im_start|>{message['role']}\n"
        content = message.get("content") or ""
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        yield from parts
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"])
        yield "<|im_end|>\n"
    yield "<|im_start|>assistant\n"


def _answer(body: dict[str, Any], response: Any) -> str | int:
    """Return the text of an answer, or its number of tokens."""
    while isinstance(response, dict) and response.get("body"):
        response = response["body"]
    if isinstance(response, str) and response:
        return response
    response = response if isinstance(response, dict) else {}
    choice = next(iter(response.get("choices") or ()), response)
    text = (choice.get("message") or {}).get("content") or choice.get("text")
    usage = response.get("usage") or body.get("usage") or {}
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    return text or max(usage.get("completion_tokens") or asked or 1, 1)


def _pieces(text: str) -> list[Piece]:
    content, size = text.encode(errors="replace"), BLOCK * BYTES_PER_TOKEN
    cut = [content[at : at + size] for at in range(0, len(content), size)]
    return [(piece, -(-len(piece) // BYTES_PER_TOKEN)) for piece in cut]


def _seconds(value: str | float) -> float:
    if isinstance(value, str):
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return value / 1e3 if value > MILLISECONDS else value


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
