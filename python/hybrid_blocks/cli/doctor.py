"""``hybrid-blocks doctor``: what is installed, what can be used, and what stands in the way."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from msgspec.structs import replace

from hybrid_blocks._core import build_info
from hybrid_blocks.cli.given import Given
from hybrid_blocks.cli.installed import need_vllm
from hybrid_blocks.cli.output import fail
from hybrid_blocks.cli.pasted import pasted, refuse_pasted
from hybrid_blocks.cli.without_gpu import allow_no_gpu
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import Model, load_model
from hybrid_blocks.pasted.features import Asked, read_features
from hybrid_blocks.reach.features import (
    CONNECTORS,
    METHODS,
    Features,
    check_model,
    parse_speculative,
)
from hybrid_blocks.reach.packages import EXTRAS, rows
from hybrid_blocks.terminal import grid, make_console, print_table
from hybrid_blocks.vllm.level import Level


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
    encoder_connector: Annotated[
        bool, typer.Option("--encoder-connector", help="An encoder cache connector.")
    ] = False,
    lora: Annotated[bool, typer.Option("--lora", help="LoRA adapters.")] = False,
    images: Annotated[bool, typer.Option("--images", help="Requests with images.")] = False,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Requests that ask for log probabilities.")
    ] = False,
    priorities: Annotated[bool, typer.Option("--priorities", help="Priority scheduling.")] = False,
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
    pcp: Annotated[
        int,
        typer.Option(
            "--pcp", "--prefill-context-parallel-size", help="Ranks of prefill context parallelism."
        ),
    ] = 1,
    pp: Annotated[
        int,
        typer.Option("--pp", "--pipeline-parallel-size", help="Ranks of pipeline parallelism."),
    ] = 1,
    residency_metrics: Annotated[
        bool, typer.Option("--residency-metrics", help="KV-cache residency metrics.")
    ] = False,
    flop_metrics: Annotated[bool, typer.Option("--flop-metrics", help="FLOP metrics.")] = False,
    sampling_masks: Annotated[
        bool, typer.Option("--sampling-masks", help="Sampling masks are returned.")
    ] = False,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching/--no-prefix-caching", help="As in vLLM.")
    ] = True,
    table: Annotated[
        bool, typer.Option("--table", help="Print docs/coverage.md: all models, all features.")
    ] = False,
) -> None:
    """Print what is installed and usable; with --model, what an engine of vLLM reaches.

    A command of vLLM's server can be pasted behind --: doctor -- vllm serve MODEL …
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
                *given.all_but("model", "images", "logprobs"),
                why="beside a pasted command: write it as vLLM's option there",
            )
            asked = read_features(words, model)
            features = replace(asked.features, images=images, logprobs=logprobs)
            _print_reach(asked.model, features)
            typer.echo(f"this command: {_asks(asked)}")
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
            encoder_connector=encoder_connector,
            lora=lora,
            images=images,
            logprobs=logprobs,
            priorities=priorities,
            tp=tp or 0,
            dcp=dcp,
            pcp=pcp,
            pp=pp,
            residency_metrics=residency_metrics,
            flop_metrics=flop_metrics,
            sampling_masks=sampling_masks,
            prefix_caching=prefix_caching,
        )
        _print_reach(load_model(str(model)), features)
    except HybridBlocksError as error:
        fail(error)


def _asks(asked: Asked) -> str:
    """Say what the command itself asks for."""
    level = asked.level or "manager, as HYBRID_BLOCKS is not set"
    return f"level {level}, scheduler {asked.scheduler or 'of vLLM'}"


def _print_reach(model: Model, features: Features) -> None:
    check_model(model, features)
    _need_vllm()
    from hybrid_blocks.reach.answer import ONE_CALL, reach  # noqa: PLC0415 - wants vLLM

    with _quietly():
        found = reach(model, features)
    lines = [f"model          {model.name}"]
    lines.append(_line("natural", found.level is Level.NATURAL, found.why_not_natural))
    lines.append(_line("manager", found.manager_level is Level.MANAGER, found.why_not_manager))
    lines.append(_line("one call", found.scheduler == ONE_CALL, found.why_not_one_call))
    lines.append(f"HYBRID_BLOCKS=natural reaches level {found.level}")
    lines.append(f"--scheduler-cls hybrid_blocks.vllm.Scheduler: {found.scheduler}")
    typer.echo("\n".join(lines))


def _line(what: str, is_reached: bool, reason: str | None) -> str:
    return f"{what:15}{'yes' if is_reached else f'no: {reason}'}"


def _print_table() -> None:
    _need_vllm()
    from hybrid_blocks.reach import table as coverage  # noqa: PLC0415
    from hybrid_blocks.reach.document import document  # noqa: PLC0415 - wants vLLM

    with _quietly():
        table = document(list(coverage.rows()))
    typer.echo(table, nl=False)


@contextmanager
def _quietly() -> Iterator[None]:
    """Drop vLLM's log lines about engines that serve no request."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _need_vllm() -> None:
    allow_no_gpu()
    need_vllm(", or ask docs/coverage.md")


def _print_installation() -> None:
    info = build_info()
    console = make_console()
    console.print(f"hybrid_blocks {info['version']}")
    console.print(f"build         {info['profile']}, {info['os']} {info['arch']}")
    console.print(f"cpu features  {' '.join(info['cpu_features']) or 'none of those looked for'}")
    console.print()
    table = grid("", "package", "version", "usable", "for")
    for column in table.columns:
        column.justify = "left"
    for row in rows(EXTRAS):
        table.add_row(*row)
    print_table(console, table)
