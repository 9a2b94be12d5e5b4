"""``python -m mutants``: build a sample with switches, run the tests for each, report."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from mutants.build import Program, build
from mutants.mutant import list_all, sample
from mutants.report import accepted, summary
from mutants.run import Runner

ROOT = Path(__file__).parents[2]
CORE = ("hybrid-blocks", "hybrid-blocks-hash")
PROGRAM = Program(
    ROOT,
    paths=("Cargo.toml", "Cargo.lock", "rust", "benches/rust"),
    packages=(*CORE, "hybrid-blocks-ops"),
)
PARTS = {"all": 1, "tenth": 10, "hundredth": 100}


def main(
    sample_of: Annotated[str, typer.Option("--sample", help=", ".join(PARTS))] = "tenth",
    seed: Annotated[str, typer.Option(help="which ones; any text")] = "",
    matching: Annotated[str, typer.Option(help="only names with this regular expression")] = "",
    tool: Annotated[Path, typer.Option(help="cargo-mutants")] = ROOT
    / "build/tools/bin/cargo-mutants",
    folder: Annotated[Path, typer.Option(help="where it is built")] = ROOT / "build" / "mutants",
) -> None:
    """Print the share of viable mutants that the tests of the core catch, and the survivors."""
    if sample_of not in PARTS:
        raise typer.BadParameter(f"--sample {sample_of}: take one of {', '.join(PARTS)}")
    listed = [it for it in list_all(tool, ROOT, CORE) if re.search(matching, it.name)]
    drawn = sample(listed, PARTS[sample_of], seed)
    start = time.monotonic()
    built = build(PROGRAM, drawn, folder)
    runner = Runner(built.tests)
    typer.echo(
        f"{len(drawn)} of {len(listed)} mutants, seed {seed!r}; {len(built.switched)} compiled in "
        f"{time.monotonic() - start:.0f} s"
    )
    outcomes = {}
    for mutant in built.switched:
        outcomes[mutant] = runner.run(mutant)
        if outcomes[mutant] != "caught":
            typer.echo(f"{outcomes[mutant]}: {mutant.name}")
    typer.echo(f"tests ran for {time.monotonic() - start:.0f} s, the build included")
    typer.echo(summary(outcomes, built.left_out, accepted()))


typer.run(main)
