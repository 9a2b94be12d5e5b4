"""The report of a run."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from mutants.mutant import Mutant

ACCEPTED = Path(__file__).parents[1] / "mutants.toml"


def accepted(path: Path = ACCEPTED) -> dict[str, str]:
    """Return the reason for every survivor that is accepted."""
    entries = tomllib.loads(path.read_text()).get("accepted", [])
    return {mutant: entry["reason"] for entry in entries for mutant in entry["mutants"]}


def summary(
    outcomes: Mapping[Mutant, str], left_out: Iterable[Mutant], known: Mapping[str, str]
) -> str:
    """Return what is printed. A mutant that hangs the tests counts as caught."""
    counts = Counter(outcomes.values())
    missed = [mutant for mutant, outcome in outcomes.items() if outcome == "missed"]
    unexplained = [mutant for mutant in missed if mutant.nameless not in known]
    lines = [f"hung: {mutant.name}" for mutant, outcome in outcomes.items() if outcome == "hung"]
    lines += [f"survived: {mutant.name}" for mutant in unexplained]
    areas = {mutant: _area(mutant.file) for mutant in outcomes}
    for area in sorted(set(areas.values())):
        inside = [outcomes[mutant] != "missed" for mutant in outcomes if areas[mutant] == area]
        lines.append(f"{area:16} {sum(inside)} / {len(inside)}")
    genres = Counter(mutant.genre for mutant in left_out)
    told = ", ".join(f"{count} {genre}" for genre, count in genres.most_common())
    lines.append(f"not compiled: {genres.total()}" + f" ({told})" * bool(told))
    caught, viable = len(outcomes) - len(missed), len(outcomes)
    share = 100 * caught / viable if viable else 0.0
    lines.append(
        f"mutants: {caught} / {viable} caught ({share:.1f} %), {counts['hung']} hung, "
        f"{len(missed) - len(unexplained)} accepted, {len(unexplained)} survived"
    )
    return "\n".join(lines)


def _area(file: str) -> str:
    """Return the folder below ``src``, two deep for rules, or the file's name."""
    parts = file.split("src/", maxsplit=1)[1].split("/")
    return "/".join(parts[: 2 if parts[0] == "rules" else 1])
