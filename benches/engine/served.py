"""``vllm serve`` with its Rust front end over a null card, and a client that keeps it full."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from cases import (
    LONGEST,
    MEMORY,
    MOST_RUNNING,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    STEP,
    STEP_TOKENS,
    Cell,
    Group,
)
from planned import fields_of
from ports import HOST, held_port
from rig import tokenizer
from server import Server, wait_until_up

WARM_SECONDS = 10.0


@contextmanager
def serving(group: Group, side: str, folder: Path) -> Iterator[Callable[[Cell], dict[str, Any]]]:
    """Serve a model at a side; yield what measures a cell over HTTP.

    All steps take what the first cell says. ``folder`` gets the model and the server's log.
    """
    model = folder / "model"
    model.mkdir(parents=True)
    tokenizer.write(model)
    fields = fields_of(group.model) | {"vocab_size": tokenizer.make().get_vocab_size()}
    (model / "config.json").write_text(json.dumps(fields))
    variables = group.sides[side] | {
        MEMORY: str(group.gib),
        STEP: group.cells[0]["step"],
        "VLLM_USE_RUST_FRONTEND": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with held_port() as port, (folder / "log").open("wb") as log:
        command = [
            *(sys.executable, "-W", "ignore", str(Path(__file__).with_name("serve.py")), "serve"),
            *(str(model), "--served-model-name", "null", "--load-format", "dummy"),
            *("--host", HOST, "--port", str(port), "--max-model-len", str(LONGEST)),
            *("--max-num-seqs", str(MOST_RUNNING), "--max-num-batched-tokens", str(STEP_TOKENS)),
            *("--enable-prefix-caching", "--language-model-only"),
        ]
        process = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=log)
        try:
            server = Server(f"http://{HOST}:{port}", folder / "log", process.pid)
            wait_until_up(server.url, process, server.log)
            yield lambda cell: asyncio.run(_measured(server, cell))
        finally:
            process.terminate()
            process.wait(timeout=60)


class Slot(asyncio.Protocol):
    """A connection that sends a request, waits for its end, and sends the next."""

    def __init__(self, load: "Load") -> None:
        self.load = load

    def connection_made(self, transport: Any) -> None:
        """Send the first request."""
        self.transport = transport
        self._send(self.load.draw.randint(1, OUTPUT_TOKENS[1]))

    def _send(self, length: int) -> None:
        prompt = list(self.load.draw.randbytes(PROMPT_TOKENS))
        body = {"model": "null", "prompt": prompt, "max_tokens": length, "ignore_eos": True}
        told = json.dumps(body | {"stream": True}).encode()
        self.length, self.begin, self.first, self.tail = length, time.perf_counter(), 0.0, b""
        self.transport.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: null\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(told), told)
        )

    def data_received(self, data: bytes) -> None:
        """Note the first token and the last, then send the next request."""
        now = time.perf_counter()
        if not self.first and b"data: " in data:
            self.first = now
            self.load.first.append((now, now - self.begin))
        self.tail = (self.tail + data)[-64:]
        if b"[DONE]" in self.tail and self.tail.endswith(b"0\r\n\r\n"):
            self.load.each.append((now, (now - self.first) / max(1, self.length - 1)))
            if not self.load.is_over:
                self._send(self.load.draw.randint(*OUTPUT_TOKENS))


class Load:
    """The state that all connections of a cell share."""

    def __init__(self) -> None:
        self.draw = Random(1)
        self.first: list[tuple[float, float]] = []
        self.each: list[tuple[float, float]] = []
        self.is_over = False


async def _measured(server: Server, cell: Cell) -> dict[str, Any]:
    load, address = Load(), urlsplit(server.url)
    connect = asyncio.get_running_loop().create_connection
    slots = [
        await connect(lambda: Slot(load), address.hostname, address.port)
        for _ in range(cell["running"])
    ]
    until = time.perf_counter() + WARM_SECONDS
    while len(load.each) < cell["running"] / 4 and time.perf_counter() < until:
        await asyncio.sleep(0.1)
    tokens, begin = _tokens(server), time.perf_counter()
    await asyncio.sleep(cell["seconds"])
    took, tokens = time.perf_counter() - begin, _tokens(server) - tokens
    load.is_over = True
    for transport, _ in slots:
        transport.abort()
    await asyncio.sleep(2)
    return {
        "tokens_s": tokens / took,
        "first_p50_ms": _median(load.first, begin),
        "token_p50_ms": _median(load.each, begin),
        "seconds": took,
    }


def _tokens(server: Server) -> float:
    return server.metrics()["vllm:generation_tokens_total"]


def _median(seconds: list[tuple[float, float]], begin: float) -> float:
    return 1e3 * float(np.median([it for at, it in seconds if at > begin] or [np.nan]))
