"""``python -m rig``: run vLLM's tests at a level and compare with vLLM alone."""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from rig import exemptions, hub_cache, record, source
from rig.baseline import Baseline
from rig.session import Session
from rig.suites import SUITES, targets
from rig.verdict import Outcomes, Verdict, judge, to_repeat

BUILD, RECORDS = Path("build/vllm"), Path("benches/record")
QUICK = "quick"


def main(
    levels: Annotated[str, typer.Option(help="levels to run, separated by commas")] = "pool",
    suites: Annotated[str, typer.Option(help="suites to run, by commas")] = ",".join(SUITES),
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    quick: Annotated[bool, typer.Option(help="only the files nearest to the manager")] = False,
    asked: Annotated[bool, typer.Option(help="run alone only what does not pass")] = False,
) -> None:
    """Run the suites at every level; exit with 1 if a test passes only without the plugin.

    Every suite is also run without the plugin, once for all levels and later runs: tests that fail
    there are reported as such and not run again. The quick form asks only about tests that do not
    pass with it, and so does ``--asked`` about whole suites. Counts of whole suites go into a dated
    record.
    """
    build = BUILD.resolve()
    build.mkdir(parents=True, exist_ok=True)
    hub = build / "hub"
    hub_cache.write(hub)
    session = Session(tests=source.fetch(build), hub=hub, logs=build, workers=workers)
    baseline = Baseline(session, build / f"without-{version('vllm')}")
    ok = True
    asked_suites = suites.split(",")
    # Imports take longer than most files' tests, so the quick form is one session.
    runs = [[QUICK, *asked_suites]] if quick else [[suite, suite] for suite in asked_suites]
    for name, *of in runs:
        files = targets(of, quick=quick)
        for level in levels.split(","):
            start = time.monotonic()
            is_asked = quick or asked
            verdict = _verdict(session, baseline, name, level, files, is_asked=is_asked)
            _print(level, name, verdict, time.monotonic() - start)
            if not quick:
                record.write(RECORDS, name, level, verdict)
            ok = ok and verdict.ok
    raise typer.Exit(0 if ok else 1)


def _verdict(
    session: Session, baseline: Baseline, name: str, level: str, files: list[str], *, is_asked: bool
) -> Verdict:
    exempt = exemptions.load(level)
    known = {} if is_asked else baseline.whole(name, files)

    def judged(outcomes: Outcomes, reached: set[str]) -> Verdict:
        without = dict.fromkeys(outcomes, "missing") | known
        if is_asked:
            without = baseline.of(to_repeat(outcomes))
        return judge(outcomes, without, exempt, reached=reached)

    # Many of those wait for a device or a peer until their time is out.
    failing = [test for test, outcome in known.items() if outcome not in ("passed", "skipped")]
    outcomes, reached = session.run(name, level, files, leave_out=failing)
    verdict = judged(outcomes, reached)
    if failed := [test for test, outcome in verdict.regressions.items() if outcome != "missing"]:
        # A busy machine makes tests with deadlines fail; what fails twice, fails.
        verdict = judged(outcomes | session.run(f"{name}-again", level, failed)[0], reached)
    return verdict


def _print(level: str, name: str, verdict: Verdict, seconds: float) -> None:
    typer.echo(f"{level:8} {name:18} {verdict.summary()} ({seconds:.0f} s)")
    for test, outcome in verdict.regressions.items():
        typer.echo(f"  {outcome} only at level {level}: {test}")
    for test in verdict.stale:
        typer.echo(f"  passes, remove it from exempt.toml: {test}")


typer.run(main)
