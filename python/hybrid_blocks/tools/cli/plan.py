"""``hybrid-blocks plan``: what fits into a GPU's free KV memory."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model, PlanError, load_layers, load_model
from hybrid_blocks.terminal import make_console
from hybrid_blocks.tools.cli.options import Given, MambaSsmDtype, Speculative, drafted
from hybrid_blocks.tools.cli.output import (
    STDOUT,
    Files,
    refuse_same_file,
    to_page,
    to_write,
    write_json,
)
from hybrid_blocks.tools.cli.plan_case import (
    Case,
    asked_lengths,
    case_of_gpu,
    check_gpu,
    trace_lengths,
)
from hybrid_blocks.tools.cli.words import made_by, pasted
from hybrid_blocks.tools.plan.memory import Estimate
from hybrid_blocks.tools.plan.report.report import Plan, Report, make_report
from hybrid_blocks.tools.plan.report.tables import render
from hybrid_blocks.units import parse_memory, parse_tokens


def plan_command(  # noqa: PLR0917 -- typer passes options by name
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="config.json, a directory that holds one, or a built-in name."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Free KV memory of each GPU, for example 13.61GiB.")
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Cards that vLLM runs on: 2xH100-80GB, H200 ...; estimates --memory."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(help="Share of each card of --gpu; 0.92 as in vLLM.")
    ] = None,
    tp: Annotated[
        int, typer.Option("--tp", "--tensor-parallel-size", help="Tensor parallel size.")
    ] = 1,
    pp: Annotated[
        int, typer.Option("--pp", "--pipeline-parallel-size", help="Pipeline parallel size.")
    ] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="As in vLLM: auto, fp8, nvfp4 ...")] = "auto",
    mamba_ssm_dtype: MambaSsmDtype = "auto",
    max_model_len: Annotated[
        str | None, typer.Option(help="Longest request, in tokens (32k is 32,768).")
    ] = None,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Tokens of one step; with --gpu vLLM's default.")
    ] = 8192,
    max_num_seqs: Annotated[int, typer.Option(help="Most running requests; likewise.")] = 256,
    speculative: Speculative = None,
    mamba_cache_mode: Annotated[
        str, typer.Option(help="align with prefix caching, none without.")
    ] = "align",
    block_size: Annotated[
        int | None, typer.Option(help="Tokens of an attention block, before inflation.")
    ] = None,
    in_flight_batches: Annotated[
        int | None,
        typer.Option(help="Batches a window holds: --pp + 1 (2 without) on GPUs, --pp on CPUs."),
    ] = None,
    layers: Annotated[Path | None, typer.Option(help="Layers described by hand.")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Other lengths than 1k,4k,16k: 512,8k.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace of requests for its lengths.")] = None,
    json: Annotated[
        Path | None, typer.Option(callback=to_write, help="Write everything here; - is stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(callback=to_page, help="Write a page that a browser opens.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="A log of vLLM's start; - is standard input.")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Show every table.")] = False,
    why_figure: Annotated[
        str | None, typer.Option("--why", help="Explain one figure: tokens, requests of 32k, …")
    ] = None,
) -> None:
    """Show the capacity of a model in the natural geometry and in vLLM's, byte by byte.

    A command of vLLM's server can be pasted behind --: plan --memory 24GiB -- vllm serve MODEL …
    """
    given = Given(context)
    check_gpu(memory, gpu, given)
    _refuse_together(given, model, layers, json)
    refuse_same_file(layers=layers, trace=trace, json=json, html=html)
    if log is not None:
        from hybrid_blocks.tools.cli.plan_log import log_options, plan_of_log  # noqa: PLC0415

        fields = log_options(given, context)
        plan_of_log(log, model, memory, fields, json=json, whole=whole)
        return
    if (command := pasted(context)) is not None:
        from hybrid_blocks.tools.cli.plan_case import plan_of_command  # noqa: PLC0415

        case = plan_of_command(context, command, model, memory, gpu, given)
    else:
        chosen, drafts = drafted(_model(model, layers), speculative)
        deployment = Deployment(
            tp=tp,
            pp=pp,
            kv_cache_dtype=kv_cache_dtype,
            mamba_ssm_dtype=mamba_ssm_dtype,
            max_model_len=None if max_model_len is None else parse_tokens(max_model_len),
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            num_speculative_tokens=drafts,
            mamba_cache_mode=mamba_cache_mode,  # type: ignore[arg-type]
            block_size=block_size,
            in_flight_batches=in_flight_batches,
        )
        if gpu is None:
            case = Case(chosen, _memory(memory), deployment)
        else:
            case = case_of_gpu(gpu, memory, (chosen, deployment), gpu_memory_utilization, given)
    if why_figure is not None:
        _print_why(why_figure, case, lengths, given)
        return
    _plan(case, lengths, trace, Files(json, html, context), whole=whole)


def _refuse_together(
    given: Given, source: str | None, layers: Path | None, json: Path | None
) -> None:
    """Refuse options that contradict each other, or that others would ignore."""
    if source is not None and layers is not None:
        raise PlanError(
            f"{source} beside --layers {layers}: both describe the model; leave one out"
        )
    if json == STDOUT:
        given.refuse("whole", why="beside --json -, which holds it; leave it out")


def _plan(
    case: Case, lengths: str | None, trace: Path | None, files: Files, *, whole: bool
) -> None:
    """Plan at the wanted lengths, write the files and print the answer."""
    plan = Plan(case.model, case.memory_bytes, case.deployment)
    wanted, mix = asked_lengths(lengths, trace, plan.limit), trace_lengths(trace)
    report = make_report(plan, wanted, mix)
    if files.html is not None:
        first = wanted[0] if lengths is not None else None
        _write_page(files.html, plan, report, case.estimated, files.context, first=first)
    _show(report, files.json, num_bytes=1 if lengths is None else len(wanted), whole=whole)


def _write_page(
    path: Path,
    plan: Plan,
    report: Report,
    estimated: Estimate | None,
    context: typer.Context,
    *,
    first: int | None,
) -> None:
    """Write the page of a plan; it says which command made it.

    The page starts at requests of ``first`` tokens, where they are given.
    """
    from hybrid_blocks.tools.view.page import write  # noqa: PLC0415 - optional, slow
    from hybrid_blocks.tools.view.plan_page import PlanPage  # noqa: PLC0415
    from hybrid_blocks.tools.view.plan_picture import make_plan_picture  # noqa: PLC0415

    card = None if estimated is None else estimated.card
    picture = make_plan_picture(plan, report, card, first=first)
    write(PlanPage(picture, made_by=made_by(context)).document(), path)


def _print_why(figure: str, case: Case, lengths: str | None, given: Given) -> None:
    given.refuse(
        *("trace", "json", "html", "whole"),
        why="beside --why, which explains one figure; leave it out",
    )
    plan = Plan(case.model, case.memory_bytes, case.deployment)
    asked = asked_lengths(lengths, None, plan.limit)
    from hybrid_blocks.tools.plan.report.why import why  # noqa: PLC0415 - asked for seldom

    for line in why(figure, plan, asked, estimated=case.estimated):
        make_console().print(line, soft_wrap=True)


def _show(report: Report, json: Path | None, *, num_bytes: int, whole: bool) -> None:
    """Write the file, and print the tables, unless the figures go to standard output.

    The file comes first: a reader of the tables, such as ``head``, may leave before their end.
    """
    if json is not None:
        write_json(json, msgspec.json.format(msgspec.json.encode(report), indent=1))
    if json != STDOUT:
        render(report, make_console(), num_bytes=num_bytes, whole=whole)


def _model(source: str | None, layers: Path | None) -> Model:
    if layers is not None:
        return load_layers(str(layers))
    if source is None:
        raise PlanError("name a model: a config.json, a directory, or a built-in name")
    return load_model(source)


def _memory(text: str | None) -> int:
    if text is None:
        raise PlanError(
            "--memory is needed: the free KV memory of each GPU, for example 24GiB; --gpu "
            "2xH100-80GB estimates it"
        )
    return parse_memory(text)
