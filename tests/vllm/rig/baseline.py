"""What vLLM's tests do without the plugin, remembered from run to run."""

from dataclasses import dataclass
from pathlib import Path

import orjson

from rig.session import Outcomes, Session


@dataclass(frozen=True)
class Baseline:
    """Outcomes without the plugin of the tests that were asked about so far, in a file."""

    session: Session
    file: Path

    def of(self, tests: list[str]) -> Outcomes:
        """Return the outcome of each test, running those that are not known yet."""
        known: Outcomes = orjson.loads(self.file.read_bytes()) if self.file.exists() else {}
        if missing := [test for test in tests if test not in known]:
            # A test that vanishes without the plugin has nothing to say about it.
            known |= dict.fromkeys(missing, "missing")
            known |= self.session.run("without", "off", missing)
            self.file.write_bytes(orjson.dumps(known, option=orjson.OPT_INDENT_2))
        return {test: known[test] for test in tests}
