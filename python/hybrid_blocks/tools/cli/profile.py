"""``hybrid-blocks profile``: where the time of vLLM's scheduler goes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.geometry.deployment import MAX_DRAFT_TOKENS, MOST
from hybrid_blocks.terminal import make_console, print_table
from hybrid_blocks.tools.cli.options import (
    MOST_RUNNING,
    Given,
    Option,
    draft_tokens,
    each_once,
    finite,
)
from hybrid_blocks.tools.cli.output import (
    STDOUT,
    fail,
    refuse_same_file,
    to_draw,
    to_write,
    write_json,
)
from hybrid_blocks.tools.doctor.environment import need_vllm
from hybrid_blocks.tools.profile.process import profile
from hybrid_blocks.tools.profile.report import make_table, to_json, write_timeline
from hybrid_blocks.tools.profile.report import plot as draw
from hybrid_blocks.tools.profile.result import Findings
from hybrid_blocks.tools.profile.workload import Settings, level_of
from hybrid_blocks.tools.trace import read_trace

DEFAULTS = Settings(level="off")
MOST_TOKENS = 2**24
"""Of one request: more would not fit into a process that holds them as a list."""
MOST_BLOCKS = 2**24
MOST_LOGPROBS = 1024
MOST_LORAS = 1024
MOST_RANKS = 1024


def profile_command(  # noqa: PLR0917 - typer reads the options from the signature
    context: typer.Context,
    requests: Annotated[
        int,
        typer.Option(
            "--requests",
            "--max-num-seqs",
            min=1,
            max=MOST_RUNNING,
            help="Requests that run at a time.",
        ),
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
    prompt_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of a prompt.")
    ] = DEFAULTS.prompt_tokens,
    shared_tokens: Annotated[
        int, typer.Option(min=0, max=MOST_TOKENS, help="Leading tokens that four requests share.")
    ] = DEFAULTS.shared_tokens,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of an answer.")
    ] = DEFAULTS.output_tokens,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, help="Tokens that a step may compute.")
    ] = DEFAULTS.max_num_batched_tokens,
    num_blocks: Annotated[
        int,
        typer.Option(
            "--num-blocks",
            "--num-gpu-blocks-override",
            min=0,
            max=MOST_BLOCKS,
            help="Blocks in the pool; 0 for more than enough.",
        ),
    ] = DEFAULTS.num_blocks,
    steps: Annotated[int, typer.Option(min=2, max=MOST, help="Steps to time.")] = DEFAULTS.steps,
    warmup_steps: Annotated[
        int, typer.Option(min=1, max=MOST, help="Steps before those that are timed.")
    ] = DEFAULTS.warmup_steps,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST, help="Seed of tokens and acceptance.")
    ] = DEFAULTS.seed,
    drafts: Annotated[
        int,
        typer.Option(
            "--drafts",
            "--num-speculative-tokens",
            min=0,
            max=MAX_DRAFT_TOKENS,
            help="Draft tokens that a step verifies of each request.",
        ),
    ] = DEFAULTS.num_drafts,
    speculative: Option = None,
    acceptance: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Chance of a draft, if those before it are accepted.",
        ),
    ] = DEFAULTS.acceptance,
    images: Annotated[bool, typer.Option("--images", help="An image in each prompt.")] = False,
    logprobs: Annotated[
        int, typer.Option(min=0, max=MOST_LOGPROBS, help="Log probabilities of each token.")
    ] = DEFAULTS.logprobs,
    grammar: Annotated[
        bool, typer.Option("--grammar", help="A grammar for every fourth request.")
    ] = False,
    loras: Annotated[
        int,
        typer.Option(
            "--loras",
            "--max-loras",
            min=0,
            max=MOST_LORAS,
            help="LoRA adapters that requests take turns in.",
        ),
    ] = DEFAULTS.loras,
    connector: Annotated[
        bool, typer.Option("--connector", help="A KV connector with nothing to load.")
    ] = False,
    dcp: Annotated[
        int,
        typer.Option(
            "--dcp",
            "--decode-context-parallel-size",
            min=1,
            max=MOST_RANKS,
            help="Ranks of decode context parallelism.",
        ),
    ] = DEFAULTS.dcp,
    gpu_step_ms: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="A model's step, to tell how much of ours it hides."
        ),
    ] = 10.0,
    json: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write the figures to this file; - is stdout."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=to_draw, help="Draw the parts of a step.")
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
        num_drafts=draft_tokens(speculative, Given(context), "drafts") or drafts,
        acceptance=acceptance,
        images=images,
        logprobs=logprobs,
        grammar=grammar,
        loras=loras,
        connector=connector,
        dcp=dcp,
    )
    try:
        wanted = each_once("--levels", levels.split(","))
        for name in wanted:
            level_of(name)
        _refuse_ignored(Given(context), settings, shared_tokens)
        refuse_same_file(trace=trace, json=json, plot=plot, perfetto=perfetto)
        if trace is not None:
            read_trace(trace)
        need_vllm()
        with make_console(stderr=True).status("profiling"):
            findings = profile(settings, wanted)
        _show(settings, findings, gpu_step_ms, Files(json, plot, perfetto))
    except (HybridBlocksError, OSError) as error:
        fail(error)


class Files(NamedTuple):
    """The files that a profile writes."""

    json: Path | None
    plot: Path | None
    perfetto: Path | None


def _show(
    settings: Settings,
    findings: Mapping[str, Findings],
    gpu_step_ms: float,
    files: Files,
) -> None:
    """Write the files, and print the table, unless the figures go to standard output."""
    results = {level: found.result for level, found in findings.items()}
    if files.plot is not None:
        draw(files.plot, results)
    if files.perfetto is not None:
        write_timeline(files.perfetto, findings)
    if files.json is not None:
        write_json(files.json, to_json(settings, findings))
    if files.json != STDOUT:
        print_table(make_console(), make_table(results, gpu_step_ms))


def _refuse_ignored(given: Given, settings: Settings, shared_tokens: int) -> None:
    """Refuse options that would say nothing beside the others.

    Raises:
        InvalidArgumentError: there is one; says beside or without which.

    """
    if settings.trace is not None:
        given.refuse(
            *("prompt_tokens", "shared_tokens", "output_tokens"),
            why="beside --trace, whose requests have lengths of their own; leave it out",
        )
    elif "shared_tokens" in given and shared_tokens > settings.prompt_tokens:
        raise InvalidArgumentError(
            f"--shared-tokens {shared_tokens:,} exceeds the {settings.prompt_tokens:,} tokens of a "
            "prompt (--prompt-tokens)"
        )
    if not settings.num_drafts:
        given.refuse("acceptance", why="without --drafts: there is nothing to accept")
