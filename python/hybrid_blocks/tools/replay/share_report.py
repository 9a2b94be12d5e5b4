"""The tables of a comparison at several sizes of the cache."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from hybrid_blocks.terminal import grid
from hybrid_blocks.tools.replay.places import PLACES, PlaceCount
from hybrid_blocks.tools.replay.report import left_out_text, limits_of
from hybrid_blocks.tools.replay.result import Result


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
