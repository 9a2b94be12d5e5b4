"""``hybrid-blocks plan --log FILE``."""

import codecs
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from rich.console import Console

from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.inputs import PIECE_BYTES, UNPACK_ERRORS, numbered_lines, unpack
from hybrid_blocks.model import PlanError
from hybrid_blocks.terminal import grid, make_console, print_table
from hybrid_blocks.tools.cli.options import Given
from hybrid_blocks.tools.cli.output import STDOUT, write_json
from hybrid_blocks.tools.cli.words import refuse_pasted
from hybrid_blocks.tools.doctor.features import parse_speculative
from hybrid_blocks.tools.plan.memory import parse_cards
from hybrid_blocks.tools.plan.report.tables import render
from hybrid_blocks.tools.read.log_lines import Logged, read_lines
from hybrid_blocks.tools.read.log_report import LogReport, report_log
from hybrid_blocks.tools.read.vllm_variables import partition_of
from hybrid_blocks.units import gib, parse_memory, parse_tokens

_BETWEEN_RETURNS: Final = re.compile(r"[^\r]+")


def plan_of_log(
    file: Path,
    source: str | None,
    memory: str | None,
    given: Mapping[str, Any],
    *,
    json: Path | None,
    whole: bool = False,
) -> None:
    """Print what a log tells, and the plan of the same bytes."""
    log = _read(file)
    memory_bytes = None if memory is None else parse_memory(memory)
    report = report_log(log, source, given, memory_bytes)
    if json is not None:
        write_json(json, msgspec.json.format(msgspec.json.encode(report), indent=1))
    if json != STDOUT:
        _print(report, make_console(), whole=whole, is_given=memory is not None)


def log_options(given: Given, context: typer.Context) -> dict[str, Any]:
    """Return the fields of a deployment that options beside ``--log`` give."""
    given.refuse(
        *("lengths", "trace", "html", "layers", "why_figure"),
        why="beside --log, which prints one plan of the log's own memory; leave it out",
    )
    refuse_pasted(context, "beside --log: both give an engine's options")
    fields = {name: context.params[name] for name in Deployment.__struct_fields__ if name in given}
    if "gpu" in given:
        fields["card"] = parse_cards(context.params["gpu"]).kind
    if "speculative" in given:
        drafts = parse_speculative(context.params["speculative"])
        fields["num_speculative_tokens"] = drafts.num_tokens
    if "max_model_len" in fields:
        fields["max_model_len"] = parse_tokens(fields["max_model_len"])
    # vLLM logs the number of stages, but not which layers each one has.
    if (partition := partition_of(os.environ)) is not None:
        fields["pp_partition"] = partition
    return fields


def _read(file: Path) -> Logged:
    try:
        return read_lines(_lines(file))
    except UNPACK_ERRORS as error:
        raise PlanError(f"--log {file}: the compressed data ends or breaks: {error}") from None
    except OSError as error:
        raise PlanError(f"--log {file}: {error.strerror or error}") from None


def _lines(file: Path) -> Iterator[str]:
    stdin: Any = sys.stdin.buffer
    pieces = iter(partial(stdin.read1, PIECE_BYTES), b"") if file == STDOUT else unpack(file)
    for _, line in numbered_lines(_in_utf_8(pieces), file):
        # A bar of progress returns to the beginning of its line.
        for part in _BETWEEN_RETURNS.finditer(line.decode(errors="replace")):
            yield part[0]


def _in_utf_8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Write text in UTF-16 as UTF-8; PowerShell redirects logs so."""
    first = next(pieces, b"")
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        yield first
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder("utf-16")("replace")
    for piece in chain((first,), pieces):
        yield decoder.decode(piece).encode()


def _print(report: LogReport, console: Console, *, whole: bool, is_given: bool) -> None:
    figures = report.figures
    version = f"vLLM {report.version or '(no release logged)'}"
    origin = "as logged" if figures.is_memory_logged else "solved from the tokens"
    logged = _other_memory(report)
    if is_given:
        origin = "as given" if logged is None else f"as given; the log has {logged}"
    console.print(f"log of {version}: {report.model}, {gib(figures.memory_bytes)} {origin}")
    table = grid("figures", "", "logged", "planned")
    for figure in figures.figures:
        table.add_row(figure.name, figure.logged or "-", figure.planned or "-")
    print_table(console, table)
    console.print(_verdict(report), soft_wrap=True)
    if (running := report.running) is not None:
        hits = "" if running.hits is None else f", {running.hits:.1f} % of tokens found at last"
        usage = "" if running.usage is None else f", up to {running.usage:.1f} % in use"
        console.print(
            f"at work: up to {running.running:,} requests running and {running.waiting:,} waiting"
            f"{usage}{hits}, {running.preemptions:,} preemptions",
            soft_wrap=True,
        )
    for words, advice in report.troubles:
        console.print(f"in the log: {words}: {advice}", soft_wrap=True)
    unknown = report.num_lines - report.num_read
    console.print(f"{report.num_read:,} lines were read, {unknown:,} say nothing of the cache")
    console.print()
    if report.report is not None:
        render(report.report, console, whole=whole)
    else:
        console.print(f"no plan: {report.refusal}", soft_wrap=True)


def _other_memory(report: LogReport) -> str | None:
    """Return the memory of the log where the given one is another."""
    logged, planned = report.logged_bytes, gib(report.figures.memory_bytes)
    return None if logged is None or gib(logged) == planned else gib(logged)


def _verdict(report: LogReport) -> str:
    figures = report.figures
    known = [figure for figure in figures.figures if figure.logged is not None]
    if not known:
        return "the log has no figures of the cache"
    if figures.agree:
        return "all figures of the log are those that the planner expects"
    differing = ", ".join(figure.name for figure in known if not figure.agrees)
    explanation = "no single option explains it"
    if figures.explanation:
        explanation = f"they agree with {figures.explanation}"
    elif (logged := _other_memory(report)) is not None:
        explanation = f"those of the log are of its {logged}"
    return f"the planner expects other figures ({differing}): {explanation}"
