"""Send each prompt to the replica that holds most of it: two replicas of vLLM with KV events.

Start the replicas with events of the blocks that a hit can use, then this router:

    export HYBRID_BLOCKS=natural HYBRID_BLOCKS_EVENTS=usable
    vllm serve MODEL --port 8001 --kv-events-config \
      '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'
    vllm serve MODEL --port 8002 --kv-events-config \
      '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5558"}'
    python examples/router.py http://localhost:8001=tcp://localhost:5557 \
      http://localhost:8002=tcp://localhost:5558

Each line of the input is a prompt, as token numbers; the router prints where to send it. A prompt
counts the blocks from its start that the events name. With plain events it would also count
attention behind the last state, from which a hybrid model cannot resume.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec


class Replica:
    """The blocks of attention that one replica holds, by the tokens that lead to them."""

    def __init__(self) -> None:
        self.keys: dict[Any, int] = {}  # of the replica's hashes
        self.held: set[int] = set()
        self.attention: set[int | None] = set()  # groups
        self.block_size = 16
        self.num_sent = 0

    def read(self, payload: bytes) -> None:
        """Take in a batch of events as vLLM publishes it: its time, and maps of fields."""
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.keys.clear()
                self.held.clear()
            elif event["type"] == "BlockStored":
                self._store(event)
            elif event.get("group_idx") in self.attention:
                known = [one for one in event["block_hashes"] if one in self.keys]
                self.held -= {self.keys.pop(one) for one in known}

    def count(self, tokens: Sequence[int]) -> int:
        """Return how many blocks from the start of a prompt are held."""
        return sum(1 for _ in takewhile(self.held.__contains__, self._chain(None, tokens)))

    def _store(self, event: dict[str, Any]) -> None:
        if event.get("kv_cache_spec_kind") not in (None, "full_attention", "mla_attention"):
            return
        parent = event["parent_block_hash"]
        if parent is not None and parent not in self.keys:
            return  # it was stored before the router listened
        self.attention.add(event.get("group_idx"))
        self.block_size = event["block_size"]
        before = None if parent is None else self.keys[parent]
        chain = list(self._chain(before, event["token_ids"]))
        self.keys |= zip(event["block_hashes"], chain, strict=True)
        self.held |= set(chain)

    def _chain(self, key: int | None, tokens: Sequence[int]) -> Iterator[int]:
        """Yield a key for each whole block, of its tokens and all before them."""
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            key = hash((key, tuple(tokens[end - self.block_size : end])))
            yield key


class Router:
    """Chooses a replica for each prompt."""

    def __init__(self, names: Sequence[str]) -> None:
        self.replicas = {name: Replica() for name in names}

    def choose(self, tokens: Sequence[int]) -> str:
        """Return the replica that holds most of a prompt, of equal ones the least used."""

        def worth(name: str) -> tuple[int, int]:
            return self.replicas[name].count(tokens), -self.replicas[name].num_sent

        best = max(self.replicas, key=worth)
        self.replicas[best].num_sent += 1
        return best


def listen(replica: Replica, endpoint: str) -> None:
    """Read events of a replica until the process ends."""
    import zmq  # noqa: PLC0415 - vLLM brings it

    socket: Any = zmq.Context.instance().socket(zmq.SUB)
    socket.connect(endpoint)
    socket.subscribe("")
    while True:
        _topic, _number, payload = socket.recv_multipart()
        replica.read(payload)


def main(*arguments: str) -> None:
    """Listen to replicas, and print one for each prompt of the standard input."""
    endpoints = dict(argument.rsplit("=", 1) for argument in arguments)
    router = Router(list(endpoints))
    for name, endpoint in endpoints.items():
        target = (router.replicas[name], endpoint)
        threading.Thread(target=listen, args=target, daemon=True).start()
    for line in sys.stdin:
        print(router.choose([int(word) for word in line.split()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
