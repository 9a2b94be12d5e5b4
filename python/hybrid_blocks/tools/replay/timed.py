"""Replays in a card's time: vLLM at its default and its best, and this project's variants."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from hybrid_blocks.tools.replay.cache import Cache
from hybrid_blocks.tools.replay.config import EngineConfig, ReplayError
from hybrid_blocks.tools.replay.managers import ManagerName, VllmOptions
from hybrid_blocks.tools.replay.result import Result
from hybrid_blocks.tools.replay.run import OnProgress, Runs, Variant, compare
from hybrid_blocks.tools.replay.times import MOST_STEPS, Times, highest_step, rate_of
from hybrid_blocks.tools.trace import Sharing, Trace

Timed = list[tuple[Variant, Result]]


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

    Of vLLM's settings the default and the best are kept. Without a ``rate`` each variant runs at
    the highest rate within the targets of ``config``.

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

    tried = at(rate or 1.0, variants, is_last=rate is not None)
    names = best_names(variants, [result for result, _ in tried])
    if rate is not None:
        kept = [(run, names[it]) for it, run in zip(variants, tried, strict=True) if it in names]
        return [
            (msgspec.structs.replace(result, variant=name), timeline)
            for (result, timeline), name in kept
        ]
    runs: Runs = []
    for variant, name in names.items():

        def holds(step: int, variant: Variant = variant) -> bool:
            return _times(at(rate_of(step), [variant])[0][0]).within_targets is True

        step = highest_step(holds)
        speed = rate_of(-MOST_STEPS if step is None else step)
        ((result, timeline),) = at(speed, [variant], is_last=True)
        times = msgspec.structs.replace(_times(result), is_highest=True)
        runs.append((msgspec.structs.replace(result, variant=name, times=times), timeline))
    return runs


def best_names(variants: Sequence[Variant], results: Sequence[Result]) -> dict[Variant, str]:
    """Return the variants to show and their names: of vLLM's the default and the best.

    The best is the one whose first token comes first, in the mean.
    """
    pairs = list(zip(variants, results, strict=True))
    theirs = [pair for pair in pairs if pair[0].manager is ManagerName.VLLM]
    best = min(theirs, key=lambda pair: _times(pair[1]).ttft_mean_ms, default=None)
    names = {}
    for variant, _ in pairs:
        is_best = best is not None and variant == best[0] and len(theirs) > 1
        is_default = replace(variant.vllm, spare_calls=True) == VllmOptions()
        if variant.manager is not ManagerName.VLLM or is_best or is_default or len(theirs) == 1:
            names[variant] = variant.name + (f", best of {len(theirs)}" if is_best else "")
    return names


def _times(result: Result) -> Times:
    assert result.times is not None
    return result.times


def _at_rate(result: Result, *, rate: float) -> Result:
    times = msgspec.structs.replace(_times(result), rate=rate)
    return msgspec.structs.replace(result, times=times)
