"""The answer of a replay in two lines: prompt tokens found, and requests that run at once."""

from collections.abc import Iterator, Sequence
from typing import Final

from hybrid_blocks.tools.replay.managers import ManagerName
from hybrid_blocks.tools.replay.result import Result

_WORTH_A_WORD: Final = 0.0005


def verdict(results: Sequence[Result]) -> Iterator[str]:
    """Yield what the best of this project's variants does, next to vLLM's manager if it ran.

    Without vLLM's it is compared with the worst variant.
    """
    ours = sorted(
        (one for one in results if one.manager != ManagerName.VLLM),
        key=lambda one: (-one.hit_rate, -one.peak_running),
    )
    theirs = [one for one in results if one.manager == ManagerName.VLLM]
    best, *others = (*ours, *theirs)
    if not others:
        yield from _alone(best)
        return
    other, name = others[-1], _name(best, ours)
    gains = (
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
        return "vLLM"
    if len(ours) > 1:
        return result.variant or result.manager
    return "level natural" if result.model is not None else "this project's manager"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
