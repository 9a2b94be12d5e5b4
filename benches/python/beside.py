"""``python benches/python/beside.py COMMIT``: another commit's benchmarks and this one's, in turns.

Each commit is checked out and built below ``build/beside``. Both run the same sections of `make
bench` turn about, so that both meet the same noise. The table has the medians of all turns.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import msgspec
from _rows import Row
from _sections import SECTIONS
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "beside"
DEARER = 1.03
"""A row that is this many times dearer than before is marked."""


class Record(msgspec.Struct):
    """The part of a record that is compared."""

    rows: dict[str, list[Row]]


def git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(commit: str) -> Path:
    """Check out a commit and build its binary; return the folder of its tree."""
    tree = FOLDER / git("rev-parse", "--short", commit)
    if not tree.exists():
        git("worktree", "add", "--detach", str(tree), commit)
    command = ["cargo", "build", "--quiet", "--release", "-p", "hybrid-blocks-py"]
    subprocess.run(command, check=True, cwd=tree)
    binary = tree / "target" / "release" / "lib_core.so"
    shutil.copy(binary, tree / "python" / "hybrid_blocks" / "_core.abi3.so")
    return tree


def measure(tree: Path, section: str) -> list[Row]:
    """Run a section of the benchmarks of a tree; return its rows."""
    records = tree / "benches" / "record"
    start = time.time()
    subprocess.run(
        [sys.executable, tree / "benches" / "python", "--only", section],
        check=True,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "python")},
        stdout=subprocess.DEVNULL,
    )
    (written,) = (file for file in records.glob("*.json") if file.stat().st_mtime >= start)
    (rows,) = msgspec.json.decode(written.read_bytes(), type=Record).rows.values()
    return rows


def compared(values: dict[Path, dict[str, list[Row]]], before: Path, now: Path) -> Table:
    """Return the medians of the rows that both trees have."""
    table = Table(
        "operation", "unit", before.name, now.name, "faster", "slower by", title="medians"
    )
    for name, old in values[before].items():
        if new := values[now].get(name):
            # Beside its peer, where it has one, a row does not depend on the machine's pace.
            ours = [statistics.median(row.value for row in rows) for rows in (old, new)]
            paces = [
                statistics.median(row.value / (row.baseline or 1.0) for row in rows)
                for rows in (old, new)
            ]
            faster = paces[0] / paces[1]
            dearer = f"{100 / faster - 100:.0f} %" if faster * DEARER < 1 else ""
            table.add_row(name, old[0].unit, *(f"{v:.4g}" for v in ours), f"{faster:.2f}x", dearer)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="measure a section only")
    arguments = parser.parse_args()
    trees = [build(arguments.commit), build("HEAD")]
    values: dict[Path, dict[str, list[Row]]] = {tree: defaultdict(list) for tree in trees}
    for _ in range(arguments.rounds):
        for section in arguments.only or SECTIONS:
            for tree in trees:
                for row in measure(tree, section):
                    values[tree][row.name].append(row)
        Console(width=140).print(compared(values, *trees))


if __name__ == "__main__":
    main()
