"""``hybrid-blocks size``: the cheapest cards that serve a trace."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hybrid_blocks.cli.given import Given
from hybrid_blocks.cli.output import STDOUT, fail, refuse_same_file, to_write, warn, write_json
from hybrid_blocks.cli.progress import make_progress
from hybrid_blocks.cli.replay_trace import read_requests, says_how_to_skip
from hybrid_blocks.cli.speculative import Option, draft_tokens
from hybrid_blocks.cli.values import MOST_RUNNING, each_once, finite
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.plan import Deployment
from hybrid_blocks.plan.deployment import MOST
from hybrid_blocks.plan.memory import UTILIZATION, parse_cards
from hybrid_blocks.replay import EngineConfig, ReplayError
from hybrid_blocks.replay.report import not_read
from hybrid_blocks.sizing.candidate import (
    Candidate,
    card_of,
    make_candidates,
    parse_counts,
    parse_hosts,
    parse_prices,
)
from hybrid_blocks.sizing.errors import SizingError
from hybrid_blocks.sizing.fit import Fit, fit
from hybrid_blocks.sizing.question import Question
from hybrid_blocks.sizing.report import make_table, notes, verdict
from hybrid_blocks.sizing.search import Found, search
from hybrid_blocks.sizing.served import read_served
from hybrid_blocks.sizing.slo import parse_slo
from hybrid_blocks.sizing.speed import SPEED
from hybrid_blocks.terminal import make_console, print_table
from hybrid_blocks.trace import AUTO, FORMATS, OnError, Trace, shared_prefixes

NONE_SERVES = 1
"""The exit code if no deployment serves the trace."""

_BLOCK = 16


def size_command(  # noqa: PLR0917 - typer reads the options from the signature
    context: typer.Context,
    trace: Annotated[Path, typer.Option(exists=True, help="Trace file, as replay takes it.")],
    model: Annotated[str, typer.Option(help="A built-in name or a config.json.")],
    slo: Annotated[str, typer.Option(help="Targets: ttft_p95<2s,tpot_p50<40ms; ttft, e2e, tpot.")],
    gpu: Annotated[
        str | None, typer.Option(metavar="CARD[,CARD]", help="Kinds of cards to try; all of them.")
    ] = None,
    tp: Annotated[
        str,
        typer.Option(
            "--tp", "--tensor-parallel-size", metavar="N[,N]", help="Numbers of cards to try."
        ),
    ] = "1,2,4,8",
    replicas: Annotated[
        str, typer.Option(metavar="N[,N]", help="Numbers of replicas to try; each has --tp cards.")
    ] = "1",
    host: Annotated[
        str, typer.Option(metavar="SIZE[,SIZE]", help="Host memory of a replica to try: 0,64GiB.")
    ] = "0",
    host_price: Annotated[
        float, typer.Option(min=0, callback=finite, help="Price of a GiB of it and hour.")
    ] = 0.0,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="CARD=PRICE", help="Price of a card and hour; give it for each card."),
    ] = None,
    fit_file: Annotated[
        Path | None,
        typer.Option("--fit", exists=True, help="Fit the clock to this file of a served engine."),
    ] = None,
    fitted_on: Annotated[
        str | None, typer.Option(metavar="2xCARD", help="Cards that recorded the file of --fit.")
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of each card that the engine may use.")
    ] = UTILIZATION,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, bf16 or fp8.")] = "auto",
    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=MOST_RUNNING, help="Most running requests.")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, max=MOST, help="Most tokens computed in one step.")
    ] = 8192,
    num_speculative_tokens: Annotated[int, typer.Option(min=0, help="Draft tokens of a step.")] = 0,
    speculative: Option = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Serve only the first N requests.")
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help=f"Format of the trace: {', '.join((AUTO, *FORMATS))}.")
    ] = AUTO,
    on_error: Annotated[OnError, typer.Option(help="What a damaged line does.")] = "raise",
    json: Annotated[
        Path | None, typer.Option(callback=to_write, help="Write the rows here; - is stdout.")
    ] = None,
) -> None:
    """Find the cheapest cards that serve a trace within targets of latency, in virtual time."""
    try:
        given = Given(context)
        if fit_file is None:
            given.refuse("fitted_on", why="without --fit, whose file it describes; leave it out")
        refuse_same_file(trace=trace, json=json)
        refuse_same_file(fit=fit_file, json=json)
        targets = parse_slo(slo)
        prices = parse_prices(price or [])
        candidates = _candidates(gpu, tp, replicas, prices, host=host, host_price=host_price)
        recorded_on = _fitted_on(fitted_on, candidates) if fit_file else None
        chosen = _weighed(model)
        drafts = draft_tokens(speculative, given, "num_speculative_tokens", chosen)
        config = EngineConfig(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
        )
        requests = _requests(trace, trace_format, on_error, limit)
        found_fit = None if fit_file is None else _fit(fit_file, trace, on_error, config)
        question = Question(
            trace=requests,
            prefixes=shared_prefixes(requests, _BLOCK),
            model=chosen,
            targets=targets,
            deployment=Deployment(
                kv_cache_dtype=kv_cache_dtype,
                num_speculative_tokens=drafts or num_speculative_tokens,
                max_num_batched_tokens=max_num_batched_tokens,
                max_num_seqs=max_num_seqs,
                in_flight_batches=1,
            ),
            config=config,
            utilization=gpu_memory_utilization,
            fit=found_fit,
            fitted_on=recorded_on,
        )
        found = _search(question, candidates)
        _show(json, found, question, has_prices=bool(prices))
    except (HybridBlocksError, PlanError, ReplayError, OSError) as error:
        fail(error)
    if found.best is None:
        raise typer.Exit(NONE_SERVES)


def _candidates(
    gpu: str | None,
    tp: str,
    replicas: str,
    prices: dict[str, float],
    *,
    host: str,
    host_price: float,
) -> list[Candidate]:
    """Return all deployments that ``--gpu``, ``--tp``, ``--replicas`` and ``--host`` allow.

    Raises:
        SizingError: ``--host-price`` without prices of cards.

    """
    if host_price and not prices:
        raise SizingError(
            "--host-price without --price: the cost is then the memory of the cards; give each "
            "card a price too"
        )
    cards = [card_of(one) for one in gpu.split(",")] if gpu else list(prices or SPEED)
    counts, nums, hosts = parse_counts(tp), parse_counts(replicas, "--replicas"), parse_hosts(host)
    each_once("--gpu", cards)
    each_once("--tp", counts)
    each_once("--replicas", nums)
    each_once("--host", hosts)
    return make_candidates(cards, counts, prices, nums, hosts=hosts, host_price=host_price)


def _weighed(name: str) -> Model:
    """Return a model whose weights are known."""
    model = load_model(name)
    if model.weights is None:
        raise PlanError(
            f"--model {name}: its number of parameters is not known: {model.weights_unknown}; "
            "give a config.json that tells it"
        )
    return model


def _requests(path: Path, trace_format: str, on_error: OnError, limit: int | None) -> Trace:
    trace = read_requests(path, trace_format, on_error, limit, tokenizer=None)
    _warn_of_damage(path, trace)
    return trace


def _fit(path: Path, trace: Path, on_error: OnError, config: EngineConfig) -> Fit:
    """Fit the clock to a file, which may be the one of ``--trace``."""
    with says_how_to_skip():
        served = read_served(path, on_error)
    if path != trace:
        _warn_of_damage(path, served.trace)
    return fit(served, config)


def _warn_of_damage(path: Path, trace: Trace) -> None:
    for what, text in not_read(trace.skipped, trace.cut_off_after).items():
        warn(f"{path}: {what}: {text}")


def _fitted_on(text: str | None, candidates: list[Candidate]) -> Candidate:
    """Return the cards of ``--fitted-on``, or the only ones that are tried.

    Raises:
        PlanError: no such card.
        SizingError: they are not given though several are tried, or a card of unknown speed.

    """
    if text is None:
        if len(candidates) == 1:
            return candidates[0]
        raise SizingError(
            "--fit beside several deployments: --fitted-on 1xH100-80GB says which cards recorded it"
        )
    cards = parse_cards(text)
    card_of(cards.name, "--fitted-on")
    return Candidate(card=cards.name, count=cards.count or 1, cost=0.0)


def _search(question: Question, candidates: list[Candidate]) -> Found:
    with make_progress() as progress:
        task = progress.add_task("deployments", total=len(candidates))
        return search(question, candidates, lambda done: progress.update(task, completed=done))


def _show(json: Path | None, found: Found, question: Question, *, has_prices: bool) -> None:
    """Write the rows; print the verdict and the table, unless the rows go to standard output."""
    if json is not None:
        content = {
            "trace": question.trace.name,
            "model": question.model.name,
            "slo": [str(target) for target in question.targets],
            "serves": found.best.candidate.name if found.best else None,
            "untried": found.untried,
            "fit": question.fit,
            "rows": found.rows,
        }
        write_json(json, msgspec.json.format(msgspec.json.encode(content), indent=1))
    if json != STDOUT:
        console = make_console()
        console.print(verdict(found, question, has_prices=has_prices), soft_wrap=True)
        print_table(console, make_table(found, question, has_prices=has_prices))
        for note in notes(found, question, has_prices=has_prices):
            console.print(note, soft_wrap=True)
