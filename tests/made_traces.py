"""Traces in every recorded format, made from seeds, with facts that their makers count."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

MOONCAKE_ID = 512
CONVERSATION_ID = 64


class Facts(NamedTuple):
    """Counts that a reader must find: requests, those that wait for none, tokens of the first.

    ``hit_ids`` of ``num_ids`` global ids of prompts were computed by an earlier request.
    """

    requests: int
    first: int
    prompt_tokens: int
    output_tokens: int
    hit_ids: int = 0
    num_ids: int = 0
    leading: tuple[int, ...] = ()


class _Seen:
    """Prefixes of ids that requests computed, as a tree."""

    def __init__(self) -> None:
        self._root: dict[int, Any] = {}

    def add(self, ids: list[int], num_full: int, num_served: int) -> int:
        """Take ``num_full`` leading ids; return how many of ``num_served`` were there."""
        node, hits, is_known = self._root, 0, True
        for at, one in enumerate(ids[:num_full]):
            is_known = is_known and one in node
            hits += is_known and at < num_served
            node = node.setdefault(one, {})
        return hits


def mooncake(path: Path, num_requests: int = 240) -> Facts:
    """Chats of three families of system prompts, half a minute apart."""
    random, seen = Random(1), _Seen()
    chats: list[list[int]] = []
    next_id, hits, num_ids = 10, 0, 0
    lines: list[dict[str, Any]] = []
    for number in range(num_requests):
        if chats and random.random() < 0.6:
            ids = list(random.choice(chats))
        else:
            family = random.randrange(3)
            ids = [3 * family, 3 * family + 1, 3 * family + 2][: random.randrange(4)]
        new = random.randrange(1, 5)
        ids += range(next_id, next_id + new)
        next_id += new
        chats.append(ids)
        prompt = len(ids) * MOONCAKE_ID - random.choice((0, 1, 100, 511))
        hits += seen.add(ids, prompt // MOONCAKE_ID, (prompt - 1) // MOONCAKE_ID)
        num_ids += len(ids)
        row = {"timestamp": number * 30_000, "input_length": prompt, "hash_ids": ids}
        lines.append(row | {"output_length": random.randrange(1, 60)})
    _write(path, lines)
    first = lines[0]
    return Facts(
        num_requests, num_requests, first["input_length"], first["output_length"], hits, num_ids
    )


def conversations(path: Path, num_conversations: int = 24) -> Facts:
    """Agents that call a subagent after each third turn."""
    random = Random(2)
    requests, lists = 0, 0
    lines: list[dict[str, Any]] = []
    for number in range(num_conversations):
        own, num_turns = _turns(random, 0, random.randrange(2, 7))
        requests, lists = requests + num_turns, lists + 1
        turns: list[dict[str, Any]] = []
        for at, turn in enumerate(own):
            turns.append(turn)
            if at % 3 == 2:
                sub, num_subs = _turns(random, 1000 * (at + 1), random.randrange(1, 4))
                turns.append({"t": turn["t"] + 0.5, "type": "subagent", "requests": sub})
                requests += num_subs
        lines.append({"id": f"c{number}", "block_size": 64, "requests": turns})
    _write(path, lines)
    first = lines[0]["requests"][0]
    return Facts(requests, lists, first["in"], first["out"])


def _turns(random: Random, next_id: int, num_turns: int) -> tuple[list[dict[str, Any]], int]:
    turns: list[dict[str, Any]] = []
    held = 0
    for at in range(num_turns):
        keep = max(0, held - random.choice((0, 0, 1)))
        new = random.randrange(1, 12)
        held = keep + new
        prompt = held * CONVERSATION_ID + random.randrange(CONVERSATION_ID)
        turn = {"t": 20.0 * at, "type": "n", "in": prompt, "out": random.randrange(1, 90)}
        turns.append(turn | {"keep": keep, "new": [[next_id, next_id + new - 1]]})
        next_id += new
    return turns, num_turns


def llmservingsim(path: Path, num_requests: int = 120) -> Facts:
    """Prompts with real token ids; every third begins as the one before it."""
    random = Random(3)
    lines: list[dict[str, Any]] = []
    for number in range(num_requests):
        shared = lines[-1]["input_tok_ids"][:40] if number % 3 == 2 else []
        ids = shared + [random.randrange(32_000) for _ in range(random.randrange(8, 300))]
        row = {"input_toks": len(ids), "output_toks": random.randrange(1, 80), "input_tok_ids": ids}
        lines.append(row | {"arrival_time_ns": number * 2e8})
    _write(path, lines)
    first = lines[0]
    ids = tuple(first["input_tok_ids"][:4])
    return Facts(num_requests, num_requests, first["input_toks"], first["output_toks"], leading=ids)


def azure(path: Path, num_requests: int = 200) -> Facts:
    """Write a trace that holds lengths alone."""
    random = Random(4)
    rows = [(random.randrange(1, 4000), random.randrange(0, 300)) for _ in range(num_requests)]
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for at, (prompt, output) in enumerate(rows):
        lines.append(f"2023-11-16 18:{at // 60:02}:{at % 60:02}.5000000,{prompt},{output}")
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return Facts(num_requests, num_requests, rows[0][0], max(rows[0][1], 1))


MAKERS: dict[str, Callable[[Path], Facts]] = {
    "mooncake": mooncake,
    "coding-agent": conversations,
    "sharegpt": llmservingsim,
    "azure": azure,
}
"""Makers by the names that tests give the recorded traces."""


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in lines).encode()))
