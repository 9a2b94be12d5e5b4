"""The whole Mooncake conversation trace through the Rust manager and a real command line.

The trace is not part of the project; without it there is no row. See docs/replay-internals.md.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _rows import Row, show, within
from public_data import MOONCAKE

NUM_REQUESTS = 12_031


def run() -> list[Row]:
    if not MOONCAKE.exists():
        return []
    command = Path(sys.executable).with_name("hybrid-blocks")
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        arguments = ["replay", str(MOONCAKE), "--manager", "rust", "--json", str(figures)]
        start = time.perf_counter()
        subprocess.run(  # the command is our own
            [command, *arguments], check=True, stdout=subprocess.DEVNULL
        )
        spent = time.perf_counter() - start
        result = json.loads(figures.read_text())
    if isinstance(result, list):
        (result,) = result
    if result["requests"] != NUM_REQUESTS:
        raise AssertionError(f"{result['requests']} of {NUM_REQUESTS} requests were served")
    return [
        within("replay of the Mooncake conversation trace", "s", spent, 60),
        Row(
            name="its manager calls, median step",
            unit="µs",
            value=result["manager_us_per_step_p50"],
        ),
        Row(name="its manager calls, p99 step", unit="µs", value=result["manager_us_per_step_p99"]),
    ]


if __name__ == "__main__":
    show("replay", run())
