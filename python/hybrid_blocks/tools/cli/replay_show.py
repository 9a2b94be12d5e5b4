"""Tables, files and pages of ``replay``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import orjson
import typer

from hybrid_blocks.terminal import make_console, print_table, print_verdict
from hybrid_blocks.tools.cli.output import STDOUT, Files, write_json
from hybrid_blocks.tools.cli.words import made_by
from hybrid_blocks.tools.replay import Cache, ReplayError, Result
from hybrid_blocks.tools.replay.report import (
    engine_text,
    left_out_text,
    make_hits_table,
    make_places_table,
    make_table,
    never_full_text,
    verdict,
)
from hybrid_blocks.tools.replay.run import Runs
from hybrid_blocks.tools.trace import Trace

if TYPE_CHECKING:
    from rich.table import Table


def show_replay(
    trace: Trace,
    cache: Cache,
    results: Sequence[Result],
    runs: Runs,
    files: Files,
    *,
    is_saturated: bool,
    whole: bool,
) -> None:
    """Write and print runs, or hits over memory where there are no runs.

    Files come first: a reader of the tables, such as ``head``, may leave before their end. Tables
    are not printed where the figures go to standard output.
    """
    if files.html is not None and any(result.requests for result in results):
        write_page(files.html, trace, cache, runs, files.context)
    if files.json is not None:
        rows = [msgspec.to_builtins(result) for result in results]
        # One object, or a list of them if several managers ran.
        content = rows[0] if len(rows) == 1 else rows
        write_json(files.json, orjson.dumps(content, option=orjson.OPT_INDENT_2))
    if files.json != STDOUT:
        _print(results, runs, is_saturated=is_saturated, whole=whole)
    check_served(results)


def _print(results: Sequence[Result], runs: Runs, *, is_saturated: bool, whole: bool) -> None:
    """Print the answer and the tables."""
    console = make_console()
    tables: list[Table | None] = []
    if runs:
        never_full = never_full_text(runs, is_saturated=is_saturated)
        print_verdict(console, [*verdict(results), *filter(None, (never_full,))])
        tables = [make_table(results, whole=whole)]
    else:
        tables = [make_hits_table(results), make_places_table(results)]
    one_size = len({result.memory_bytes for result in results}) == 1
    console.print(engine_text(results[0], has_memory=one_size), soft_wrap=True)
    for table in filter(None, tables):
        print_table(console, table)
    if runs and not whole:
        console.print("--all shows the pool, checkpoints, steps and times")


def write_page(path: Path, trace: Trace, cache: Cache, runs: Runs, context: typer.Context) -> None:
    """Write the page of runs."""
    from hybrid_blocks.tools.view.page import write  # noqa: PLC0415 - optional, slow
    from hybrid_blocks.tools.view.replay_page import ReplayPage  # noqa: PLC0415
    from hybrid_blocks.tools.view.replay_picture import make_replay_picture  # noqa: PLC0415

    picture = make_replay_picture(trace, cache, runs)
    write(ReplayPage(picture, made_by(context)).document(), path)


def check_served(results: Sequence[Result]) -> None:
    """Check that some replay had requests to serve."""
    if all(result.rejected_requests and not result.requests for result in results):
        reasons = dict.fromkeys(left_out_text(why) for one in results for why in one.left_out)
        raise ReplayError(f"every request was left out, nothing was replayed: {'; '.join(reasons)}")
