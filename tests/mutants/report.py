"""The report of a run."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mutants.mutant import Mutant

ACCEPTED = Path(__file__).parents[1] / "mutants.toml"


def summary(outcomes: Mapping[Mutant, str], num_left_out: int) -> str:
    """Return what is printed. A mutant that hangs the tests counts as caught."""
    entries = tomllib.loads(ACCEPTED.read_text()).get("accepted", [])
    known = {mutant for entry in entries for mutant in entry["mutants"]}
    counts, viable = Counter(outcomes.values()), len(outcomes)
    missed = [mutant for mutant, outcome in outcomes.items() if outcome == "missed"]
    unexplained = [mutant for mutant in missed if mutant.nameless not in known]
    lines = [f"hung: {mutant.name}" for mutant, outcome in outcomes.items() if outcome == "hung"]
    lines += [f"survived: {mutant.name}" for mutant in unexplained]
    lines.append(f"not compiled: {num_left_out}")
    caught = viable - len(missed)
    share = 100 * caught / viable if viable else 0.0
    lines.append(
        f"mutants: {caught} / {viable} caught ({share:.1f} %), {counts['hung']} hung, "
        f"{len(missed) - len(unexplained)} accepted, {len(unexplained)} survived"
    )
    return "\n".join(lines)
