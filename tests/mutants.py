"""``python tests/mutants.py [OPTIONS]``: how many changes of the core the tests notice.

Prints caught / viable mutants, and those that survived without a reason in
``tests/mutants.toml``. Options are those of cargo-mutants.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "build" / "mutants"
TOOL = ROOT / "build" / "tools" / "bin" / "cargo-mutants"
ENDED_IN_ORDER = (0, 2, 3)  # all caught, some missed, some timed out


def nameless(mutant: str) -> str:
    """A mutant without its place, which moves with every edit above it."""
    return re.sub(r":\d+:\d+: ", ": ", mutant)


def accepted(path: Path = ROOT / "tests" / "mutants.toml") -> dict[str, str]:
    """Return the reason for every survivor that is accepted."""
    return {
        mutant: entry["reason"]
        for entry in tomllib.loads(path.read_text()).get("accepted", [])
        for mutant in entry["mutants"]
    }


def summary(caught: Iterable[str], missed: Iterable[str], known: dict[str, str]) -> str:
    """Return what is printed. A mutant that hangs the tests counts as caught."""
    caught, missed = list(caught), list(missed)
    unexplained = [mutant for mutant in missed if nameless(mutant) not in known]
    lines = [f"survived: {mutant}" for mutant in unexplained]
    viable = len(caught) + len(missed)
    share = 100 * len(caught) / viable if viable else 0.0
    explained = len(missed) - len(unexplained)
    lines.append(
        f"mutants: {len(caught)} / {viable} caught ({share:.1f} %), {explained} accepted, "
        f"{len(unexplained)} survived"
    )
    return "\n".join(lines)


def main(options: list[str]) -> int:
    """Run cargo-mutants and report; return 1 where it could not run."""
    command = [str(TOOL), "mutants", "--package", "hybrid-blocks", "--output", str(OUT), *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code not in ENDED_IN_ORDER:
        return 1
    found = {
        kind: (OUT / "mutants.out" / f"{kind}.txt").read_text().splitlines()
        for kind in ("caught", "timeout", "missed")
    }
    print(summary(found["caught"] + found["timeout"], found["missed"], accepted()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
