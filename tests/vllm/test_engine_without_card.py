"""vLLM's whole engine core serves on a card that computes nothing, at each level."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served() -> dict[str, dict[str, Any]]:
    """The counts of the same requests at each side."""
    left_out = {"VLLM_TARGET_DEVICE", *(name for name in os.environ if "HYBRID_BLOCKS" in name)}
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / "benches/engine"), "check"],
        env=variables | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["side"]: row for row in rows}


@pytest.mark.parametrize(
    ("side", "level", "package"),
    [
        ("vLLM", "off", "vllm"),
        ("one by one", "manager", "vllm"),
        ("one call", "manager", "hybrid_blocks"),
        ("natural", "natural", "hybrid_blocks"),
    ],
)
def test_each_request_gets_all_its_tokens(
    served: dict[str, dict[str, Any]], side: str, level: str, package: str
) -> None:
    row = served[side]
    assert (row["level"], row["scheduler"].split(".")[0]) == (level, package)
    assert row["scheduler"].endswith(".AsyncScheduler")
    assert row["in_flight"] == 2
    assert row["requests"] == row["first_tokens"] == 200
    assert row["tokens"] == row["asked"] == sum(1 + number % 150 for number in range(200))
    # The prompts take four steps, and the longest request samples in the last of them.
    assert 150 <= row["steps"] <= 156
