"""Outcomes of vLLM's tests without the plugin, remembered from run to run."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from rig.session import Session
from rig.verdict import Outcomes

LEVEL = "off"


@dataclass(frozen=True)
class Baseline:
    """Outcomes without the plugin, in one file of ``folder`` for each suite that was run whole.

    Tests that were asked about one by one are in a file of their own.
    """

    session: Session
    folder: Path

    def whole(self, suite: str, targets: list[str]) -> Outcomes:
        """Return the outcome of every test of a suite, running it if that was never done."""
        file = self.folder / f"{suite}.json"
        if not file.exists():
            _write(file, self.session.run(suite, LEVEL, targets)[0])
        return _read(file)

    def of(self, tests: list[str]) -> Outcomes:
        """Return the outcome of each test, running those that are not known yet."""
        known: Outcomes = {}
        for file in self.folder.glob("*.json"):
            known |= _read(file)
        if missing := [test for test in tests if test not in known]:
            # A test that vanishes without the plugin has nothing to say about it.
            found = dict.fromkeys(missing, "missing")
            found |= self.session.run("asked", LEVEL, missing)[0]
            asked = self.folder / "asked.json"
            _write(asked, _read(asked) | found)
            known |= found
        return {test: known[test] for test in tests}


def _read(file: Path) -> Outcomes:
    outcomes: Outcomes = orjson.loads(file.read_bytes()) if file.exists() else {}
    return outcomes


def _write(file: Path, outcomes: Outcomes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(orjson.dumps(outcomes, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
