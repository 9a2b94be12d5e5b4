"""``hybrid-blocks replay``: a trace through a block manager."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from hybrid_blocks import CheckpointPolicy
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import PlanError
from hybrid_blocks.plan import Deployment
from hybrid_blocks.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    Result,
    RustOptions,
    Timeline,
    VllmOptions,
    block_cache,
    model_cache,
    read_num_blocks,
    replay,
    request_limits,
)
from hybrid_blocks.replay.plot import plot as draw
from hybrid_blocks.replay.policy import PolicyName, apply_policy
from hybrid_blocks.replay.report import make_table
from hybrid_blocks.trace import (
    AUTO,
    FORMATS,
    OnError,
    Trace,
    generate_trace,
    measure_sharing,
    read_trace,
)

DEFAULT_MANAGER = ManagerName.RUST
DEFAULT_BLOCK_SIZE = 16


def replay_command(  # noqa: PLR0917 - typer reads the options from the signature
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]", exists=True, dir_okay=False, help="Trace file, may be gzipped."
        ),
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help=f"Format of TRACE: {', '.join((AUTO, *FORMATS))}.")
    ] = AUTO,
    model: Annotated[
        str, typer.Option(help="Model that plans the cache: a name or a config.json.")
    ] = "Granite-4.0-Micro",
    memory: Annotated[str, typer.Option(help="Memory for the cache.")] = "24GiB",
    num_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="N|unbounded",
            help="Blocks in the pool, instead of a model and memory.",
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of an attention block, and between checkpoints."),
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bf16 or fp8.")] = "auto",
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel size.")] = 1,
    num_speculative_tokens: Annotated[int, typer.Option(min=0, help="Draft tokens of a step.")] = 0,
    policy: Annotated[
        PolicyName, typer.Option(help="What the rust manager evicts first.")
    ] = PolicyName.LRU,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, help="Keep states every so many tokens, too.")
    ] = None,
    retention: Annotated[
        str,
        typer.Option(
            metavar="N|dense", help="vLLM's --prefix-cache-retention-interval; dense keeps all."
        ),
    ] = "0",
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most running requests.")] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens computed in one step.")
    ] = 8192,
    watermark: Annotated[
        float, typer.Option(help="Share of the pool that an admission leaves free.")
    ] = 0.01,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Replay only the first N requests.")
    ] = None,
    saturate: Annotated[
        bool, typer.Option(help="Let all requests arrive at once, to see full load.")
    ] = False,
    manager: Annotated[
        list[ManagerName] | None,
        typer.Option(
            help="Block manager; give it again to put several side by side.",
        ),
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(
            help="What a damaged line does, and a request too large for a manager.",
        ),
    ] = "raise",
    verify_data: Annotated[
        bool,
        typer.Option(help="Run the copies on tagged blocks; check all that requests read."),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated workload.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw pool use and running requests to this file.")
    ] = None,
) -> None:
    """Replay TRACE, or a generated workload, through a block manager in virtual time."""
    try:
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            watermark=watermark,
            reject_too_large=on_error == "skip",
        )
        workload = _load(trace, trace_format, on_error, seed, limit)
        if saturate:
            workload = workload.at_once()
        if num_blocks is not None:
            size = block_size or DEFAULT_BLOCK_SIZE
            cache = block_cache(read_num_blocks(num_blocks, workload, size), size)
        else:
            deployment = Deployment(
                tp=tp,
                kv_cache_dtype=kv_cache_dtype,
                num_speculative_tokens=num_speculative_tokens,
                block_size=block_size,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                in_flight_batches=1,
            )
            cache = model_cache(model, memory, deployment)
        placement = CheckpointPolicy(every=checkpoint_every)
        rust = apply_policy(policy, workload, cache, config, RustOptions(placement=placement))
        vllm = VllmOptions(retention=_read_retention(retention))
        runs = _run(
            workload,
            manager or [DEFAULT_MANAGER],
            cache=cache,
            config=config,
            rust=rust,
            vllm=vllm,
            verify_data=verify_data,
        )
        results = [result for result, _ in runs]
        Console().print(make_table(results))
        if json is not None:
            _write_json(json, results)
        if plot is not None:
            draw(plot, runs)
    except (HybridBlocksError, PlanError, OSError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from error


def _load(
    path: Path | None, trace_format: str, on_error: OnError, seed: int, limit: int | None
) -> Trace:
    workload = read_trace(path, trace_format, on_error) if path else generate_trace(seed)
    return workload if limit is None else workload.head(limit)


def _read_retention(text: str) -> int | None:
    if text == "dense":
        return None
    if not text.isdecimal():
        raise ReplayError(f"--retention {text!r} is neither a number of tokens nor dense")
    return int(text)


def _run(
    workload: Trace,
    managers: Sequence[ManagerName],
    *,
    cache: Cache,
    config: EngineConfig,
    rust: RustOptions,
    vllm: VllmOptions,
    verify_data: bool,
) -> list[tuple[Result, Timeline]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    runs = []
    with Progress(*columns, console=Console(stderr=True)) as progress:
        measuring = progress.add_task("measure sharing", total=1)
        sharing = measure_sharing(workload, cache.geometry.hash_block_size)
        progress.update(measuring, completed=1)
        limits = request_limits(managers, cache, config, rust=rust, vllm=vllm)
        for name in managers:
            task = progress.add_task(f"replay ({name})", total=len(workload))
            runs.append(
                replay(
                    workload,
                    manager_name=name,
                    cache=cache,
                    config=config,
                    rust=rust,
                    vllm=vllm,
                    sharing=sharing,
                    limits=limits,
                    verify_data=verify_data,
                    on_progress=partial(_advance, progress, task),
                )
            )
    return runs


def _advance(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


def _write_json(path: Path, results: Sequence[Result]) -> None:
    """Write one object, or a list of them if several managers ran."""
    rows = [msgspec.to_builtins(result) for result in results]
    content = rows[0] if len(rows) == 1 else rows
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
