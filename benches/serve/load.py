"""A mixed load: chats of several turns, short questions that return, long generations."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from server import Server
from traffic import PREFIX, client, complete

SHORT_TOKENS, CHAT_TOKENS, LONG_TOKENS = 16, 24, 200
_TURNS = 4
_WORDS = ("slab", "state", "block", "window", "prefix", "chunk", "token", "cache", "batch")


@dataclass(frozen=True)
class Request:
    """A prompt, the tokens to generate, and when it is sent, in seconds from the start."""

    prompt: str
    max_tokens: int
    at_s: float


@dataclass(frozen=True)
class Done:
    """A finished request, in seconds from the start; ``latency_s`` is to its last token."""

    request: Request
    tokens: tuple[int, ...]
    cached_tokens: int
    latency_s: float
    end_s: float


def requests(num_sessions: int, rate: float, seed: int) -> list[Request]:
    """Return the requests of sessions that start at ``rate`` a second, in order of arrival."""
    draw = random.Random(seed)
    made = [
        request
        for number in range(num_sessions)
        for request in _session(draw, number, number / rate)
    ]
    return sorted(made, key=lambda request: request.at_s)


def _session(draw: random.Random, number: int, start_s: float) -> Iterator[Request]:
    words = " ".join(draw.choices(_WORDS, k=draw.randint(4, 20)))
    match number % 4:
        case 0:
            yield Request(f"{number} {words} " + PREFIX[:200], LONG_TOKENS, start_s)
        case 1:
            question = f"What is a {_WORDS[number // 4 % len(_WORDS)]}? " * 4
            yield Request(question, SHORT_TOKENS, start_s)
        case _:
            history = f"{PREFIX[:300]} Chat {number}."
            for turn in range(_TURNS):
                history += f" {turn}: {words} " + " ".join(draw.choices(_WORDS, k=6))
                yield Request(history, CHAT_TOKENS, start_s + turn * 2.0)


async def send(server: Server, load: list[Request]) -> list[Done]:
    """Send each request at its time, and return them all once the last is done."""
    start = time.monotonic()
    async with client(server) as api:

        async def one(request: Request) -> Done:
            await asyncio.sleep(max(0.0, start + request.at_s - time.monotonic()))
            sent = time.monotonic()
            answer = await complete(api, request.prompt, request.max_tokens)
            end = time.monotonic()
            return Done(request, answer.tokens, answer.cached_tokens, end - sent, end - start)

        return await asyncio.gather(*map(one, load))
