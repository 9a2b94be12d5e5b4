"""Progress of a run so far, in a file that outlives it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Outcomes = dict[str, str]


@dataclass(frozen=True)
class Progress:
    """Starts and outcomes of tests, a line each, in the order in which they happened."""

    file: Path

    def note_start(self, test: str) -> None:
        """Add that a test runs."""
        self._add({"test": test})

    def note(self, test: str, outcome: str, *, has_reached: bool = False) -> None:
        """Add the outcome of a test; the last one holds.

        ``has_reached`` says that it used classes that the level puts in place of vLLM's.
        """
        self._add({"test": test, "outcome": outcome} | ({"reached": True} if has_reached else {}))

    def reached(self) -> set[str]:
        """Return the tests that used classes that the level puts in place of vLLM's."""
        return {line["test"] for line in self._lines() if "reached" in line}

    def _add(self, line: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def outcomes(self) -> Outcomes:
        """Return the outcome of each test that has one."""
        return {line["test"]: line["outcome"] for line in self._lines() if "outcome" in line}

    def unfinished(self) -> list[str]:
        """Return the tests that were started and never ended."""
        running: dict[str, None] = {}
        for line in self._lines():
            if "outcome" in line:
                running.pop(line["test"], None)
            else:
                running[line["test"]] = None
        return list(running)

    def size(self) -> int:
        """Return how much was noted, to tell whether anything happens."""
        return self.file.stat().st_size if self.file.exists() else 0

    def forget(self) -> None:
        """Forget the progress so far."""
        self.file.unlink(missing_ok=True)

    def _lines(self) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        # The last line of a run that was killed may be cut off.
        return [json.loads(line) for line in self.file.read_text().splitlines() if line[-1:] == "}"]
