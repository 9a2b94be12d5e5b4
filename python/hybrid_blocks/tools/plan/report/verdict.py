"""The gain of level ``natural`` over vLLM: at each length, and in one or two lines."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from hybrid_blocks.geometry.step_time import StepTime
from hybrid_blocks.model.layer import FullAttention, LatentAttention
from hybrid_blocks.tools.plan.report.figures import AtLength, PlanReport
from hybrid_blocks.units import short_tokens

TYPICAL: Final = (1024, 4096, 16_384)
"""Lengths in tokens that a plan without ``--lengths`` shows, besides the longest."""

_WORTH_A_WORD: Final = 0.005
SCHEDULER_RECORD: Final = "benches/record/2026-11-30-engine.json"
"""Measured steps of vLLM's engine core, on a core of an AMD EPYC (`make bench-engine`)."""
_NO_GAIN: Final = "0 %"
_HITS: Final = "hybrid-blocks replay says how many more prompt tokens it finds in the cache"


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """How much more one length runs at level ``natural``: 0.1 is a tenth more than in vLLM.

    ``share`` is of whole requests that run, which ``max_num_seqs`` may cap, and ``in_memory`` of
    those that memory holds. ``speed`` is of the tokens a second while all that run decode, by the
    clock of the card. All are None where a side holds no whole request, or no engine runs the
    natural plan.
    """

    length: int
    share: float | None
    in_memory: float | None
    speed: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a plan. ``gains`` are in the order of a plan's ``lengths``."""

    lines: tuple[str, ...]
    gains: tuple[Gain, ...]
    trace: Gain | None = None


def scheduler_of(num_groups: int) -> float:
    """Return milliseconds of vLLM's scheduler for each running request of a step.

    The line fits `SCHEDULER_RECORD`, whose models have 2 to 10 cache groups.
    """
    return 0.009 + 0.006 * max(num_groups, 2)


def typical_lengths(limit: int) -> list[int]:
    """Return the lengths to show below a maximum."""
    return [length for length in TYPICAL if length < limit]


def judge(
    natural: PlanReport,
    vllm: PlanReport | None,
    refusals: Sequence[str],
    max_num_seqs: int,
    clock: StepTime | None = None,
) -> Verdict:
    """Compare two plans; ``refusals`` are what keeps vLLM from running at level ``natural``.

    ``clock`` is that of the card, if it is known.
    """
    if vllm is None:
        lines: tuple[str, ...] = ("vLLM cannot serve this model, so there is nothing to gain",)
        return Verdict(lines=lines, gains=_none(natural))
    if refusals:
        lines = (
            f"nothing to gain in memory: vLLM runs at level manager ({', '.join(refusals)}), which "
            "keeps vLLM's blocks and saves scheduler time alone",
        )
        return Verdict(lines=(*lines, *_scheduled(vllm, clock)), gains=_none(natural))
    gains = tuple(
        _gain(ours, theirs, clock)
        for ours, theirs in zip(natural.lengths, vllm.lengths, strict=True)
    )
    trace = _gain(natural.trace, vllm.trace, clock) if natural.trace and vllm.trace else None
    starting = tuple(_starting(natural, vllm))
    named = _named(gains, trace, natural.lengths[0].length)
    if not named:
        return Verdict(lines=starting or ("nothing to compare",), gains=gains, trace=trace)
    lines = (*starting, *_lines(named, natural, vllm, max_num_seqs), *_timed(named, clock))
    lines += tuple(_scheduled(vllm, clock))
    return Verdict(lines=lines, gains=gains, trace=trace)


def percent(share: float | None) -> str:
    """Return a gain as whole percent, ``-`` where there is none."""
    if share is None:
        return "-"
    whole = round(100 * share)
    return f"{whole:+d} %" if whole else _NO_GAIN


def _none(natural: PlanReport) -> tuple[Gain, ...]:
    return tuple(Gain(length=one.length, share=None, in_memory=None) for one in natural.lengths)


def _timed(named: dict[str, Gain], clock: StepTime | None) -> Iterator[str]:
    """Say what the gain is in tokens a second, where the time of a step is known and some gain."""
    if clock is not None and any(
        abs(gain.speed or 0.0) >= _WORTH_A_WORD for gain in named.values()
    ):
        each = _each({what: gain.speed for what, gain in named.items()})
        yield f"tokens a second while all decode: {each} ({clock.text})"


def _scheduled(vllm: PlanReport, clock: StepTime | None) -> Iterator[str]:
    """Say whether vLLM's scheduler or the card bounds a step, where it comes nearest to that."""
    running = max((one for one in vllm.lengths if one.concurrency >= 1), key=_few, default=None)
    if clock is None or running is None:
        return
    scheduler = scheduler_of(len(vllm.groups)) * running.whole
    card = _milliseconds(running, clock)
    step = f"a step of {running.whole:,} requests takes the card {card:,.0f} ms"
    if scheduler > card:
        gain = percent(scheduler / card - 1)
        yield (
            f"scheduler: {step}, vLLM's scheduler up to {scheduler:,.0f}: level manager brings up "
            f"to {gain} (by {SCHEDULER_RECORD})"
        )
    else:
        yield f"scheduler: nothing to gain, as {step} and vLLM's scheduler {scheduler:,.0f}"


def _few(side: AtLength) -> float:
    return -side.length


def _milliseconds(side: AtLength, clock: StepTime) -> float:
    """Return the time of a step in which all that run decode."""
    return clock.milliseconds(0, side.whole, side.whole * side.length, 0)


def _tokens_a_millisecond(side: AtLength, clock: StepTime) -> float:
    return side.whole / _milliseconds(side, clock)


def _gain(ours: AtLength, theirs: AtLength, clock: StepTime | None) -> Gain:
    if min(ours.concurrency, theirs.concurrency) < 1:
        return Gain(length=ours.length, share=None, in_memory=None)
    speed = None
    if clock is not None:
        speed = _tokens_a_millisecond(ours, clock) / _tokens_a_millisecond(theirs, clock) - 1
    return Gain(
        length=ours.length,
        share=ours.whole / theirs.whole - 1,
        in_memory=int(ours.concurrency) / int(theirs.concurrency) - 1,
        speed=speed,
    )


def _starting(natural: PlanReport, vllm: PlanReport) -> Iterator[str]:
    limit = natural.lengths[0].length
    for name, fits, other in (
        ("vLLM", vllm.max_length, "level natural"),
        ("level natural", natural.max_length, "vLLM"),
    ):
        if fits < limit:
            yield f"{name} does not start with a max length of {limit:,}, {other} does"


def _named(gains: Sequence[Gain], trace: Gain | None, limit: int) -> dict[str, Gain]:
    """Return the gains that count by what they are of, the trace first, then the shortest."""
    rows = {"the trace": trace} if trace is not None else {}
    for gain in sorted(gains, key=lambda gain: gain.length):
        if gain.length <= limit:
            rows[short_tokens(gain.length)] = gain
    return {what: gain for what, gain in rows.items() if gain.share is not None}


def _lines(
    named: dict[str, Gain], natural: PlanReport, vllm: PlanReport, max_num_seqs: int
) -> Iterator[str]:
    shares = [gain.share or 0.0 for gain in named.values()]
    of_each = {what: gain.share for what, gain in named.items()}
    each = _each(of_each)
    held = _each({what: gain.in_memory for what, gain in named.items()})
    capped = _capped(named, natural, vllm)
    caps = f"max_num_seqs {max_num_seqs:,} caps both sides at {', '.join(capped)}"
    if min(shares) <= -_WORTH_A_WORD:
        if max(shares) >= _WORTH_A_WORD:
            fewer = {what: share for what, share in of_each.items() if (share or 0.0) < 0}
            more = {what: share for what, share in of_each.items() if what not in fewer}
            each = f"{_each(fewer)}; more: {_each(more)}"
        yield f"level natural runs fewer requests at once than vLLM: {each}"
    elif max(shares) >= _WORTH_A_WORD:
        yield f"level natural runs more requests at once than vLLM: {each}"
    elif all(group.kind in {FullAttention.kind, LatentAttention.kind} for group in natural.groups):
        yield (
            "nothing to gain in memory: both sides run as many requests; level natural saves "
            "scheduler time alone"
        )
    elif any((gain.in_memory or 0.0) >= _WORTH_A_WORD for gain in named.values()):
        yield f"level natural runs no more requests at once: {caps}; memory holds {held}"
        yield _HITS
        return
    else:
        yield f"level natural runs no more requests at once: {each}"
        yield _HITS
        return
    yield "; ".join((*_lost(named, vllm), *([caps] if capped else ())))


def _each(shares: dict[str, float | None]) -> str:
    """Name each gain, and last the lengths without one."""
    told = {what: percent(share) for what, share in shares.items()}
    gains = [f"{share} of {what}" for what, share in told.items() if share != _NO_GAIN]
    same = [what for what, share in told.items() if share == _NO_GAIN]
    if not gains:
        return f"{_NO_GAIN} of {', '.join(same)} tokens"
    return f"{', '.join(gains)} tokens" + (f", no more of {', '.join(same)}" if same else "")


def _capped(named: dict[str, Gain], natural: PlanReport, vllm: PlanReport) -> list[str]:
    """Return the lengths at which ``max_num_seqs`` binds on both sides."""
    pairs = zip(natural.lengths, vllm.lengths, strict=True)
    lengths = [pair[0].length for pair in pairs if all(it.running < it.concurrency for it in pair)]
    return [name for length in sorted(lengths) if (name := short_tokens(length)) in named]


def _lost(named: dict[str, Gain], vllm: PlanReport) -> Iterator[str]:
    """Say which share of a request's bytes vLLM rounds and pads: no geometry saves the others."""
    shares = {}
    if "the trace" in named and vllm.trace_lost is not None:
        shares["the trace"] = f"{100 * vllm.trace_lost:.1f} %"
    for one in sorted(vllm.lengths, key=lambda one: one.length):
        lost = one.budget.rounding + one.budget.padding
        if one.budget.requests and short_tokens(one.length) in named:
            share = 100 * lost / (one.budget.live + lost)
            shares[short_tokens(one.length)] = f"{share:.1f} %"
    if len({*shares.values()}) == 1:
        first = next(iter(shares.values()))
        yield f"vLLM rounds and pads {first} of a request; the rest is live"
    elif shares:
        (short, first), *_, (long, last) = shares.items()
        yield (
            f"vLLM rounds and pads {first} of a request of {short} and {last} of one of {long}; "
            "the rest is live"
        )
