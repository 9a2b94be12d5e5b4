"""Follow a record with ``hybrid-blocks shadow``: requests a second of one core, and its memory.

    python benches/python/following.py --requests 2000 6000

A virtual engine at level ``natural`` on a B200 serves conversations, 50 requests a second, and its
record is replayed from beginning to end. Figures are of the whole command: its start takes 8 s.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import _test_folders  # noqa: F401
from hybrid_blocks.geometry.step_time import step_time
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, model_cache
from hybrid_blocks.tools.trace import generate_workload
from written import recorded, text

MODEL, CARD, MEMORY = "Nemotron-3-Nano-30B-A3B-NVFP4", "B200", "80GiB"
RUNNING, RATE = 1024, 50.0


def write(path: Path, num_requests: int) -> None:
    """Write the record of a virtual engine."""
    trace = generate_workload("conversations", 0, num_requests)
    trace = replace(trace, arrival=trace.arrival * (num_requests / RATE / trace.arrival.max()))
    deployment = Deployment(card=CARD, max_num_seqs=RUNNING, in_flight_batches=1)
    cache = model_cache(MODEL, MEMORY, deployment)
    assert cache.model is not None
    step = step_time(cache.model, deployment)
    assert step is not None
    path.write_bytes(
        text(recorded(trace, cache, EngineConfig(max_num_seqs=RUNNING, step_time=step)))
    )


def main() -> None:
    """Print a row for each number of requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[5000])
    for num_requests in parser.parse_args().requests:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "traffic.jsonl")
            write(path, num_requests)
            command = [
                *(sys.executable, "-m", "hybrid_blocks", "shadow", str(path), "--once"),
                *("--model", MODEL, "--memory", MEMORY, "--level", "natural", "--clock", CARD),
                *("--max-num-seqs", str(RUNNING)),
            ]
            process = subprocess.Popen(command, text=True)
            _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        print(
            f"{num_requests} requests: {seconds:.1f} s of CPU, {num_requests / seconds:.0f} a "
            f"second of a core, at most {usage.ru_maxrss >> 10} MiB, status {status}",
            flush=True,
        )


if __name__ == "__main__":
    main()
