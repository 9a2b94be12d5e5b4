"""Files as an engine with a known clock would have recorded them."""

import json
from pathlib import Path

import numpy as np
from hybrid_blocks.replay import Engine, EngineConfig, block_cache
from hybrid_blocks.sizing.recorded_hits import RecordedHits
from hybrid_blocks.trace import Trace
from hybrid_blocks.trace.builder import TraceBuilder

BLOCK = 16


def poisson(num_requests: int, rate: float, seed: int = 0) -> Trace:
    """Requests of drawn lengths that share nothing."""
    draw = np.random.default_rng(seed)
    builder = TraceBuilder("drawn")
    arrival = np.cumsum(draw.exponential(1 / rate, num_requests))
    for at in arrival.tolist():
        prompt, output = (int(it) for it in draw.lognormal((6.0, 4.0), 0.8))
        spans = [builder.fresh(prompt + output + 2)]
        builder.add(spans, arrival=at, prompt_tokens=prompt + 1, output_tokens=output + 1)
    return builder.build()


def record(trace: Trace, path: Path, config: EngineConfig, share_found: float = 0.0) -> Path:
    """Serve a trace with the clock of ``config`` and write what the plugin would write of it."""
    found = np.floor(trace.prompt_tokens * share_found)
    engine = Engine(trace, RecordedHits(found), block_cache(1, BLOCK), config)
    engine.run()
    times = engine.latencies
    admitted = np.empty(len(trace))
    admitted[engine.timeline.admitted] = engine.timeline.admitted_at
    with path.open("w") as file:
        for number in np.argsort(times.finished).tolist():
            line = {
                "hybrid_blocks_request": number,
                "arrival": float(times.arrived[number]),
                "block_tokens": BLOCK,
                "prompt_tokens": int(trace.prompt_tokens[number]),
                "output_tokens": int(trace.output_tokens[number]),
                "found_tokens": int(found[number]),
                "blocks": "",
                "scheduled": float(max(admitted[number] - times.arrived[number], 0)),
                "first_token": float(times.first_token[number] - times.arrived[number]),
                "finished": float(times.finished[number] - times.arrived[number]),
            }
            file.write(json.dumps(line) + "\n")
    return path
