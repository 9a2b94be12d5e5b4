"""The table at the end of a replay with tiers below the device."""

from collections.abc import Sequence

from rich.table import Table

from hybrid_blocks.replay.report import not_served, side_by_side
from hybrid_blocks.replay.tiers.result import TieredResult, TierFigures
from hybrid_blocks.units import human


def make_tiers_table(results: Sequence[TieredResult]) -> Table:
    """Make a table with one column of figures for each manager of the tiers."""
    names = [result.manager for result in results]
    title = f"replay of {results[0].trace}, hits by tier"
    return side_by_side(title, names, [_figures(result) for result in results])


def _figures(result: TieredResult) -> dict[str, str]:
    figures = {
        "requests": f"{result.requests:,}",
        "prompt tokens": f"{result.prompt_tokens:,}",
        "hits": _tokens(result.hit_tokens, result.hit_rate),
    }
    for tier in result.tiers:
        figures[f"  {tier.tier}, {human(tier.total_bytes)}"] = _tokens(
            tier.hit_tokens, tier.hit_rate
        )
        of_a_gib = 100 * tier.hit_rate / (tier.total_bytes / 2**30)
        figures[f"  each GiB of {tier.tier}"] = f"{of_a_gib:.3f} points"
    for tier in result.tiers[1:]:
        figures |= _moved(tier)
    if len(result.tiers) > 2:
        read = human(result.promoted_bytes)
        figures["read from disk"] = f"{result.promotions:,} chunks, {read}"
        figures["  of these never loaded"] = f"{result.wasted_promotions:,} chunks"
    if result.host_live_share is not None:
        figures["live in host memory"] = f"{result.host_live_share:.1%} of its bytes, in the end"
    figures |= {
        "preemptions": f"{result.preemptions:,}",
        "steps": f"{result.steps:,}",
        "virtual time": f"{result.virtual_seconds:,.1f} s",
        "wall time": f"{result.wall_seconds:.1f} s",
    }
    return figures | not_served(result)


def _tokens(tokens: int, share: float) -> str:
    return f"{tokens:,} tokens, {share:.1%}"


def _moved(tier: TierFigures) -> dict[str, str]:
    assert tier.stored_bytes is not None
    assert tier.evicted_bytes is not None
    moved = {
        f"stored in {tier.tier}": human(tier.stored_bytes),
        f"evicted from {tier.tier}": human(tier.evicted_bytes),
    }
    if tier.refused:
        moved[f"refused by {tier.tier}"] = f"{tier.refused:,}"
    return moved
