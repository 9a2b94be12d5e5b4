"""Requests that clients send to the server, and the answers they get back."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from openai import AsyncOpenAI
from rig import tokenizer
from server import MODEL, Server

# Long enough for several blocks of any of the models, whose vocabulary is bytes.
PREFIX = (
    "A block manager hands out the memory that a language model needs while it serves requests: "
    "attention blocks, sliding-window blocks and recurrent state slots, all from one arena, with a "
    "prefix cache over all of them. "
) * 2

_TOKENIZER = tokenizer.make()
_BETWEEN_ARRIVALS_S = 0.05
_UNTIL_ALL_ARE_QUEUED_S = 4.0


@dataclass(frozen=True)
class Answer:
    """Token ids that a request produced, and how many tokens of its prompt were cached."""

    tokens: tuple[int, ...]
    cached_tokens: int


def encode(text: str) -> list[int]:
    """Return the tokens of a text; each is a byte."""
    ids: list[int] = _TOKENIZER.encode(text).ids
    return ids


def client(server: Server) -> AsyncOpenAI:
    """Return a client that never retries: every answer is a first one."""
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=600)


async def complete(api: AsyncOpenAI, prompt: str, max_tokens: int) -> Answer:
    """Stream one greedy completion to its end."""
    stream = await api.completions.create(
        model=MODEL,
        prompt=encode(prompt),
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    tokens: list[int] = []
    cached = 0
    async for chunk in stream:
        for choice in chunk.choices:
            tokens.extend((choice.model_extra or {}).get("token_ids") or ())
        if chunk.usage and chunk.usage.prompt_tokens_details:
            cached = chunk.usage.prompt_tokens_details.cached_tokens or 0
    return Answer(tuple(tokens), cached)


async def complete_together(
    server: Server, prompts: Sequence[str], max_tokens: int
) -> list[Answer]:
    """Stream all completions at the same time.

    The engine is paused while they arrive, one after the other: what it then does depends on its
    scheduler alone, so that two runs compute the same batches and round the same way.
    """
    async with client(server) as api:
        await asyncio.to_thread(server.pause)
        answers = []
        for prompt in prompts:
            answers.append(asyncio.create_task(complete(api, prompt, max_tokens)))
            await asyncio.sleep(_BETWEEN_ARRIVALS_S)
        await asyncio.sleep(_UNTIL_ALL_ARE_QUEUED_S)
        await asyncio.to_thread(server.resume)
        return await asyncio.gather(*answers)


async def complete_in_turn(server: Server, prompts: Sequence[str], max_tokens: int) -> list[Answer]:
    """Stream the completions one after the other."""
    async with client(server) as api:
        return [await complete(api, prompt, max_tokens) for prompt in prompts]


async def hang_up(server: Server, prompts: Sequence[str], after: int) -> None:
    """Start all completions at the same time and disconnect after some pieces of each."""

    async def start(api: AsyncOpenAI, prompt: str) -> None:
        stream = await api.completions.create(
            model=MODEL, prompt=prompt, max_tokens=900 - len(prompt), temperature=0.0, stream=True
        )
        seen = 0
        async for _ in stream:
            seen += 1
            if seen == after:
                await stream.close()
                return

    async with client(server) as api:
        await asyncio.gather(*(start(api, prompt) for prompt in prompts))


async def shortfalls(server: Server, prompt: str, tokens: Sequence[int]) -> list[float]:
    """Return how far below the likeliest token each token of an answer is, in nats.

    The server computes prompt and answer again, in one piece and without its prefix cache.
    """
    known = encode(prompt)
    async with client(server) as api:
        completion = await api.completions.create(
            model=MODEL,
            prompt=[*known, *tokens],
            max_tokens=1,
            temperature=0.0,
            extra_body={"prompt_logprobs": 1, "ignore_eos": True},
        )
    scored = (completion.choices[0].model_extra or {})["prompt_logprobs"][len(known) :]
    return [
        max(entry["logprob"] for entry in place.values()) - place[str(token)]["logprob"]
        for token, place in zip(tokens, scored, strict=True)
    ]
