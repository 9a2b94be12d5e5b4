"""``hybrid-blocks replay``: a trace through a block manager."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import orjson
import typer
from rich.progress import Progress, TaskID
from rich.table import Table

from hybrid_blocks.cli.command_line import made_by
from hybrid_blocks.cli.given import Given
from hybrid_blocks.cli.installed import need_vllm
from hybrid_blocks.cli.output import (
    STDOUT,
    fail,
    refuse_same_file,
    to_draw,
    to_page,
    to_write,
    warn,
    write_json,
)
from hybrid_blocks.cli.progress import make_progress
from hybrid_blocks.cli.tiers import compare_tiers
from hybrid_blocks.cli.values import each_once, finite
from hybrid_blocks.cli.without_gpu import allow_no_gpu
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import PlanError
from hybrid_blocks.plan import Deployment
from hybrid_blocks.plan.deployment import MOST
from hybrid_blocks.plan.report.report import check_block_size
from hybrid_blocks.replay import (
    Cache,
    EngineConfig,
    ManagerName,
    ReplayError,
    Result,
    VllmOptions,
    block_cache,
    model_cache,
    read_num_blocks,
)
from hybrid_blocks.replay.compare import Runs, compare
from hybrid_blocks.replay.placement import EVERY, LEARNED, PLACEMENTS, read_placement
from hybrid_blocks.replay.plot import plot as draw
from hybrid_blocks.replay.plot import plot_hits
from hybrid_blocks.replay.policy import PolicyName, read_policy
from hybrid_blocks.replay.report import (
    engine_text,
    left_out_text,
    make_table,
    never_full_text,
)
from hybrid_blocks.replay.share_report import make_hits_table, make_places_table
from hybrid_blocks.replay.shares import SharedCache, read_shares, share_text
from hybrid_blocks.replay.tiers.report import make_tiers_table
from hybrid_blocks.replay.tiers.result import TieredResult
from hybrid_blocks.replay.tiers.side import DEFAULT as DEFAULT_TIERING
from hybrid_blocks.replay.tiers.side import Side, read_sides
from hybrid_blocks.replay.tiers.sizes import TierBytes
from hybrid_blocks.replay.variant import Variant, make_variants
from hybrid_blocks.terminal import make_console, print_table
from hybrid_blocks.trace import (
    AUTO,
    BRANCHING,
    FORMATS,
    SEATS,
    WORKLOADS,
    DamagedLineError,
    OnError,
    Trace,
    generate_clients,
    generate_trace,
    generate_workload,
    measure_sharing,
    read_trace,
)
from hybrid_blocks.units import parse_count

DEFAULT_MANAGER = ManagerName.RUST
DEFAULT_MODEL = "Granite-4.0-Micro"
DEFAULT_MEMORY = "24GiB"
DEFAULT_BLOCK_SIZE = 16
NUM_REQUESTS = 2000
MOST_CLIENTS_ASK = 4000
MOST_GENERATED = 1_000_000
"""Requests of a workload: more would hold more tokens than ids can tell apart."""
MOST_RUNNING = 2**16


def replay_command(  # noqa: PLR0917 - typer reads the options from the signature
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACE]",
            exists=True,
            help="Trace file, may be gzipped; or a folder of ServeGen's clients.",
        ),
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help=f"Format of TRACE: {', '.join((AUTO, *FORMATS))}.")
    ] = AUTO,
    tokenizer: Annotated[
        Path | None,
        typer.Option(exists=True, help="tokenizer.json, for a TRACE that holds text."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model that plans the cache: a name or a config.json.")
    ] = DEFAULT_MODEL,
    memory: Annotated[str, typer.Option(help="Memory for the cache of each GPU.")] = DEFAULT_MEMORY,
    num_blocks: Annotated[
        str | None,
        typer.Option(
            metavar="N|unbounded",
            help="Blocks in the pool, instead of a model and memory.",
        ),
    ] = None,
    block_size: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, help="Tokens of an attention block, and between checkpoints."
        ),
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bf16 or fp8.")] = "auto",
    tp: Annotated[
        int, typer.Option("--tp", "--tensor-parallel-size", min=1, help="Tensor parallel size.")
    ] = 1,
    num_speculative_tokens: Annotated[int, typer.Option(min=0, help="Draft tokens of a step.")] = 0,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help=f"What the rust manager evicts first: {', '.join(PolicyName)}.",
        ),
    ] = PolicyName.LRU,
    placement: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help=f"Where the rust manager keeps states: {', '.join(PLACEMENTS)}.",
        ),
    ] = LEARNED,
    checkpoint_every: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="The same as --placement every:N.")
    ] = None,
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
    retention: Annotated[
        str,
        typer.Option(
            metavar="N|dense", help="vLLM's --prefix-cache-retention-interval; dense keeps all."
        ),
    ] = "0",
    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=MOST_RUNNING, help="Most running requests.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, help="Most tokens computed in one step.")
    ] = 8192,
    watermark: Annotated[
        float, typer.Option(help="Share of the pool that an admission leaves free.")
    ] = 0.01,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Replay only the first N requests.")
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
    host: Annotated[
        str | None,
        typer.Option(help="Host memory below the device: compares hits by tier, as 64GiB."),
    ] = None,
    disk: Annotated[str | None, typer.Option(help="Disk below host memory, as 500GiB.")] = None,
    tiering: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help=f"Who keeps the tiers below the device: {', '.join(Side)}.",
        ),
    ] = DEFAULT_TIERING,
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
    workload: Annotated[
        str,
        typer.Option(help=f"Workload to generate: {', '.join((BRANCHING, *WORKLOADS, SEATS))}."),
    ] = BRANCHING,
    seats: Annotated[
        int, typer.Option(min=1, max=MOST, help="Seats that take turns, with --workload seats.")
    ] = 16,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Seed of the generated workload.")] = 0,
    json: Annotated[
        Path | None,
        typer.Option(callback=to_write, help="Write the figures to this file; - is stdout."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(callback=to_page, help="Write a page that plays the replay in a browser."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            callback=to_draw,
            help="Draw pool use and running requests; with --share, hits over memory.",
        ),
    ] = None,
) -> None:
    """Replay TRACE, or a generated workload, through a block manager in virtual time."""
    try:
        if checkpoint_every is not None:
            placement = f"{EVERY}:{checkpoint_every}"
        given = Given(context)
        placements = each_once("--placement", placement.split(","))
        for name in placements:
            read_placement(name)
        policies = each_once("--policy", [read_policy(name) for name in policy.split(",")])
        kept, sides = _read_retention(retention), each_once("--tiering", read_sides(tiering))
        shares = None if share is None else read_shares(share)
        each_once("--share", [share_text(one) for one in shares or ()])
        tiers = TierBytes.parse(host, disk)
        managers = each_once("--manager", manager or [DEFAULT_MANAGER])
        _check_options(given, managers, policies, workload)
        refuse_same_file(trace=trace, json=json, plot=plot, html=html)
        config = EngineConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            watermark=watermark,
            reject_too_large=on_error == "skip",
        )
        cache = None
        if num_blocks is None:
            deployment = Deployment(
                tp=tp,
                kv_cache_dtype=kv_cache_dtype,
                num_speculative_tokens=num_speculative_tokens,
                block_size=block_size,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                in_flight_batches=1,
            )
            check_block_size(deployment)
            cache = model_cache(model, memory, deployment)
        requests = (
            _read(trace, trace_format, on_error, limit, tokenizer)
            if trace is not None
            else _generate(workload, seed, limit, seats)
        )
        if saturate:
            requests = requests.at_once()
        if cache is None:
            size = block_size or DEFAULT_BLOCK_SIZE
            cache = block_cache(read_num_blocks(str(num_blocks), requests, size), size)
        if tiers is not None:
            tiered = compare_tiers(requests, cache, tiers, sides, config, retention=kept)
            _warn_of_defaults(given, memory)
            _show(json, tiered, make_tiers_table(tiered))
            _check_served(tiered)
            return
        variants = _variants(managers, placements, policies, kept, signal)
        runs: Runs = []
        if shares is not None:
            results = _compare_shares(requests, cache, variants, config, shares)
            tables = (make_hits_table(results), make_places_table(results))
        else:
            runs = _compare(
                requests,
                cache,
                variants,
                config,
                verify_data=verify_data,
                with_film=html is not None,
            )
            results = [result for result, _ in runs]
            tables = (make_table(results), None)
        _warn_of_defaults(given, memory)
        _show(json, results, *tables, hint=never_full_text(runs, is_saturated=saturate))
        if plot is not None:
            _draw(plot, results, runs)
        _check_served(results)
        if html is not None:
            _write_page(html, requests, cache, results, runs, context)
    except (HybridBlocksError, PlanError, OSError) as error:
        fail(error)


def _draw(path: Path, results: Sequence[Result], runs: Runs) -> None:
    """Draw runs, or hits over memory where there are none."""
    if runs:
        draw(path, runs)
    else:
        plot_hits(path, results)


def _write_page(  # noqa: PLR0917 -- as the run has them
    path: Path,
    trace: Trace,
    cache: Cache,
    results: Sequence[Result],
    runs: Runs,
    context: typer.Context,
) -> None:
    """Write the page of runs, or of results at several sizes where there are no runs."""
    from hybrid_blocks.view.page import write  # noqa: PLC0415 - optional, slow
    from hybrid_blocks.view.replay_page import ReplayPage  # noqa: PLC0415
    from hybrid_blocks.view.replay_picture import make_replay_picture  # noqa: PLC0415
    from hybrid_blocks.view.share_page import share_page  # noqa: PLC0415

    if runs:
        picture = make_replay_picture(trace, cache, runs)
        write(ReplayPage(picture, made_by(context)).document(), path)
    else:
        write(share_page(results, made_by(context)), path)


def _warn_of_defaults(given: Given, memory: str) -> None:
    if not {"model", "num_blocks"} & given.all:
        warn(
            f"without --model this replays {DEFAULT_MODEL} in {memory}; give --model and --memory "
            "of your engine"
        )


def _check_options(
    given: Given,
    managers: Sequence[ManagerName],
    policies: Sequence[PolicyName],
    workload: str,
) -> None:
    """Refuse options that would say nothing beside the others, or that need vLLM without it.

    Raises:
        InvalidArgumentError: there is one; says beside or without which, or what to install.

    """
    if "trace" in given:
        given.refuse("workload", "seed", "seats", why="beside TRACE, whose requests are replayed")
    else:
        if workload != SEATS:
            given.refuse("seats", why="without --workload seats, the only one that has seats")
        given.refuse(
            *("trace_format", "tokenizer"),
            why="without TRACE: a generated workload has no file",
        )
    if "host" in given:
        given.refuse(
            *("num_blocks", "manager", "policy", "placement", "checkpoint_every", "signal"),
            *("share", "verify_data", "plot", "html"),
            why="beside --host: a replay with tiers runs vLLM's scheduler and its manager of the "
            "device; leave it out",
        )
        need_vllm(", or leave out --host")
        return
    given.refuse("tiering", why="without --host: there are no tiers below the device")
    if "num_blocks" in given:
        given.refuse(
            *("model", "memory", "tp", "kv_cache_dtype", "num_speculative_tokens", "share"),
            why="beside --num-blocks, which stands for a model and its memory; leave one out",
        )
    if "share" in given:
        given.refuse("memory", why="beside --share, which says how much memory there is")
        given.refuse("verify_data", why="beside --share, which compares hits alone")
    if ManagerName.VLLM not in managers:
        given.refuse("retention", why="without --manager vllm, the only one that it is for")
    if ManagerName.RUST not in managers:
        given.refuse(
            *("policy", "placement", "checkpoint_every", "signal"),
            why="without --manager rust, the only one that it is for",
        )
    if "checkpoint_every" in given:
        given.refuse("placement", why="beside --checkpoint-every, which is --placement every:N")
    if PolicyName.FLOP not in policies:
        given.refuse("signal", why="without --policy flop, the only one that listens to clients")
    if ManagerName.VLLM in managers:
        need_vllm(", or leave out --manager vllm")


def _show(
    json: Path | None,
    results: Sequence[Result | TieredResult],
    *tables: Table | None,
    hint: str | None = None,
) -> None:
    """Print tables, unless the figures go to standard output, and write the figures."""
    if json != STDOUT:
        console = make_console()
        one_size = len({result.memory_bytes for result in results}) == 1
        console.print(engine_text(results[0], has_memory=one_size), soft_wrap=True)
        for table in filter(None, tables):
            print_table(console, table)
        if hint is not None:
            console.print(hint, soft_wrap=True)
    if json is not None:
        rows = [msgspec.to_builtins(result) for result in results]
        # One object, or a list of them if several managers ran.
        content = rows[0] if len(rows) == 1 else rows
        write_json(json, orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _check_served(results: Sequence[Result | TieredResult]) -> None:
    """Check that some replay had requests to serve.

    Raises:
        ReplayError: all were left out of all replays; says why.

    """
    if all(result.rejected_requests and not result.requests for result in results):
        reasons = dict.fromkeys(left_out_text(why) for one in results for why in one.left_out)
        raise ReplayError(f"every request was left out, nothing was replayed: {'; '.join(reasons)}")


def _read(
    path: Path,
    trace_format: str,
    on_error: OnError,
    limit: int | None,
    tokenizer: Path | None,
) -> Trace:
    if path.is_dir():
        if trace_format != AUTO or tokenizer is not None:
            raise ReplayError(f"{path} is a folder of clients: it has no --format and no text")
        return generate_clients(path, limit or MOST_CLIENTS_ASK)
    try:
        trace = read_trace(path, trace_format, on_error, tokenizer)
    except DamagedLineError as error:
        raise ReplayError(f"{error}. Leave out damaged lines with --on-error skip") from None
    if guessed := trace.guessed_answers:
        lines = "1 line does" if guessed == 1 else f"{guessed:,} lines do"
        warn(
            f"{lines} not tell the length of the answer: it counts max_tokens, or else 1 token. "
            'response is a text, {"text": …}, or what the API returned'
        )
    return trace if limit is None else trace.head(limit)


def _generate(workload: str, seed: int, limit: int | None, seats: int) -> Trace:
    if limit is not None and limit > MOST_GENERATED:
        raise ReplayError(
            f"--limit {limit:,}: at most {MOST_GENERATED:,} requests are generated; a TRACE may "
            "have more"
        )
    if workload != BRANCHING:
        return generate_workload(workload, seed, limit or NUM_REQUESTS, seats)
    trace = generate_trace(seed)
    return trace if limit is None else trace.head(limit)


def _variants(
    managers: Sequence[ManagerName],
    placements: Sequence[str],
    policies: Sequence[PolicyName],
    retention: int | None,
    signal: float | None,
) -> tuple[Variant, ...]:
    if ManagerName.VLLM in managers:
        allow_no_gpu()
    return make_variants(managers, placements, policies, VllmOptions(retention=retention), signal)


def _read_retention(text: str) -> int | None:
    if text == "dense":
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ReplayError(f"--retention {text!r} is neither a number of tokens nor dense")
    return parse_count(text, "--retention", MOST, least=0)


def _compare(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    *,
    verify_data: bool,
    with_film: bool,
) -> Runs:
    with make_progress() as progress:
        measuring = progress.add_task("measure sharing", total=1)
        sharing = measure_sharing(trace, cache.geometry.hash_block_size)
        progress.update(measuring, completed=1)
        return compare(
            trace,
            cache,
            variants,
            config,
            sharing=sharing,
            verify_data=verify_data,
            with_film=with_film,
            on_progress=_Tasks(progress, len(trace)),
        )


def _compare_shares(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    shares: Sequence[float],
) -> list[Result]:
    results: list[Result] = []
    with make_progress() as progress:
        measuring = progress.add_task("measure an unbounded cache", total=1)
        unbounded = SharedCache(trace, cache)
        progress.update(measuring, completed=1)
        for share in shares:
            runs = compare(
                trace,
                unbounded.at(share),
                variants,
                config,
                share=share_text(share),
                sharing=unbounded.sharing,
                prefixes=unbounded.prefixes,
                on_progress=_Tasks(progress, len(trace), f"{share_text(share)} "),
            )
            results += [result for result, _ in runs]
    return results


class _Tasks:
    """A bar for every variant that has begun."""

    def __init__(self, progress: Progress, total: int, prefix: str = "") -> None:
        self._progress = progress
        self._total = total
        self._prefix = prefix
        self._tasks: dict[Variant, TaskID] = {}

    def __call__(self, variant: Variant, done: int) -> None:
        if variant not in self._tasks:
            title = f"replay ({self._prefix}{variant.name})"
            self._tasks[variant] = self._progress.add_task(title, total=self._total)
        self._progress.update(self._tasks[variant], completed=done)
