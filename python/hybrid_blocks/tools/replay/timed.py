"""Replays in a card's time: vLLM at its default and its best, and this project's variants."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.clock import Timeline
from hybrid_blocks.tools.replay.config import EngineConfig, ReplayError
from hybrid_blocks.tools.replay.managers import ManagerName
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.replay.run import OnProgress, Runs, Variant, compare
from hybrid_blocks.tools.replay.times import MOST_STEPS, Times, highest_step, rate_of
from hybrid_blocks.tools.trace import Sharing, Trace


def timed(
    trace: Trace,
    cache: Cache,
    variants: Sequence[Variant],
    config: EngineConfig,
    *,
    rate: float | None,
    sharing: Sharing | None = None,
    with_film: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Runs:
    """Replay a trace whose requests arrive ``rate`` times as fast with each variant.

    Of vLLM's settings the default and the best are kept, by the mean first token. Without a
    ``rate`` each variant runs at the highest rate within the targets of ``config``, and the best
    is that of the highest.

    Raises:
        ReplayError: all requests arrive at once, or there are no targets to keep.
    """
    if rate is None and not config.targets:
        raise ReplayError("--rate max: give the targets that it keeps with --slo")
    if rate != 1 and not trace.arrival[trace.follows < 0].any():
        raise ReplayError("--rate: all requests of this trace arrive at once")

    def at(speed: float, some: Sequence[Variant], *, is_last: bool = False) -> Runs:
        runs = compare(
            *(trace.faster(speed), cache, some, config),
            beside=variants,
            sharing=sharing,
            with_film=with_film and is_last,
            on_progress=on_progress,
        )
        return [(_at_rate(result, rate=speed), timeline) for result, timeline in runs]

    if rate is not None:
        tried = dict(zip(variants, at(rate, variants, is_last=True), strict=True))
        names = shown({it: _times(run[0]).ttft_mean_ms for it, run in tried.items()}, variants)
        return [_named(tried[variant], name) for variant, name in names.items()]

    def holds(variant: Variant, step: int) -> bool:
        return _times(at(rate_of(step), [variant])[0][0]).within_targets is True

    steps: dict[Variant, int] = {}
    default = next((it for it in variants if it.manager is ManagerName.VLLM), None)
    for variant in variants:
        is_setting = variant.manager is ManagerName.VLLM and variant != default
        # Only a setting that holds where the default breaks can be better.
        if is_setting and default and not holds(variant, steps[default] + 1):
            continue
        found = highest_step(partial(holds, variant))
        steps[variant] = -MOST_STEPS if found is None else found
    names = shown({variant: -step for variant, step in steps.items()}, variants)
    runs: Runs = []
    for variant, name in names.items():
        ((result, timeline),) = at(rate_of(steps[variant]), [variant], is_last=True)
        times = msgspec.structs.replace(_times(result), is_highest=True)
        runs.append(_named((msgspec.structs.replace(result, times=times), timeline), name))
    return runs


def shown(scores: Mapping[Variant, float], variants: Sequence[Variant]) -> dict[Variant, str]:
    """Return the variants to show and their names: of vLLM's the default and the best.

    The default comes first of its settings, and the best has the lowest of ``scores``.
    """
    theirs = [it for it in variants if it.manager is ManagerName.VLLM]
    best = min((it for it in theirs if it in scores), key=scores.__getitem__, default=None)
    return {
        it: it.name + (f", best of {len(theirs)}" if it == best and len(theirs) > 1 else "")
        for it in variants
        if it.manager is not ManagerName.VLLM or it in {best, theirs[0]}
    }


def _named(run: tuple[Result, Timeline], name: str) -> tuple[Result, Timeline]:
    result, timeline = run
    return msgspec.structs.replace(result, variant=name), timeline


def _times(result: Result) -> Times:
    assert result.times is not None
    return result.times


def _at_rate(result: Result, *, rate: float) -> Result:
    times = msgspec.structs.replace(_times(result), rate=rate)
    return msgspec.structs.replace(result, times=times)
