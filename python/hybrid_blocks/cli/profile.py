"""``hybrid-blocks profile``: where the time of vLLM's scheduler goes."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from hybrid_blocks.cli.installed import need_vllm
from hybrid_blocks.cli.output import STDOUT, fail, to_write, write_json
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.profile.process import profile
from hybrid_blocks.profile.report import make_table, to_json, write_timeline
from hybrid_blocks.profile.report import plot as draw
from hybrid_blocks.profile.workload import Settings
from hybrid_blocks.terminal import make_console, print_table

DEFAULTS = Settings(level="off")


def profile_command(  # noqa: PLR0917 - typer reads the options from the signature
    requests: Annotated[
        int, typer.Option(min=1, help="Requests that run at a time.")
    ] = DEFAULTS.requests,
    groups: Annotated[
        Literal["full", "swa", "hybrid", "ring"], typer.Option(help="Cache groups of the model.")
    ] = "hybrid",
    trace: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Run a trace's requests instead, turn by turn."
        ),
    ] = None,
    levels: Annotated[
        str,
        typer.Option(
            help="Levels to compare, separated by commas: off, pool, manager, natural; batched and "
            "natural-batched are the latter two with this package's scheduler; floor only makes "
            "the objects that any scheduler must make."
        ),
    ] = "off,pool,manager,batched,floor",
    prompt_tokens: Annotated[int, typer.Option(min=1)] = DEFAULTS.prompt_tokens,
    shared_tokens: Annotated[
        int, typer.Option(min=0, help="Leading tokens that four requests share.")
    ] = DEFAULTS.shared_tokens,
    output_tokens: Annotated[int, typer.Option(min=1)] = DEFAULTS.output_tokens,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that a step may compute.")
    ] = DEFAULTS.max_num_batched_tokens,
    num_blocks: Annotated[
        int, typer.Option(min=0, help="Blocks in the pool; 0 for more than enough.")
    ] = DEFAULTS.num_blocks,
    steps: Annotated[int, typer.Option(min=2, help="Steps to time.")] = DEFAULTS.steps,
    warmup_steps: Annotated[int, typer.Option(min=1)] = DEFAULTS.warmup_steps,
    seed: Annotated[int, typer.Option(min=0)] = DEFAULTS.seed,
    drafts: Annotated[
        int, typer.Option(min=0, help="Draft tokens that a step verifies of each request.")
    ] = DEFAULTS.num_drafts,
    acceptance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Chance of a draft, if those before it are accepted."),
    ] = DEFAULTS.acceptance,
    images: Annotated[bool, typer.Option("--images", help="An image in each prompt.")] = False,
    logprobs: Annotated[
        int, typer.Option(min=0, help="Log probabilities of each token.")
    ] = DEFAULTS.logprobs,
    grammar: Annotated[
        bool, typer.Option("--grammar", help="A grammar for every fourth request.")
    ] = False,
    loras: Annotated[
        int, typer.Option(min=0, help="LoRA adapters that requests take turns in.")
    ] = DEFAULTS.loras,
    connector: Annotated[
        bool, typer.Option("--connector", help="A KV connector with nothing to load.")
    ] = False,
    dcp: Annotated[
        int, typer.Option(min=1, help="Ranks of decode context parallelism.")
    ] = DEFAULTS.dcp,
    gpu_step_ms: Annotated[
        float, typer.Option(min=0, help="A model's step, to tell how much of ours it hides.")
    ] = 10.0,
    json: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write the figures to this file; - is stdout."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=to_write, help="Draw the parts of a step.")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write a timeline that ui.perfetto.dev opens."),
    ] = None,
) -> None:
    """Run vLLM's own scheduler without a model at several levels, and compare."""
    settings = Settings(
        level="",
        groups=groups,
        requests=requests,
        prompt_tokens=prompt_tokens,
        shared_tokens=min(shared_tokens, prompt_tokens),
        output_tokens=output_tokens,
        trace=None if trace is None else str(trace),
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=num_blocks,
        warmup_steps=warmup_steps,
        steps=steps,
        seed=seed,
        num_drafts=drafts,
        acceptance=acceptance,
        images=images,
        logprobs=logprobs,
        grammar=grammar,
        loras=loras,
        connector=connector,
        dcp=dcp,
    )
    try:
        need_vllm()
        with make_console(stderr=True).status("profiling"):
            findings = profile(settings, levels.split(","))
        results = {level: found.result for level, found in findings.items()}
        if json != STDOUT:
            print_table(make_console(), make_table(results, gpu_step_ms))
        if json is not None:
            write_json(json, to_json(settings, findings))
        if plot is not None:
            draw(plot, results)
        if perfetto is not None:
            write_timeline(perfetto, findings)
    except (HybridBlocksError, OSError) as error:
        fail(error)
