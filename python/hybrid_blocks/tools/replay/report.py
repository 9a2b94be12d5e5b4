"""The answer of a replay in two lines, and its tables."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from rich.table import Table

from hybrid_blocks.metrics import ENDS
from hybrid_blocks.terminal import grid
from hybrid_blocks.tools.replay.config import Target
from hybrid_blocks.tools.replay.limits import LeftOut
from hybrid_blocks.tools.replay.managers import ManagerName
from hybrid_blocks.tools.replay.places import PLACES, PlaceCount
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.replay.times import MOST_STEPS, Times, rate_of
from hybrid_blocks.units import human

MOST_NAMED = 20
"""Skipped lines that a table names; the JSON has all."""


RARE = (
    *("output tokens", "  memory / live bytes of one", "pool", "recomputing saved", "checkpoints"),
    *("pool use", "steps", "manager a step", "manager in all", "virtual time", "wall time"),
)
"""Rows that do not answer how much was found and how many requests ran."""


def make_table(results: Sequence[Result], *, whole: bool = True) -> Table:
    """Make a table with one column of figures a manager, or a variant of it.

    Without ``whole`` it lacks `RARE` rows, and ends of hits that no manager has.
    """
    names = [result.variant or result.manager for result in results]
    columns = [figures(one) for one in results]
    if not whole:
        columns = [_without(column, RARE) for column in columns]
        never = set(ENDS).difference(limits_of(results))
        columns = [_without(column, list(map(_ended_by, never))) for column in columns]
    return side_by_side(f"replay of {results[0].trace}", names, columns)


def limits_of(results: Sequence[Result]) -> list[str]:
    """Return what ended a hit of any manager, in the order of `ENDS`."""
    return [name for name in ENDS if any(getattr(one, f"limit_{name}") for one in results)]


def _without(column: dict[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: cell for name, cell in column.items() if name not in names}


def _ended_by(limit: str) -> str:
    return f"hits ended: {limit.replace('_', ' ')}"


def engine_text(result: Result, *, has_memory: bool = True) -> str:
    """Say which engine served; not its memory where that is what is compared."""
    most = f"{result.max_num_seqs:,} requests at once at most"
    if result.model is None:
        return most
    drafts = result.num_speculative_tokens
    memory = f"{human(result.memory_bytes)} a GPU, " if has_memory else ""
    of = "" if result.card is None else f" of {result.card}"
    clock = "" if result.times is None else f", times{of}: {result.times.clock}"
    return (
        f"{result.model}, {memory}tp {result.tp}, KV {result.kv_cache_dtype}, "
        f"{drafts} draft token{'s' * (drafts != 1)}, {most}{clock}"
    )


def side_by_side(title: str, names: Sequence[str], columns: Sequence[dict[str, str]]) -> Table:
    """Make a table of named columns."""
    table = grid(title, "", *names)
    for figure, cells in rows(columns):
        table.add_row(figure, *cells)
    return table


def rows(columns: Sequence[dict[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the figures of all columns in order, each with its cells; none without any."""
    names = [*max(columns, key=len)]
    for column in columns:
        before = ""
        for figure in column:
            if figure not in names:
                names.insert(names.index(before) + 1 if before else 0, figure)
            before = figure
    for figure in names:
        cells = [column.get(figure, "") for column in columns]
        if any(cells):
            yield figure, cells


def never_full_text(runs: Sequence[tuple[Result, object]], *, is_saturated: bool) -> str | None:
    """Say how to fill a model's memory that no request waited for, or nothing if one did."""
    results = [result for result, _ in runs]
    if not results or any(one.full_load_steps or one.model is None for one in results):
        return None
    remedies = ["less --memory"]
    if any(one.peak_running == one.max_num_seqs for one in results):
        remedies.insert(0, "more --max-num-seqs")
    if not is_saturated:
        remedies.insert(0, "--saturate")
    return f"memory was never full, so no request waited for it: try {' or '.join(remedies)}"


def figures(result: Result) -> dict[str, str]:
    """Return the rows of a column, by name."""
    shown = {
        **_times(result),
        "requests": f"{result.requests:,}",
        "prompt tokens": f"{result.prompt_tokens:,}",
        "output tokens": f"{result.output_tokens:,}",
        "prefix hit rate": f"{result.hit_rate:.1%} of tokens, "
        f"{result.block_hit_rate:.1%} of blocks of {result.block_size}",
        **_host(result),
        "  one at a time, unbounded": _sequential(result),
        "peak running": f"{result.peak_running:,}",
        "  memory / live bytes of one": _bound(result),
        "memory efficiency": _efficiency(result),
        "  reserved for": _reserved(result),
        "preemptions": f"{result.preemptions:,} ({result.recomputed_tokens:,} tokens recomputed)",
        "pool": f"{result.blocks_total:,} {result.unit}",
        **_states(result),
        "pool use": f"{result.pool_use_mean:.1%} mean, "
        f"{result.blocks_used_peak / result.blocks_total:.1%} peak",
        "steps": f"{result.steps:,}",
        "manager a step": f"{result.manager_us_per_step_p50:.1f} µs p50, "
        f"{result.manager_us_per_step_p99:.1f} µs p99",
        "manager in all": f"{result.manager_seconds:.2f} s",
        "virtual time": f"{result.virtual_seconds:,.1f} s",
        "wall time": f"{result.wall_seconds:.1f} s",
    }
    return shown | not_served(result)


def _times(result: Result) -> dict[str, str]:
    """Say how long requests took on a card, and whether that is within the targets."""
    if (it := result.times) is None:
        return {}
    shown = {
        "time to first token": f"{it.ttft_mean_ms:,.0f} ms mean, {it.ttft_p50_ms:,.0f} p50, "
        f"{it.ttft_p95_ms:,.0f} p95",
        "time a token": f"{it.tpot_p50_ms:,.1f} ms p50, {it.tpot_p95_ms:,.1f} p95",
        "output tokens a second": f"{it.tokens_per_second:,.0f}",
        "requests a second": f"{it.requests_per_second:,.2f}",
    }
    if it.goodput is not None:
        taken: dict[str, list[str]] = {"broken": [], "kept": []}
        for text, seconds in it.targets.items():
            is_kept = seconds <= Target.read(text).seconds
            taken["kept" if is_kept else "broken"].append(f"{text}: {1e3 * seconds:,.0f} ms")
        shown["  within all targets"] = f"{it.goodput:,.2f}"
        shown["targets"] = "; ".join(f"{how}: {', '.join(of)}" for how, of in taken.items() if of)
    if it.is_highest:
        highest = "all keep the targets" if it.rate >= rate_of(MOST_STEPS) else f"{it.rate:,.4g}x"
        shown["highest rate"] = highest if it.within_targets else "none keeps the targets"
    elif it.rate != 1:
        shown["rate"] = f"{it.rate:g}x"
    return shown


def not_served(result: Result) -> dict[str, str]:
    """Say which requests of the trace were left out, and which of its lines were not read."""
    figures = {}
    if result.rejected_requests:
        figures["left out, too large"] = f"{result.rejected_requests:,} requests"
    for left_out in result.left_out:
        figures[f"  for {left_out.manager}"] = left_out_text(left_out)
    return figures | not_read(result.skipped_lines, result.cut_off_after)


def not_read(skipped: Sequence[int], cut_off_after: int | None) -> dict[str, str]:
    """Say which lines of a trace were not read."""
    figures = {}
    if skipped:
        figures["damaged lines"] = f"{len(skipped):,} skipped: {_named(skipped)}"
    if cut_off_after is not None:
        after = f"line {cut_off_after:,}: what came behind is missing"
        figures["cut off"] = f"the compressed data ends or breaks after {after}"
    return figures


def _named(skipped: Sequence[int]) -> str:
    lines = ", ".join(f"{line}" for line in skipped[:MOST_NAMED])
    more = len(skipped) - MOST_NAMED
    return f"{lines} and {more:,} more" if more > 0 else lines


def left_out_text(left_out: LeftOut) -> str:
    """Say how many requests are left out, and why."""
    lengths = f"{left_out.shortest:,}"
    if left_out.longest > left_out.shortest:
        lengths += f" to {left_out.longest:,}"
    if left_out.max_tokens is None:
        return f"{left_out.requests:,} of {lengths} tokens: {left_out.manager} refused them"
    holds = f"{left_out.manager} holds {left_out.max_tokens:,}"
    return f"{left_out.requests:,} of {lengths} tokens: {holds}"


def _efficiency(result: Result) -> str:
    if result.memory_efficiency is None:
        return "no request waited for memory"
    return f"{result.memory_efficiency:.1%} over {result.full_load_steps:,} full steps"


def _reserved(result: Result) -> str:
    """Say what the reserved bytes are held for, the largest part first."""
    parts = sorted((result.reserved_for or {}).items(), key=lambda part: -part[1])
    shown = ((name, f"{share:.1%}") for name, share in parts)
    return ", ".join(f"{share} {name}" for name, share in shown if share != "0.0%")


def _bound(result: Result) -> str:
    return f"{result.concurrency_bound:,.1f}" if result.concurrency_bound else ""


def _states(result: Result) -> dict[str, str]:
    """Say what managers of several groups count; the hits by what ended them."""
    figures = {}
    if result.recompute_flops_saved is not None:
        figures["recomputing saved"] = f"{result.recompute_flops_saved / 1e15:,.1f} PFLOP"
    if result.checkpoints is not None:
        figures["checkpoints"] = f"{result.checkpoints:,} left, {result.forks:,} resumed"
    if result.limit_complete is not None:
        counts = {limit: getattr(result, f"limit_{limit}") for limit in ENDS}
        for limit, count in counts.items():
            figures[_ended_by(limit)] = f"{count:,} of {sum(counts.values()):,} admissions"
    return figures


def _host(result: Result) -> dict[str, str]:
    if result.host_tokens is None:
        return {}
    return {"  loaded from host memory": f"{result.host_tokens:,} tokens"}


def _sequential(result: Result) -> str:
    if result.sequential_hit_rate is None:
        return "not measured"
    lower = result.sequential_hit_rate - result.hit_rate
    return (
        f"{result.sequential_hit_rate:.1%} of tokens: {100 * lower:.2f} points, "
        f"{round(lower * result.prompt_tokens):,} tokens more"
    )


def make_hits_table(results: Sequence[Result]) -> Table:
    """Make a table with a row of hits for every size and variant; ended are admissions."""
    limits = limits_of(results)
    table = grid(
        f"hits of {results[0].trace}",
        *("share", "memory", "manager", "hits", "each GiB more", "of attention's"),
        *(f"ended: {name.replace('_', ' ')}" for name in limits),
        "left out",
    )
    table.columns[2].justify = "left"
    for size in _sizes(results):
        for result in size:
            is_first = result is size[0]
            table.add_row(
                result.share if is_first else "",
                f"{result.memory_bytes / 2**30:,.1f} GiB" if is_first else "",
                result.variant,
                f"{result.hit_rate:.2%}",
                _of_a_gib(result, results),
                _of_bound(result),
                *(_count(getattr(result, f"limit_{name}")) for name in limits),
                _count(result.rejected_requests),
            )
        table.add_section()
    reasons = dict.fromkeys(left_out_text(reason) for r in results for reason in r.left_out)
    if reasons:
        table.caption = "left out: " + "; ".join(reasons)
    return table


def make_places_table(results: Sequence[Result]) -> Table | None:
    """Make a table of checkpoints by their place, or return None if no variant kept any."""
    counted = [
        (result, {count.place: count for count in result.places or ()}) for result in results
    ]
    places = [place for place in PLACES if any(place in counts for _, counts in counted)]
    if not places:
        return None
    title = "checkpoints written / used / dropped, by tokens before the end of the prompt"
    table = grid(title, "share", "placement", *places)
    table.columns[1].justify = "left"
    for result, counts in counted:
        if counts:
            row = (_place(counts.get(place)) for place in places)
            table.add_row(result.share, result.variant, *row)
    return table


def _sizes(results: Sequence[Result]) -> Iterator[list[Result]]:
    for share in dict.fromkeys(result.share for result in results):
        yield [result for result in results if result.share == share]


def _of_bound(result: Result) -> str:
    bound = result.sequential_hit_rate
    return f"{result.hit_rate / bound:.1%}" if bound else ""


def _of_a_gib(result: Result, results: Sequence[Result]) -> str:
    """Percentage points that each GiB brings on the way to the next larger size."""
    larger = [
        other
        for other in results
        if other.variant == result.variant and other.memory_bytes > result.memory_bytes
    ]
    if not larger:
        return ""
    following = min(larger, key=lambda other: other.memory_bytes)
    more = (following.memory_bytes - result.memory_bytes) / 2**30
    return f"{100 * (following.hit_rate - result.hit_rate) / more:+.2f} points"


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def _place(count: PlaceCount | None) -> str:
    return f"{count.written:,} / {count.used:,} / {count.dropped:,}" if count else ""


_WORTH_A_WORD: Final = 0.0005


def verdict(results: Sequence[Result]) -> Iterator[str]:
    """Yield what the best of this project's variants does, next to vLLM's manager if it ran.

    Without vLLM's it is compared with the worst variant.
    """
    ours = sorted((one for one in results if one.manager != ManagerName.VLLM), key=_rank)
    theirs = [one for one in results if one.manager == ManagerName.VLLM]
    best, *others = (*ours, *theirs)
    if not others:
        yield from _alone(best)
        return
    other, name = others[-1], _name(best, ours)
    if best.times and other.times:
        within = " within the targets" if best.times.is_highest else ""
        yield (
            f"{name}{_at_rate(best.times)}: first token after {best.times.ttft_mean_ms:,.0f} ms in "
            f"the mean, {_name(other, ours)}{_at_rate(other.times)} {other.times.ttft_mean_ms:,.0f}"
            f"; requests a second{within}: {_served(best.times):,.2f}, there "
            f"{_served(other.times):,.2f}"
        )
    gains = (
        bool(best.times) and _rank(other)[0] - _rank(best)[0] > abs(0.01 * _rank(other)[0]),
        best.hit_rate - other.hit_rate >= _WORTH_A_WORD,
        best.peak_running > other.peak_running,
        best.preemptions < other.preemptions,
    )
    nothing = "" if any(gains) else "nothing to gain: "
    yield (
        f"{nothing}{name} finds {_percent(best.hit_rate)} of prompt tokens, "
        f"{_name(other, ours)} {_percent(other.hit_rate)}"
    )
    yield (
        f"requests running at once: at most {best.peak_running:,}, there {other.peak_running:,}; "
        f"preemptions: {best.preemptions:,}, there {other.preemptions:,}"
    )


def _rank(one: Result) -> tuple[float, ...]:
    """Return less for the better result: by the times of a card, else by hits."""
    if one.times is None:
        return -one.hit_rate, -one.peak_running
    return (-_served(one.times) if one.times.is_highest else one.times.ttft_mean_ms,)


def _at_rate(times: Times) -> str:
    """Say at which rate a variant ran where each runs at its own."""
    return f" at {times.rate:,.4g}x" if times.is_highest else ""


def _served(times: Times) -> float:
    """Return the requests a second that the verdict compares: at highest rates, within targets."""
    if not times.is_highest or times.goodput is None:
        return times.requests_per_second
    return times.goodput


def _alone(result: Result) -> Iterator[str]:
    found = f"{_percent(result.hit_rate)} of prompt tokens are found"
    if result.sequential_hit_rate is not None:
        found += (
            f"; in unbounded memory, one request at a time: {_percent(result.sequential_hit_rate)}"
        )
    yield found
    yield (
        f"requests running at once: at most {result.peak_running:,}; "
        f"preemptions: {result.preemptions:,}"
    )


def _name(result: Result, ours: Sequence[Result]) -> str:
    if result.manager == ManagerName.VLLM:
        setting = (result.variant or "").removeprefix(f"{ManagerName.VLLM} ")
        return "vLLM" if setting in {"", "default"} else f"vLLM ({setting})"
    if len(ours) > 1:
        return result.variant or result.manager
    return "level natural" if result.model is not None else "this project's manager"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
