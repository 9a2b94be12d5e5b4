"""Rows from what criterion measured in Rust."""

import json
import subprocess
import time
from pathlib import Path

from _rows import Row, within

ROOT = Path(__file__).parents[2]

# By criterion's id: what the table calls it, the unit, units in a nanosecond, and the target.
TARGETS = {
    "blocks/get_free_256": ("get + free of 256 blocks, Rust", "ns/block", 1 / 256, 5),
    "blocks/match_6250": ("match of 100,000 tokens, 6,250 blocks cached", "µs", 1e-3, 60),
    "blocks/new_1m": ("a million blocks made, Rust", "ms", 1e-6, 50),
    "blocks/decode_1024": ("decode step of 1,024 requests, Rust", "ns/request", 1 / 1024, None),
}


def run(*options: str) -> list[Row]:
    """Run all benchmarks, with options for criterion, and return a row for each."""
    start = time.time()
    command = ["cargo", "bench", "--quiet", "-p", "hybrid-blocks", "--", "--noplot", *options]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    measured = sorted((ROOT / "target" / "criterion").rglob("new/benchmark.json"))
    rows = [row(path) for path in measured if path.stat().st_mtime >= start]
    missing = TARGETS.keys() - {json.loads(path.read_text())["full_id"] for path in measured}
    if missing:
        raise AssertionError(f"criterion did not measure {missing}")
    return rows


def row(benchmark: Path) -> Row:
    """Return criterion's estimate of one benchmark."""
    name = json.loads(benchmark.read_text())["full_id"]
    estimates = json.loads(benchmark.with_name("estimates.json").read_text())
    spent = (estimates["slope"] or estimates["mean"])["point_estimate"]
    label, unit, scale, target = TARGETS.get(name, (f"{name}, Rust", "µs", 1e-3, None))
    if target is None:
        return Row(name=label, unit=unit, value=spent * scale)
    return within(label, unit, spent * scale, target)
