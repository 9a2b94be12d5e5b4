"""``hybrid-blocks replay``: a trace through a block manager."""

from pathlib import Path
from typing import Annotated

import typer

from hybrid_blocks.geometry.deployment import MOST
from hybrid_blocks.tools.cli.options import (
    BlockSize,
    Clock,
    Given,
    KvCacheDtype,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Retention,
    Speculative,
    TensorParallel,
    Watermark,
    finite,
)
from hybrid_blocks.tools.cli.output import Files, refuse_same_file, to_page, to_write
from hybrid_blocks.tools.cli.replay_asked import (
    DEFAULT_MODEL,
    check_options,
    counted_cache,
    default_managers,
    planned_cache,
    read_asked,
    record_or_card,
    timed_config,
    warn_of_defaults,
)
from hybrid_blocks.tools.cli.replay_run import (
    generate_requests,
    read_requests,
    run,
    warn_of_lengths,
)
from hybrid_blocks.tools.cli.replay_show import show_replay
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.replay import EngineConfig, ManagerName
from hybrid_blocks.tools.replay.times import read_rate
from hybrid_blocks.tools.trace import AUTO, FORMATS, WORKLOADS, OnError

DEFAULT_MEMORY = "24GiB"


def replay_command(  # noqa: PLR0917 - typer reads the options from the signature
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACE]", exists=True, help="Trace file, also of gzip or zstd."),
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help=f"Format of TRACE: {', '.join((AUTO, *FORMATS))}.")
    ] = AUTO,
    model: Annotated[
        str, typer.Option(help="Model that plans the cache: a name or a config.json.")
    ] = DEFAULT_MODEL,
    memory: Annotated[str, typer.Option(help="Memory for the cache of each GPU.")] = DEFAULT_MEMORY,
    gpu: Annotated[
        str | None, typer.Option(help="Card that vLLM's manager is planned for; an H100.")
    ] = None,
    num_blocks: Annotated[
        str | None,
        typer.Option(
            "--num-blocks",
            "--num-gpu-blocks-override",
            metavar="N|unbounded",
            help="Blocks in the pool, instead of a model and memory.",
        ),
    ] = None,
    block_size: BlockSize = None,
    kv_cache_dtype: KvCacheDtype = "auto",
    tp: TensorParallel = 1,
    speculative: Speculative = None,
    placement: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Where the rust manager keeps states: learned, fixed:N[+N], geometric, every:N, "
            "none.",
        ),
    ] = "learned",
    share: Annotated[
        str | None,
        typer.Option(
            metavar="N%[,unbounded]",
            help="Memory as shares of what an unbounded cache would hold; compares hits.",
        ),
    ] = None,
    signal: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Let clients say how sessions go on, right in this share of cases.",
        ),
    ] = None,
    retention: Retention = "0",
    max_num_seqs: MaxNumSeqs = 256,
    max_num_batched_tokens: MaxNumBatchedTokens = 8192,
    watermark: Watermark = 0.01,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Replay only the first N requests.")
    ] = None,
    saturate: Annotated[
        bool, typer.Option(help="Let all requests arrive at once, to see full load.")
    ] = False,
    manager: Annotated[
        list[ManagerName] | None,
        typer.Option(help="Block manager; several stand side by side."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Host memory of HybridOffloadingSpec below the rust manager's device: 64GiB."
        ),
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(help="What a damaged line does, and a request too large for a manager."),
    ] = "raise",
    workload: Annotated[
        str, typer.Option(help=f"Workload to generate: {', '.join(WORKLOADS)}.")
    ] = WORKLOADS[0],
    seats: Annotated[
        int, typer.Option(min=1, max=MOST, help="Seats that take turns, with --workload seats.")
    ] = 16,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Seed of the generated workload.")] = 0,
    clock: Clock = None,
    slo: Annotated[
        str | None,
        typer.Option(metavar="TARGETS", help="Targets of --clock: ttft_p95<1s,tpot_p50<40ms."),
    ] = None,
    rate: Annotated[
        str,
        typer.Option(
            metavar="N.Nx|max",
            help="How much faster requests arrive; max seeks the rate at which --slo breaks.",
        ),
    ] = "1x",
    whole: Annotated[bool, typer.Option("--all", help="Show every row.")] = False,
    json: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write the figures to this file; - is stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(callback=to_page, help="Write a page that plays the replay in a browser."),
    ] = None,
) -> None:
    """Replay TRACE, or a generated workload, through a block manager in virtual time."""
    asked = read_asked(
        manager or default_managers(is_timed=clock is not None),
        placement,
        retention=retention,
        signal=signal,
        share=share,
        host=host,
        is_timed=clock is not None,
    )
    check_options(Given(context), asked.managers, asked.placements, workload)
    refuse_same_file(trace=trace, json=json, html=html)
    config = EngineConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        watermark=watermark,
        reject_too_large=on_error == "skip",
    )
    record, card = record_or_card(clock, gpu)
    deployment = Deployment(
        tp=tp,
        kv_cache_dtype=kv_cache_dtype,
        block_size=block_size,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        in_flight_batches=1,
        card=card,
    )
    cache = None
    if num_blocks is None:
        cache = planned_cache(model, memory, deployment, speculative)
        config = config if clock is None else timed_config(config, cache, slo, record)
    requests = (
        read_requests(trace, trace_format, on_error, limit)
        if trace is not None
        else generate_requests(workload, seed, limit, seats)
    )
    requests = requests.at_once() if saturate else requests
    cache = cache or counted_cache(str(num_blocks), block_size, requests)
    warn_of_lengths(requests, cache)
    results, runs = run(
        *(requests, cache, asked.variants(cache), config),
        shares=asked.shares,
        with_film=html is not None,
        rate=read_rate(rate),
    )
    files = Files(json, html, context)
    show_replay(requests, cache, results, runs, files, is_saturated=saturate, whole=whole)
    warn_of_defaults(Given(context), memory)
