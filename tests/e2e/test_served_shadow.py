"""``hybrid-blocks shadow`` beside a served engine finds of each request what the engine found."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import models
import pytest
from ports import HOST, held_port
from server import Server, environment, serve
from traffic import PREFIX, Answer, complete_in_turn, encode

pytestmark = pytest.mark.full

MEMORY = 4 << 20
BLOCK = {"off": 128, "natural": 32}
"""Level and tokens of a block that the CPU's kernels take there."""
PROMPTS = [
    f"{number:02} {PREFIX * 2}"[: 200 + 150 * turn] for turn in range(4) for number in range(6)
]
"""Turns of conversations side by side; a prompt begins with all of the one before."""
PATIENCE_S = 180.0

Told = tuple[list[Answer], Server]
"""Answers of an engine to its clients, and the shadow beside the engine."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    """Serve the same requests at each level, each with a shadow from its start on."""
    folder = tmp_path_factory.mktemp("shadow")
    model = models.build("granitemoehybrid", name="granite_bfloat16", dtype="bfloat16")
    found: dict[str, Told] = {}
    with ExitStack() as stack:
        for level, block in BLOCK.items():
            record = folder / f"{level}.jsonl.zst"
            options = ["--block-size", str(block), "--max-num-batched-tokens", "256"]
            options += ["--mamba-ssm-cache-dtype", "float32"]  # the CPU's kernels know no other
            server = stack.enter_context(
                serve(
                    model,
                    level,
                    folder / f"{level}.log",
                    *(*options, "--kv-cache-memory-bytes", str(MEMORY)),
                    variables={"HYBRID_BLOCKS_RECORD": str(record)},
                )
            )
            port, log = stack.enter_context(held_port()), folder / f"{level}.shadow.log"
            command = [
                *(sys.executable, "-W", "ignore", "-m", "hybrid_blocks", "shadow", str(record)),
                *("--model", str(model), "--memory", str(MEMORY), "--level", level, *options),
                *("--max-num-seqs", "128", "--host", HOST, "--port", str(port)),
            ]
            with log.open("wb") as output:
                shadow = stack.enter_context(
                    subprocess.Popen(command, env=environment("off"), stdout=output, stderr=output)
                )
            stack.callback(shadow.terminate)
            answers = asyncio.run(complete_in_turn(server, PROMPTS, max_tokens=8))
            found[level] = answers, Server(f"http://{HOST}:{port}", log, shadow.pid)
        yield found


def wait_for(shadow: Server, text: str) -> str:
    """Wait until the shadow has printed what a pattern matches; return it."""
    deadline = time.monotonic() + PATIENCE_S
    while (match := re.search(text, shadow.log_text())) is None:
        assert time.monotonic() < deadline, shadow.log_text()
        time.sleep(0.5)
    return match[0]


@pytest.mark.parametrize("level", BLOCK)
def test_the_replay_of_its_level_finds_what_clients_saw(told: dict[str, Told], level: str) -> None:
    answers, shadow = told[level]
    line = wait_for(shadow, r".*\(\d+ of [1-9]\d* requests\).*")
    own = "natural" if level == "natural" else "vllm"
    assert f"{own} differs from engine: 0.0% (0 of {len(PROMPTS)} requests)" in line
    figures = {
        f"{name} {labels}": value
        for (name, labels), value in shadow.samples()
        if 'model_name="granite_bfloat16",engine="0"' in labels
    }

    def counted(name: str) -> dict[str, float]:
        rows = (it for it in figures.items() if it[0].startswith(f"hybrid_blocks_shadow_{name}"))
        return {re.sub(r'.*replay="|"$', "", key): value for key, value in rows}

    seen = sum(answer.cached_tokens for answer in answers)
    found = counted("found_tokens_total")
    assert found["engine"] == found[own] == seen > 0
    assert found.keys() == {"engine", "vllm", "natural"}
    assert list(counted("differing_tokens_total").values()) == [0]
    assert list(counted("prompt_tokens_total").values()) == [sum(map(len, map(encode, PROMPTS)))]
    assert counted("running") == {"vllm": 1, "natural": 1}
    assert counted("first_tokens_total")["engine"] == len(PROMPTS)
