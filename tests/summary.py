"""``python tests/summary.py TIER FOLDER``: what all pytest runs of a tier came to."""

import sys
from pathlib import Path
from xml.etree import ElementTree

KINDS = {"failures": "failed", "errors": "errors", "skipped": "skipped"}


def main(tier: str, folder: Path) -> None:
    """Print how many tests passed, failed and were skipped in the JUnit reports of ``folder``.

    A report ``NAME-again.xml`` holds the tests that failed in ``NAME.xml`` and ran once more.
    """
    counts = dict.fromkeys(["passed", *KINDS.values()], 0)
    again: list[str] = []
    for report in sorted(folder.glob("*.xml")):
        second = report.stem.endswith("-again")
        root = ElementTree.parse(report).getroot()
        for suite in root.iter("testsuite"):
            others = {name: int(suite.get(key, 0)) for key, name in KINDS.items()}
            passed = int(suite.get("tests", 0)) - sum(others.values())
            counts["passed"] += passed
            if second:
                counts["failed"] -= passed
                continue
            for name, count in others.items():
                counts[name] += count
        if second:
            again += [f"{it.get('classname')}::{it.get('name')}" for it in root.iter("testcase")]
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    if again:
        print(f"passed at the second try: {', '.join(again)}")
    print(f"make {tier}: every stage passed; pytest: {told}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
