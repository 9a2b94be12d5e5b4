"""Rows from what criterion measured in Rust."""

import json
import subprocess
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


def run() -> list[Row]:
    """Run all benchmarks and return a row for each."""
    command = ["cargo", "bench", "--quiet", "-p", "hybrid-blocks", "--benches"]
    subprocess.run([*command, "--", "--noplot"], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    listed = subprocess.run(
        [*command, "--", "--list"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    ids = [line.removesuffix(": benchmark") for line in listed.stdout.splitlines() if line]
    return [row(name) for name in ids if name.count("/")]


def row(name: str) -> Row:
    """Return criterion's estimate of one benchmark."""
    folder = ROOT / "target" / "criterion" / name
    estimates = json.loads((folder / "new" / "estimates.json").read_text())
    spent = (estimates["slope"] or estimates["mean"])["point_estimate"]
    label, unit, scale, target = TARGETS.get(name, (f"{name}, Rust", "µs", 1e-3, None))
    if target is None:
        return Row(name=label, unit=unit, value=spent * scale)
    return within(label, unit, spent * scale, target)
