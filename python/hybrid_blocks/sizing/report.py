"""The verdict of a search, and its table."""

from collections.abc import Iterator

from rich.table import Table

from hybrid_blocks.sizing.evaluate import Row
from hybrid_blocks.sizing.question import Question
from hybrid_blocks.sizing.search import Found
from hybrid_blocks.sizing.slo import Target, duration
from hybrid_blocks.terminal import grid
from hybrid_blocks.units import gib


def verdict(found: Found, question: Question, *, has_prices: bool) -> str:
    """Say in one line which cards serve the trace."""
    slo = ", ".join(map(str, question.targets))
    best = found.best
    if best is None:
        return (
            f"none of {len(found.rows)} deployments serves {question.trace.name} with {slo}: "
            "allow more cards (--tp), other cards (--gpu), or later answers (--slo)"
        )
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in best.measured.items())
    return (
        f"{best.candidate.name} is the cheapest that serves {question.trace.name} with {slo}: "
        f"{times}; cost {_cost(best, has_prices=has_prices)}; {best.binds} binds; {best.sure}"
    )


def make_table(found: Found, question: Question, *, has_prices: bool) -> Table:
    """Make a table of the candidates that were tried."""
    names = [target.name for target in question.targets]
    cost = "cost an hour" if has_prices else "GiB of all cards"
    table = grid(
        f"deployments of {question.model.name}, the cheapest first",
        *("cards", cost, "KV memory of each", *names, "binds", "how sure", ""),
    )
    for row in found.rows:
        memory = "" if row.memory_bytes is None else gib(row.memory_bytes)
        table.add_row(
            row.candidate.name,
            f"{row.candidate.cost:,.4g}",
            memory,
            *(_cell(row, target) for target in question.targets),
            row.binds or "",
            row.sure or "",
            _outcome(row),
        )
    return table


def notes(found: Found, question: Question, *, has_prices: bool) -> Iterator[str]:
    """Say what the figures stand on."""
    for row in found.rows:
        if row.why_not:
            yield f"{row.candidate.name}: {row.why_not}"
    if found.untried:
        more = "deployment is" if found.untried == 1 else "deployments are"
        yield f"{found.untried} dearer {more} not tried"
    if not has_prices:
        yield "cost is the memory of all cards; --price H100-80GB=2.5 gives a card's own"
    yield "KV memory is estimated; plan --gpu shows how"
    if drafts := question.deployment.num_speculative_tokens:
        one = "1 draft token has" if drafts == 1 else f"{drafts} draft tokens have"
        yield f"{one} room in each step; no draft is accepted, so times are an upper bound"
    if question.fit is None:
        yield "times are estimated by data sheets; --fit FILE takes them from a recorded engine"
    else:
        yield from question.fit.lines


def _cell(row: Row, target: Target) -> str:
    if target.name in row.measured:
        return duration(row.measured[target.name])
    return f"over {duration(target.seconds)}" if row.missed == target.name else ""


def _outcome(row: Row) -> str:
    if row.serves:
        return "serves"
    return "does not fit" if row.why_not else f"misses {row.missed}"


def _cost(row: Row, *, has_prices: bool) -> str:
    cost = f"{row.candidate.cost:,.4g}"
    return f"{cost} an hour by --price" if has_prices else f"{cost} GiB of cards (no --price)"
