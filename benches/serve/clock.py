"""The virtual clock beside a served engine: fitted to one load, and compared with it and another.

A small hybrid is served on vLLM's CPU engine with its traffic recorded. The clock is fitted to the
first load. Then both loads are served in virtual time.
"""

import argparse
import asyncio
import random
import sys
import time
from itertools import accumulate
from pathlib import Path

import models
from hybrid_blocks.replay import EngineConfig
from hybrid_blocks.sizing.fit import error_line, errors_of, fit
from hybrid_blocks.sizing.served import read_served
from load import Request, send
from server import serve

FOLDER = Path("build") / "clock"
MODEL_TOKENS = 4_096
KIND = "granitemoehybrid"
STEP_TOKENS = models.TOKENS_PER_STEP[KIND]
WARM = 4
_FLUSHED_S = 2
"""An engine that is stopped may lose the lines of its last second."""


def main() -> int:
    options = _arguments()
    rates = [float(rate) for rate in options.rates.split(",")]
    loads = [_load(options.requests, rate, seed) for seed, rate in enumerate(rates)]
    recorded = _serve(options.level, [_load(WARM, 1.0, len(rates)), *loads])
    files = []
    lines = iter(recorded[WARM:])
    for rate, load in zip(rates, loads, strict=True):
        file = FOLDER / f"rate-{rate:g}.jsonl"
        file.write_text("".join(next(lines) for _ in load))
        files.append(file)
    config = EngineConfig(max_num_batched_tokens=STEP_TOKENS)
    found = fit(read_served(files[0]), config)
    for line in found.lines:
        print(line)
    for rate, file in zip(rates[1:], files[1:], strict=True):
        print(f"the same clock for {rate:g} requests a second instead of {rates[0]:g}:")
        for error in errors_of(read_served(file), found.step_time, config):
            print(error_line(error))
    return 0


def _serve(level: str, loads: list[list[Request]]) -> list[str]:
    """Serve loads one after the other; return the lines that the engine recorded."""
    model = models.build(KIND, FOLDER, max_position_embeddings=MODEL_TOKENS)
    path = FOLDER.absolute() / "traffic.jsonl"
    path.unlink(missing_ok=True)
    limits = ("--max-model-len", str(MODEL_TOKENS), "--max-num-batched-tokens", str(STEP_TOKENS))
    log, record = FOLDER / f"{level}.log", {"HYBRID_BLOCKS_RECORD": str(path)}
    with serve(model, level, log, *limits, variables=record) as server:
        for load in loads:
            asyncio.run(send(server, load))
        time.sleep(_FLUSHED_S)
    lines = path.read_text().splitlines(keepends=True)
    if len(lines) != (num := sum(map(len, loads))):
        raise RuntimeError(f"{path} has {len(lines)} lines for {num} requests; see {log}")
    return lines


def _load(num_requests: int, rate: float, seed: int) -> list[Request]:
    """Requests of drawn lengths that arrive at random and share nothing.

    Prompts are shorter than a step: a longer one waits until no other request decodes, as what they
    leave of a step holds no whole block of states.
    """
    draw = random.Random(seed)
    times = accumulate(draw.expovariate(rate) for _ in range(num_requests))
    made = []
    for at in times:
        length = draw.randint(20, STEP_TOKENS - 32)
        prompt = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=length))
        made.append(Request(prompt, draw.randint(8, 32), at))
    return made


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make clock", description=__doc__)
    parser.add_argument("--requests", type=int, default=80, help="requests of each load")
    parser.add_argument("--rates", default="2,4", help="requests a second; fitted to the first")
    parser.add_argument("--level", default="manager", help="level of the plugin")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
