"""Time to first token of long prompts: computed, and restored from host memory, disk and objects.

Each engine is a process of its own, as vLLM is set up once a process. All have the same bytes for
the device's cache, too few for the prompts together.
"""

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import models
from hybrid_blocks.tools.doctor.features import transfer
from program import answer_of
from rich.console import Console
from rich.table import Table
from server import environment

FOLDER = Path("build") / "ttft"
DEVICE_BYTES = 24 * 2**20
NUM_PROMPTS = 3
OURS = {
    "spec_name": "HybridOffloadingSpec",
    "spec_module_path": "hybrid_blocks.offload",
    "host": "1GiB",
    "read": "longest",  # Each tier is read, so its cost is measured.
}
# vLLM's own offloading does not run on its CPU engine.
SIDES: dict[str, tuple[str, dict[str, Any] | None]] = {
    "vLLM alone": ("off", None),
    "level manager": ("manager", OURS),
    "level natural": ("natural", OURS),
}


class Measured(NamedTuple):
    """Seconds to the first token of each prompt, and the tokens that were not computed."""

    seconds: list[float]
    found: list[int]

    @property
    def cell(self) -> str:
        """Return the median time."""
        return f"{median(self.seconds) * 1000:,.0f} ms"


class Row(NamedTuple):
    """A side, what its prompts came from, and how long they took."""

    side: str
    source: str
    measured: Measured


def main() -> int:
    options = _arguments()
    console = Console()
    rows: list[Row] = []
    for side in options.sides.split(","):
        for row in _measure(side, options.tokens):
            console.print(f"{row.side}, {row.source}: {row.measured.cell}")
            rows.append(row)
    console.print(_table(rows, options.tokens))
    if options.record:
        options.record.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return 0


def _measure(side: str, num_tokens: int) -> Iterator[Row]:
    level, offload = SIDES[side]
    if offload is None:
        (measured,) = _run(level, None, num_tokens, "computed").values()
        yield Row(side, "computed", measured)
        return
    disk, objects = ((FOLDER / name).absolute() for name in ("disk", "objects"))
    for folder in (disk, objects):
        shutil.rmtree(folder, ignore_errors=True)
    below = {"disk": f"{disk}:4GiB", "objects": f"file://{objects}"}
    first = _run(level, offload | below, num_tokens, "computed", "host memory")
    for source, measured in first.items():
        yield Row(side, source, measured)
    for tier, where in below.items():
        (measured,) = _run(level, offload | {tier: where}, num_tokens, tier).values()
        yield Row(side, f"{tier} after a restart", measured)


def _run(
    level: str, offload: dict[str, Any] | None, num_tokens: int, *phases: str
) -> dict[str, Measured]:
    model = models.build(
        "qwen3_next",
        FOLDER,
        f"qwen3_next-{num_tokens}",
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        moe_intermediate_size=256,
        shared_expert_intermediate_size=512,
        max_position_embeddings=2 * num_tokens,
    )
    task = {"model": str(model), "offload": offload, "tokens": num_tokens, "phases": phases}
    answer = answer_of(__file__, task, environment(level))["answers"]
    return {phase: Measured(*of) for phase, of in answer.items()}


def _table(rows: list[Row], num_tokens: int) -> Table:
    table = Table(
        title=f"time to the first token of {num_tokens:,} tokens, median of {NUM_PROMPTS}"
    )
    for name in ("engine", "prompt comes from", "time", "tokens found"):
        table.add_column(
            name, justify="left" if name in ("engine", "prompt comes from") else "right"
        )
    for row in rows:
        share = sum(row.measured.found) / (len(row.measured.found) * num_tokens)
        table.add_row(row.side, row.source, row.measured.cell, f"{share:.1%}")
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make ttft", description=__doc__)
    parser.add_argument("--tokens", type=int, default=8_000, help="tokens of a prompt")
    parser.add_argument("--sides", default=",".join(SIDES), help="engines, separated by commas")
    parser.add_argument("--record", type=Path, help="write what was measured as JSON")
    return parser.parse_args()


def _main(task: dict[str, Any]) -> None:
    # As in a server. In one process the engine asks without pause for what it waits for, and the
    # threads that load wait for the lock of Python.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - in the child only
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    num_tokens: int = task["tokens"]
    llm = LLM(
        model=task["model"],
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=num_tokens + 16,
        max_num_seqs=2,
        max_num_batched_tokens=2_048,
        enable_prefix_caching=True,
        kv_cache_memory_bytes=DEVICE_BYTES,
        kv_transfer_config=task["offload"] and transfer("OffloadingConnector", task["offload"]),
    )
    one = SamplingParams(temperature=0, max_tokens=1)

    def prompts(seed: int) -> list[list[int]]:
        draw = random.Random(seed)
        return [[draw.randrange(256) for _ in range(num_tokens)] for _ in range(NUM_PROMPTS)]

    def first_tokens(of: list[list[int]]) -> tuple[list[float], list[int]]:
        seconds, found = [], []
        for tokens in of:
            began = time.perf_counter()
            (output,) = llm.generate([TokensPrompt(prompt_token_ids=tokens)], one, use_tqdm=False)
            seconds.append(time.perf_counter() - began)
            found.append(output.num_cached_tokens or 0)
        return seconds, found

    first_tokens(prompts(0)[:1])  # The first prompt compiles and allocates.
    answers: dict[str, tuple[list[float], list[int]]] = {}
    for phase in task["phases"]:
        if phase == "host memory":
            first_tokens(prompts(2))  # Other prompts evict these from the device.
        answers[phase] = first_tokens(prompts(1))
    print(json.dumps({"answers": answers}), flush=True)
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    # This program starts itself as the child, with a task in JSON; a user gives options.
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        _main(json.loads(sys.argv[1]))
    else:
        sys.exit(main())
