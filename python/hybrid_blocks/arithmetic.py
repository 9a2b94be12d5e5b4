"""Whole-number arithmetic."""

from collections.abc import Iterable
from itertools import accumulate, chain, takewhile


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest whole number not below the quotient."""
    return -(-numerator // denominator)


def needs_more(total: int, first: int, most: int) -> bool:
    """Whether parts of up to ``most`` are one more for ``total`` if ``first`` goes before."""
    return 1 + ceil_div(total - first, most) > ceil_div(total, most)


def prompts_outweigh(
    num_prompts: int, num_waiting: int, num_running: int, step_budgets: float
) -> bool:
    """Whether the prompts of a step gain more by a shorter one than all others lose.

    Shorter steps let requests that generate end sooner, and the prompts that follow them join a
    longer queue. Of the running requests, ``num_prompts`` are computed in the step; each ends
    sooner for sure, and counts twice. The first of ``num_waiting`` prompts leaves a part of the
    budget: those behind it end later by that part of a step, which costs ``step_budgets``.
    """
    num_generating = num_running - num_prompts
    gained = num_prompts > max(num_waiting - 1, 0) * step_budgets
    return gained and 2 * num_prompts + num_waiting >= num_generating


def tokens_of_short(
    chunk: int, running: Iterable[int], waiting: Iterable[int], step_tokens: int
) -> int:
    """Tokens of a chunk that a prompt, which goes on, leaves to requests behind it.

    ``running`` and ``waiting`` are the tokens that these have to compute, in their order. Those
    that end in this step get an eighth of ``step_tokens`` at most. A running one that needs more is
    passed over. Requests are admitted in their order: none counts behind one that needs more.
    """
    most = step_tokens // 8
    if chunk <= most:
        return 0
    short = (num for num in running if num <= most)
    totals = takewhile(lambda total: total <= most, accumulate(chain(short, waiting)))
    return max(totals, default=0)


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple of ``multiple`` not below ``value``."""
    return ceil_div(value, multiple) * multiple


def requests_that_fit(units: float, first: float, other: float) -> float:
    """Return how many requests ``units`` of memory hold, with a fraction.

    One computes its prompt and takes ``first``; each of the others decodes and takes ``other``.
    """
    return units / first if first > units else 1 + (units - first) / other
