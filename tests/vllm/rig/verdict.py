"""Meaning of a level's outcomes compared with those without the plugin."""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any

from rig.exemptions import MAX_SHARE, entry_of

Outcomes = dict[str, str]


@dataclass(kw_only=True)
class Verdict:
    """Every test of a suite, in one class.

    ``passed`` passes at the level; ``only_with`` are those of them that are known not to pass
    without the plugin. ``fails_without`` fails, or is skipped, without the plugin too: it says
    nothing about the level. ``exempt`` fails at the level with a stated reason, ``regressions``
    without one. ``stale`` are entries for exempt tests that all pass. ``reached`` are those of
    ``passed`` and ``exempt`` that used classes that the level puts in place of vLLM's.
    """

    passed: list[str] = field(default_factory=list)
    only_with: dict[str, str] = field(default_factory=dict)
    fails_without: dict[str, str] = field(default_factory=dict)
    exempt: dict[str, str] = field(default_factory=dict)
    regressions: dict[str, str] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    @property
    def too_many_exempt(self) -> bool:
        """Whether more tests are exempt than the project allows itself."""
        counted = len(self.passed) + len(self.exempt) + len(self.regressions)
        return len(self.exempt) > MAX_SHARE * counted

    @property
    def ok(self) -> bool:
        """Whether the level keeps everything that works without it."""
        return not (self.regressions or self.stale or self.too_many_exempt)

    def counts(self) -> dict[str, Any]:
        """Return how many tests there are of each class."""
        reached = {"passed or exempt, and reached": len(self.reached)} if self.reached else {}
        return {
            "passed": len(self.passed),
            **reached,
            "passes only with the plugin": len(self.only_with),
            "passes only without the plugin": len(self.regressions),
            "exempt": len(self.exempt),
            "not passed without the plugin either": dict(Counter(self.fails_without.values())),
        }

    def summary(self) -> str:
        """Return one line of counts."""
        without = Counter(self.fails_without.values())
        parts = [f"{len(self.passed)} passed"]
        if self.reached:
            num_exempt = len(self.exempt.keys() & set(self.reached))
            parts += [f"{len(self.reached) - num_exempt} of them reached what the level replaces"]
        parts += [f"{len(self.only_with)} of them only with the plugin"] if self.only_with else []
        parts += [f"{count} {outcome} without the plugin too" for outcome, count in without.items()]
        parts += [f"{len(self.exempt)} exempt"] if self.exempt else []
        parts += [f"{len(self.regressions)} REGRESSED"] if self.regressions else []
        parts += [f"{len(self.stale)} exempt but passing"] if self.stale else []
        return ", ".join(parts)


def to_repeat(with_plugin: Outcomes) -> list[str]:
    """Return the tests that must be run without the plugin to know what their outcome means."""
    return sorted(test for test, outcome in with_plugin.items() if outcome != "passed")


def judge(
    with_plugin: Outcomes,
    without: Outcomes,
    exemptions: dict[str, str],
    *,
    reached: Set[str] = frozenset(),
) -> Verdict:
    """Sort every test into its class.

    ``without`` needs the tests of `to_repeat`; one that passes there and is not among those with
    the plugin is ``missing``.
    """
    verdict = Verdict()
    passing: set[str] = set()
    failing: set[str] = set()
    for test in sorted(with_plugin | without):
        outcome = with_plugin.get(test, "missing")
        entry = entry_of(test, exemptions)
        if outcome == "passed":
            verdict.passed.append(test)
            if without.get(test, "passed") != "passed":
                verdict.only_with[test] = without[test]
            if entry:
                passing.add(entry)
        elif without[test] != "passed":
            verdict.fails_without[test] = without[test]
        elif entry:
            verdict.exempt[test] = exemptions[entry]
            failing.add(entry)
        else:
            verdict.regressions[test] = outcome
    verdict.stale = sorted(passing - failing)
    verdict.reached = sorted(reached & {*verdict.passed, *verdict.exempt})
    return verdict
