"""A dated file with the counts of every suite and level."""

import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from rig.verdict import Verdict


def write(folder: Path, suite: str, level: str, verdict: Verdict) -> Path:
    """Put a suite's counts at a level into today's record, beside what is there, and return it."""
    today = datetime.now(UTC).date().isoformat()
    file = folder / f"{today}-vllm-tests.json"
    record: dict[str, Any] = orjson.loads(file.read_bytes()) if file.exists() else {}
    record |= {
        "date": today,
        "versions": {name: version(name) for name in ("vllm", "torch", "hybrid-blocks")},
        "machine": f"{platform.system()} {platform.machine()}",
    }
    suites = record.setdefault("levels", {}).setdefault(level, {})
    suites[suite] = verdict.counts() | {
        "commit": _commit(),
        "exempt tests": verdict.exempt,
        "tests that pass only without the plugin": verdict.regressions,
    }
    folder.mkdir(parents=True, exist_ok=True)
    file.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")
    return file


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    ).stdout.strip()
