"""Make requests of the input of kvcache.ai's hit rate simulator.

    python examples/convert/kvcache_simulator.py < trace.jsonl > requests.jsonl

A line has ``block_size``, ``hash_ids`` and ``input_length``, maybe ``block_tokens``,
``output_length`` and a ``timestamp`` in ms. Without one a request comes each second.
"""

import json
import sys
from collections.abc import Iterable, Iterator

from request_lines import Piece, line, num_tokens


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each request."""
    for number, text in enumerate(filter(str.strip, lines)):
        request = json.loads(text)
        ids, size = request["hash_ids"], request["block_size"]
        whole = [size] * (len(ids) - 1)
        sizes = request.get("block_tokens") or [*whole, request["input_length"] - sum(whole)]
        prompt: list[Piece] = [(str(one), count) for one, count in zip(ids, sizes, strict=True)]
        if num_tokens(prompt) != request["input_length"] or not 0 < sizes[-1] <= size:
            raise SystemExit(f"request {number + 1}: its hash_ids are not of its input_length")
        answer: Piece = ("answer", number), max(request.get("output_length", 0), 1)
        yield line(number, request.get("timestamp", number * 1e3) / 1e3, prompt, [answer])


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
