"""Make requests of Alibaba's traces qwen-bailian-usagetraces-anon.

    python examples/convert/bailian.py < trace.jsonl > requests.jsonl

A hash stands for 16 tokens of its block alone, and no cache finds a block behind another prefix.
So a block has one name for each prefix. ``parent_chat_id`` is the turn before.
"""

import json
import sys
from collections.abc import Iterable, Iterator

from request_lines import BLOCK, Piece, line


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each request."""
    chains: dict[tuple[int, object], int] = {}
    sessions: dict[object, int] = {}
    for number, text in enumerate(filter(str.strip, lines)):
        chat = json.loads(text)
        left, before = chat["input_length"], -1
        if len(chat["hash_ids"]) not in {left // BLOCK, -(-left // BLOCK)}:
            raise SystemExit(f"request {number + 1}: its hash_ids are not of its input_length")
        prompt: list[Piece] = []
        for hash_id in chat["hash_ids"]:
            before = chains.setdefault((before, hash_id), len(chains))
            prompt.append((("block", before), min(BLOCK, left)))
            left -= BLOCK
        if left > 0:
            prompt.append((("rest", number), left))
        session = sessions.get(chat.get("parent_chat_id"), number)
        sessions[chat["chat_id"]] = session
        answer: Piece = ("answer", number), max(chat["output_length"], 1)
        yield line(number, chat["timestamp"], prompt, [answer], session)


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
