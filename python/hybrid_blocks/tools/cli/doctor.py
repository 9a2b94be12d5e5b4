"""``hybrid-blocks doctor``: what is installed, what can be used, and what stands in the way."""

import os
from typing import Annotated

import typer
from msgspec.structs import replace

from hybrid_blocks._core import build_info
from hybrid_blocks.terminal import grid, make_console, print_table
from hybrid_blocks.tools.cli.doctor_reach import print_reach
from hybrid_blocks.tools.cli.options import Given
from hybrid_blocks.tools.cli.words import pasted
from hybrid_blocks.tools.doctor.packages import EXTRAS, kernels_by, rows
from hybrid_blocks.tools.read.features import read_features
from hybrid_blocks.tools.read.vllm_variables import PARTITION
from hybrid_blocks.variables import LEVEL, VARIABLES


def doctor(
    context: typer.Context,
    *,
    model: Annotated[
        str | None,
        typer.Option(help="config.json, a directory that holds one, or a built-in name."),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Requests with images.")] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Requests that ask for log probabilities.")
    ] = False,
    memory: Annotated[
        str, typer.Option(help="Free KV memory of each GPU, for the cost of a level.")
    ] = "24GiB",
) -> None:
    """Print what is installed and usable; with --model, what an engine of vLLM reaches.

    A command of vLLM's server can be pasted behind --, with all its options and HYBRID_BLOCKS:
    doctor -- HYBRID_BLOCKS=natural vllm serve MODEL --enable-lora … If the engine reaches less, the
    exit code is 3.
    """
    given, words = Given(context), pasted(context)
    if words is None and model is None:
        given.refuse(
            *given.all_but("model"),
            why="without --model: say of which model's engine, for example --model Qwen3.5-27B",
        )
        _print_installation()
        return
    if words is None:
        variables = (LEVEL.name, PARTITION)
        assignments = [f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)]
        words, model = [*assignments, "vllm", "serve", str(model)], None
    asked = read_features(words, model)
    features = replace(asked.features, images=images, logprobs=logprobs)
    print_reach(replace(asked, features=features), memory, is_given="memory" in given)


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
