"""A clock fitted to a served CPU engine, and replays in its time beside the engine.

Servers of all settings get the same requests in turns. In each turn the clock is fitted to the
record of the first setting alone, and replays of all settings are compared with their records.
"""

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import models
import msgspec
import numpy as np
from hybrid_blocks.geometry.step_time import StepTime
from hybrid_blocks.tools.replay import EngineConfig
from hybrid_blocks.tools.replay.fit import fit
from hybrid_blocks.tools.trace.recorded import Record, build
from recorded import lines_of, replayed
from server import Server, serve
from traffic import PREFIX, client, complete

FOLDER = Path("build") / "clock"
RECORD = Path(__file__).parents[1] / "record"
STEP_TOKENS = 256
NUM_ALONE = 10
"""Requests that are sent one by one, a second apart."""
NUM_UNITS = 600
"""Blocks or slabs: no request waits for one."""
SETTINGS = {
    "level manager, 16 running": ("manager", 16),
    "level manager, 4 running": ("manager", 4),
    "level natural, 16 running": ("natural", 16),
}
"""Level and ``--max-num-seqs``; a clock is fitted to the first."""
PATIENCE_S = 30.0

Load = list[tuple[float, str, int]]
"""Requests: when each is sent, in seconds, its prompt, and tokens to generate."""
Figures = dict[str, float]


def load(seed: int) -> Load:
    """Return requests one by one, then crowds with less and less time between them."""
    draw = random.Random(seed)
    asked = [(1.0 * number, *_request(draw)) for number in range(NUM_ALONE)]
    for crowd, gap in enumerate((3.0, 2.0, 1.0, 0.5)):
        start = 12.0 + 8.0 * crowd
        asked += [(start + gap * number / 6, *_request(draw)) for number in range(16)]
    return asked


def _request(draw: random.Random) -> tuple[str, int]:
    # A third of the prompts begin alike; level natural finds them.
    begin = PREFIX[: 32 * draw.randint(6, 12)] if draw.random() < 1 / 3 else ""
    own = "".join(draw.choices("abcdefghij ", k=draw.randint(60, 400)))
    return begin + own, draw.randint(8, 64)


async def _send(server: Server, asked: Load) -> None:
    start = time.monotonic()
    async with client(server) as api:

        async def one(at: float, prompt: str, count: int) -> None:
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            await complete(api, prompt, count)

        await asyncio.gather(*(one(*request) for request in asked))


def _measured(server: Server, traffic: Path, asked: Load) -> list[Record]:
    """Serve the requests; return the lines that the engine wrote of them."""
    server.reset_prefix_cache()
    before = len(lines_of(traffic)) if traffic.exists() else 0
    asyncio.run(_send(server, asked))
    deadline = time.monotonic() + PATIENCE_S
    while len(lines := lines_of(traffic)[before:]) < len(asked):
        assert time.monotonic() < deadline, "the record lacks requests"
        time.sleep(0.2)
    return [
        msgspec.structs.replace(line, arrival=line.arrival - lines[0].arrival) for line in lines
    ]


def _figures(arrived: object, first: object, end: object, outputs: object) -> Figures:
    arrived, first, end, outputs = map(np.asarray, (arrived, first, end, outputs))
    several = outputs > 1
    each = (end - first)[several] / (outputs[several] - 1)
    alone = np.argsort(arrived)[:NUM_ALONE]
    return {
        "first_mean_ms": 1e3 * float((first - arrived).mean()),
        "first_p50_ms": 1e3 * float(np.median(first - arrived)),
        "first_p95_ms": 1e3 * float(np.percentile(first - arrived, 95)),
        "first_alone_ms": 1e3 * float((first - arrived)[alone].mean()),
        "token_mean_ms": 1e3 * float(each.mean()),
        "token_p50_ms": 1e3 * float(np.median(each)),
        "seconds": float(end.max() - arrived.min()),
    }


def figures_of(lines: list[Record]) -> Figures:
    """Return the times of an engine's record."""
    rows = [
        (it.arrival, it.arrival + it.first_token, it.arrival + it.finished, it.output_tokens)
        for it in lines
        if it.first_token is not None and it.finished is not None
    ]
    return _figures(*zip(*rows, strict=True))


def figures_by(clock: StepTime, model: Path, setting: str, lines: list[Record]) -> Figures:
    """Return the times of a replay of the same requests in a clock's time."""
    level, running = SETTINGS[setting]
    config = EngineConfig(
        max_num_seqs=running,
        max_num_batched_tokens=STEP_TOKENS,
        watermark=0.0,
        step_time=clock,
    )
    trace = build(setting, lines).build()
    engine, _ = replayed(model, trace, NUM_UNITS, config, is_natural=level == "natural")
    times = engine.latencies
    return _figures(times.arrived, times.first_token, times.finished, trace.output_tokens)


def turns(options: argparse.Namespace, model: Path) -> Iterator[dict[str, tuple[Figures, Figures]]]:
    """Yield what was measured and what was replayed of each setting, turn by turn."""
    with ExitStack() as stack:
        servers: dict[str, Callable[[Load], list[Record]]] = {}
        for setting, (level, running) in SETTINGS.items():
            name = setting.replace(", ", "-").replace(" ", "-")
            traffic = FOLDER / f"{name}.traffic.jsonl"
            traffic.unlink(missing_ok=True)
            server = stack.enter_context(
                serve(
                    *(model, level, FOLDER / f"{name}.log"),
                    *("--num-gpu-blocks-override", str(NUM_UNITS)),
                    *("--max-num-batched-tokens", str(STEP_TOKENS)),
                    *("--max-num-seqs", str(running)),
                    variables={"HYBRID_BLOCKS_RECORD": str(traffic)},
                )
            )
            servers[setting] = lambda asked, it=(server, traffic): _measured(*it, asked)
        # An engine stalled by 0.3 s in its first crowd; the clock has no such stall.
        for measure in servers.values():
            measure(load(99))
        for turn in range(options.turns):
            lines = {setting: measure(load(turn)) for setting, measure in servers.items()}
            clock = fit(next(iter(lines.values())), STEP_TOKENS)
            print(f"turn {turn}, machine load {os.getloadavg()[0]:.1f}: {clock}", flush=True)
            yield {
                setting: (figures_of(rows), figures_by(clock, model, setting, rows))
                for setting, rows in lines.items()
            }


def main() -> None:
    parser = argparse.ArgumentParser(prog="make served-clock", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    path = RECORD / f"{datetime.now(UTC):%Y-%m-%d}-served-clock.json"
    parser.add_argument("--record", type=Path, default=path, help="file of the figures")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": 512, "num_hidden_layers": 8, "mamba_n_heads": 16}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 2}
    layers = ["mamba", "mamba", "attention", "mamba"] * 2
    model = models.build("granitemoehybrid", FOLDER, "granite", layer_types=layers, **sizes)
    done = list(turns(options, model))
    base = next(iter(SETTINGS))
    rows = []
    for setting in SETTINGS:
        for name in done[0][setting][0]:
            engine, replay = (median(turn[setting][at][name] for turn in done) for at in (0, 1))
            ratios = [
                median(turn[setting][at][name] / turn[base][at][name] for turn in done)
                for at in (0, 1)
            ]
            row = {"setting": setting, "figure": name, "engine": engine, "replay": replay}
            row |= {"error": replay / engine - 1, "engine_ratio": ratios[0]}
            row |= {"replay_ratio": ratios[1], "ratio_error": ratios[1] / ratios[0] - 1}
            rows.append({key: _short(value) for key, value in row.items()})
            print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    about = {
        "vllm": version("vllm"),
        "turns": options.turns,
        "requests": len(load(0)),
        "machine_load": round(os.getloadavg()[1], 1),
    }
    lines = ",\n".join(map(json.dumps, rows))
    options.record.write_text(f'{json.dumps(about)[:-1]}, "rows": [\n{lines}\n]}}\n')


def _short(value: object) -> object:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
