"""``python tests/summary.py TIER FOLDER``: one line about all pytest runs of a tier."""

import sys
from pathlib import Path
from xml.etree import ElementTree

KINDS = {"failures": "failed", "errors": "errors", "skipped": "skipped"}


def main(tier: str, folder: Path) -> None:
    """Print how many tests passed, failed and were skipped in the JUnit reports of ``folder``."""
    counts = dict.fromkeys(["passed", *KINDS.values()], 0)
    for report in sorted(folder.glob("*.xml")):
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            others = {name: int(suite.get(key, 0)) for key, name in KINDS.items()}
            counts["passed"] += int(suite.get("tests", 0)) - sum(others.values())
            for name, count in others.items():
                counts[name] += count
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"make {tier}: every stage passed; pytest: {told}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
