"""``hybrid-blocks doctor``: what is installed, what can be used, and what stands in the way."""

import os
from collections.abc import Sequence
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from hybrid_blocks._core import build_info
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import load_model
from hybrid_blocks.terminal import grid, make_console, print_table
from hybrid_blocks.tools.cli.doctor_reach import Wanted, ask_for_vllm, print_reach, quietly
from hybrid_blocks.tools.cli.options import Given
from hybrid_blocks.tools.cli.output import fail
from hybrid_blocks.tools.cli.words import pasted, refuse_pasted
from hybrid_blocks.tools.doctor.features import CONNECTORS, METHODS, Features, parse_speculative
from hybrid_blocks.tools.doctor.packages import EXTRAS, kernels_by, rows
from hybrid_blocks.tools.read.features import read_features
from hybrid_blocks.tools.read.vllm_variables import partition_of
from hybrid_blocks.units import parse_memory
from hybrid_blocks.variables import VARIABLES


def doctor(  # noqa: PLR0917 -- typer passes options by name
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            help="config.json, a directory that holds one, or a built-in name: say which level and "
            "scheduler an engine of this model reaches."
        ),
    ] = None,
    speculative: Annotated[
        str | None, typer.Option(help=f"Method and draft tokens: mtp:2. {', '.join(METHODS)}.")
    ] = None,
    connector: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(CONNECTORS)}, or the class name of a KV connector."),
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", "--enable-lora", help="LoRA adapters.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Requests with images.")] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Requests that ask for log probabilities.")
    ] = False,
    tp: Annotated[
        int | None,
        typer.Option("--tp", "--tensor-parallel-size", help="Ranks of tensor parallelism.", min=1),
    ] = None,
    dcp: Annotated[
        int,
        typer.Option(
            "--dcp", "--decode-context-parallel-size", help="Ranks of decode context parallelism."
        ),
    ] = 1,
    pp: Annotated[
        int,
        typer.Option("--pp", "--pipeline-parallel-size", help="Ranks of pipeline parallelism."),
    ] = 1,
    level: Annotated[
        Literal["off", "pool", "manager", "natural"] | None,
        typer.Option(
            help="The level that you want, by default HYBRID_BLOCKS; a lower one is exit code 3."
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option(help="Free KV memory of each GPU, for the cost of a level.")
    ] = "24GiB",
    table: Annotated[
        bool, typer.Option("--table", help="Print docs/coverage.md: all models, all features.")
    ] = False,
) -> None:
    """Print what is installed and usable; with --model, what an engine of vLLM reaches.

    A command of vLLM's server can be pasted behind --, with all its options:
    doctor -- vllm serve MODEL --scheduling-policy priority …
    """
    given = Given(context)
    try:
        if table:
            given.refuse(
                *given.all_but("table"),
                why="beside --table, which is of all models and all features; leave it out",
            )
            refuse_pasted(context, "beside --table, which is of all models and all features")
            _print_table()
            return
        if (words := pasted(context)) is not None:
            given.refuse(
                *given.all_but("model", "images", "logprobs", "memory"),
                why="beside a pasted command: write it as vLLM's option there",
            )
            _print_of_command(words, model, memory, images=images, logprobs=logprobs)
            return
        if model is None:
            given.refuse(
                *given.all_but("model"),
                why="without --model: say of which model's engine, for example --model Qwen3.5-27B",
            )
            _print_installation()
            return
        features = Features(
            speculative=None if speculative is None else parse_speculative(speculative),
            connector=connector,
            lora=lora,
            images=images,
            logprobs=logprobs,
            tp=tp or 0,
            dcp=dcp,
            pp=pp,
            pp_partition=partition_of(os.environ),
        )
        wanted = Wanted.of_environment() if level is None else Wanted(level=level)
        print_reach(load_model(str(model)), features, wanted, parse_memory(memory))
    except HybridBlocksError as error:
        fail(error)


def _print_of_command(
    words: Sequence[str], model: str | None, memory: str, *, images: bool, logprobs: bool
) -> None:
    """Print what the engine of a pasted command reaches."""
    asked = read_features(words, model)
    features = replace(asked.features, images=images, logprobs=logprobs)
    wanted = Wanted(level=asked.level, scheduler=asked.scheduler)
    print_reach(asked.model, features, wanted, parse_memory(memory))


def _print_table() -> None:
    ask_for_vllm()
    from hybrid_blocks.tools.doctor import table  # noqa: PLC0415 - wants vLLM

    with quietly():
        page = table.document(list(table.rows()))
    typer.echo(page, nl=False)


def _print_installation() -> None:
    info = build_info()
    console = make_console()
    console.print(f"hybrid_blocks {info['version']}")
    console.print(f"build         {info['profile']}, {info['os']} {info['arch']}")
    console.print(f"cpu features  {' '.join(info['cpu_features']) or 'none of those looked for'}")
    for it in VARIABLES:
        if value := os.environ.get(it.name):
            console.print(f"{it.name}={value}: {it.effect}", soft_wrap=True, highlight=False)
    console.print()
    table = grid("", "package", "version", "usable", "for")
    for column in table.columns:
        column.justify = "left"
    lines = rows(EXTRAS)
    for row in lines:
        table.add_row(*row)
    print_table(console, table)
    moved = kernels_by(lines)
    console.print(f"kernels       {moved}", soft_wrap=True, highlight=False, markup=False)
