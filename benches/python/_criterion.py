"""Rows from what criterion measured in Rust."""

import json
import subprocess
import time
from pathlib import Path

from _rows import Row, within

ROOT = Path(__file__).parents[2]
BENCHES = ("blocks", "hashing", "hybrid", "placement", "slabs", "vllm")

# By criterion's id: what the table calls it, the unit, units in a nanosecond, and the target.
TARGETS = {
    "blocks/get_free_256": ("get + free of 256 blocks, Rust", "ns/block", 1 / 256, 5),
    "blocks/match_6250": ("match of 100,000 tokens, 6,250 blocks cached", "µs", 1e-3, 60),
    "blocks/new_1m": ("a million blocks made, Rust", "ms", 1e-6, 50),
    "blocks/decode_1024": ("decode step of 1,024 requests, Rust", "ns/request", 1 / 1024, None),
    "hybrid/admit_2000_tokens_6_groups": ("room for 2,000 tokens, 6 groups", "µs", 1e-3, 5),
    "hybrid/returning_102400_tokens/match": (
        "match of a returning 102,400 tokens",
        "µs",
        1e-3,
        100,
    ),
    "hybrid/returning_102400_tokens/free": ("free of a returning 102,400 tokens", "µs", 1e-3, 50),
}

TARGETS |= {
    f"placement/plan/{whose}_{memory}/{tokens}": (
        f"checkpoints of a prompt of {tokens:,} tokens decided, {what}, memory {memory}",
        "ns",
        1.0,
        1000,
    )
    for whose, what in {"all": "learned of all", "client": "learned of its client"}.items()
    for memory in ("free", "short")
    for tokens in (500, 100_000)
}
TARGETS |= {
    f"slabs/steal_among_idle/{idle}": (
        f"a slab taken from another pool with {idle:,} idle ones",
        "ns",
        1.0,
        None,
    )
    for idle in (100, 1_000, 10_000)
}

STEPS = "hybrid/decode_16_steps_4_groups"
# By the number of requests, the most nanoseconds that a step may take for each.
STEP_TARGETS = {64: None, 1_024: 250, 16_384: None}
TARGETS |= {
    f"{STEPS}/{size}": (
        f"decode step of {size:,} requests, 4 groups",
        "ns/request",
        1 / (16 * size),
        target,
    )
    for size, target in STEP_TARGETS.items()
}
MOST_GROWTH = 1.5
"""The dearest over the cheapest step, a request, whatever the number of requests."""


def run(*options: str) -> list[Row]:
    """Run all benchmarks, with options for criterion, and return a row for each."""
    start = time.time()
    chosen = [option for name in BENCHES for option in ("--bench", name)]
    command = ["cargo", "bench", "--quiet", *chosen, "--", "--noplot", *options]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    measured = {
        json.loads(path.read_text())["full_id"]: path
        for path in sorted((ROOT / "target" / "criterion").rglob("new/benchmark.json"))
        if path.stat().st_mtime >= start
    }
    if missing := TARGETS.keys() - measured.keys():
        raise AssertionError(f"criterion did not measure {missing}")
    rows = {name: row(name, path) for name, path in measured.items()}
    return [*rows.values(), growth([rows[f"{STEPS}/{size}"] for size in STEP_TARGETS])]


def growth(steps: list[Row]) -> Row:
    """Return how much dearer a request becomes with the number of requests beside it."""
    values = [step.value for step in steps]
    sizes = ", ".join(f"{size:,}" for size in STEP_TARGETS)
    name = f"decode step, a request: dearest over cheapest of {sizes}"
    return within(name, "ratio", max(values) / min(values), MOST_GROWTH)


def row(name: str, benchmark: Path) -> Row:
    """Return criterion's estimate of one benchmark."""
    estimates = json.loads(benchmark.with_name("estimates.json").read_text())
    spent = (estimates["slope"] or estimates["mean"])["point_estimate"]
    label, unit, scale, target = TARGETS.get(name, (f"{name}, Rust", "µs", 1e-3, None))
    if target is None:
        return Row(name=label, unit=unit, value=spent * scale)
    return within(label, unit, spent * scale, target)
