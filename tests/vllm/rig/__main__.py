"""``python -m rig``: run vLLM's tests at a level and compare with vLLM alone."""

import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from rig import exemptions, hub_cache, source
from rig.session import Session
from rig.suites import SLOW, SUITES
from rig.verdict import judge, to_repeat


def main(  # noqa: PLR0917 - typer reads the options from the signature
    levels: Annotated[str, typer.Option(help="levels to run, separated by commas")] = "pool",
    suites: Annotated[str, typer.Option(help="suites to run, by commas")] = ",".join(SUITES),
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    build: Annotated[Path, typer.Option(help="where things are unpacked")] = Path("build/vllm"),
    report: Annotated[Path, typer.Option(help="JSON report")] = Path("build/vllm/report.json"),
    quick: Annotated[bool, typer.Option(help="leave out the slowest files")] = False,
    option: Annotated[list[str] | None, typer.Option(help="passed on to pytest")] = None,
) -> None:
    """Run every suite at every level; exit with 1 if a test passes only without the plugin.

    Tests that do not pass at a level are run again without the plugin: those that do not pass
    there either are reported as such.
    """
    build = build.resolve()
    build.mkdir(parents=True, exist_ok=True)
    hub = build / "hub"
    hub_cache.write(hub)
    session = Session(
        tests=source.fetch(build),
        hub=hub,
        logs=build,
        workers=workers,
        options=(*(f"--deselect={file}" for file in SLOW if quick), *(option or ())),
    )
    results: dict[str, Any] = {}
    ok = True
    for level in levels.split(","):
        for suite in suites.split(","):
            start = time.monotonic()
            outcomes = session.run(suite, level, [SUITES[suite]])
            repeat = to_repeat(outcomes)
            without = session.run(f"{suite}-not-{level}", "off", repeat) if repeat else {}
            verdict = judge(outcomes, without, exemptions.load(level))
            seconds = time.monotonic() - start
            ok = ok and verdict.ok
            results.setdefault(level, {})[suite] = asdict(verdict) | {"seconds": round(seconds, 1)}
            typer.echo(f"{level:8} {suite:18} {verdict.summary()} ({seconds:.0f} s)")
            for test, outcome in verdict.regressions.items():
                typer.echo(f"  {outcome} only at level {level}: {test}")
            for test in verdict.stale:
                typer.echo(f"  passes, remove it from exempt.toml: {test}")
    contents = {"vllm": version("vllm"), "levels": results}
    report.write_bytes(orjson.dumps(contents, option=orjson.OPT_INDENT_2))
    raise typer.Exit(0 if ok else 1)


typer.run(main)
