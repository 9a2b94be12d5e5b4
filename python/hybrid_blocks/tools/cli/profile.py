"""``hybrid-blocks profile``: where the time of vLLM's scheduler goes."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.geometry.deployment import MOST
from hybrid_blocks.terminal import make_console, print_table
from hybrid_blocks.tools.cli.options import MOST_RUNNING, Given, Speculative, each_once
from hybrid_blocks.tools.cli.output import STDOUT, refuse_same_file, to_write, write_json
from hybrid_blocks.tools.doctor.environment import need_vllm
from hybrid_blocks.tools.doctor.features import parse_speculative
from hybrid_blocks.tools.profile.process import profile
from hybrid_blocks.tools.profile.report import make_table, to_json
from hybrid_blocks.tools.profile.workload import Settings, level_of
from hybrid_blocks.tools.trace import read_trace
from hybrid_blocks.units import parse_count

DEFAULTS = Settings(level="off")
MOST_TOKENS = 2**24
"""Tokens of one request at most: a process holds them as a list."""
MOST_BLOCKS = 2**24
MOST_OF_A_FEATURE = 1024
GPU_STEP_MS = 10.0
"""A model's step, to tell how much of the scheduler's step it hides."""
FEATURES = "images, grammar (every fourth request), connector, logprobs:N, loras:N, dcp:N"


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
            help="Levels to compare: off, pool, manager, natural; batched and natural-batched "
            "decode in one call; floor only makes objects."
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
    speculative: Speculative = None,
    beside: Annotated[
        str | None,
        typer.Option("--with", metavar="NAME[:N],…", help=f"Features of requests: {FEATURES}."),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write the figures to this file; - is stdout."),
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
        num_drafts=0 if speculative is None else parse_speculative(speculative).num_tokens,
        **_read_features(beside),
    )
    wanted = each_once("--levels", levels.split(","))
    for name in wanted:
        level_of(name)
    _refuse_ignored(Given(context), settings, shared_tokens)
    refuse_same_file(trace=trace, json=json)
    if trace is not None:
        read_trace(trace)
    need_vllm()
    with make_console(stderr=True).status("profiling"):
        findings = profile(settings, wanted)
    if json is not None:
        write_json(json, to_json(settings, findings))
    if json != STDOUT:
        results = {level: found.result for level, found in findings.items()}
        print_table(make_console(), make_table(results, GPU_STEP_MS))


def _refuse_ignored(given: Given, settings: Settings, shared_tokens: int) -> None:
    """Refuse options that would say nothing beside the others."""
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


def _read_features(text: str | None) -> dict[str, Any]:
    """Return the settings that ``--with`` names."""
    asked = dict[str, Any]()
    names = (
        each_once("--with", [word.partition(":")[0] for word in text.split(",")]) if text else ()
    )
    for name, word in zip(names, text.split(",") if text else (), strict=True):
        count = word.removeprefix(name)[1:]
        if name in {"images", "grammar", "connector"} and word == name:
            asked[name] = True
        elif name in {"logprobs", "loras", "dcp"}:
            asked[name] = parse_count(count, f"--with {name}", MOST_OF_A_FEATURE)
        else:
            raise InvalidArgumentError(f"--with {word}: no feature; give {FEATURES}")
    return asked
