"""Warnings about lengths: what caps the requests of each, and which no engine takes."""

from collections.abc import Sequence

from hybrid_blocks.plan.report.plan_report import AtLength, PlanReport


def advise_on_lengths(
    limit: int,
    lengths: Sequence[int],
    max_num_seqs: int,
    natural: PlanReport,
    vllm: PlanReport | None,
) -> list[str]:
    """Return what to know of each length; ``limit`` is the maximum length."""
    warnings = [
        f"{length:,} tokens exceed the maximum length of {limit:,} (--max-model-len): an engine "
        "refuses such a request"
        for length in dict.fromkeys(lengths)
        if length > limit
    ]
    theirs = [None] * len(natural.lengths) if vllm is None else vllm.lengths
    per_length = [_held(*pair) for pair in zip(natural.lengths, theirs, strict=True)]
    caps = {
        ours.length: held for ours, held in zip(natural.lengths, per_length, strict=True) if held
    }
    if caps:
        shortest, *longer = sorted(caps)
        what = ", ".join(f"{length:,}" for length in (shortest, *longer))
        told = caps[shortest] + (f" of {shortest:,}" if longer else "")
        warnings.append(_capped(f"requests of {what}", told, max_num_seqs))
    if held := _held(natural.trace, None if vllm is None else vllm.trace):
        warnings.append(_capped("requests of the trace", held, max_num_seqs))
    return warnings


def _held(natural: AtLength | None, vllm: AtLength | None) -> str:
    """Return what memory holds where it is more than runs, else ""."""
    sides = {"natural": natural, "vLLM": vllm}
    return ", ".join(
        f"{one.concurrency:,.2f}x ({name})"
        for name, one in sides.items()
        if one is not None and one.concurrency > one.running
    )


def _capped(what: str, told: str, max_num_seqs: int) -> str:
    return (
        f"max_num_seqs {max_num_seqs:,} caps {what}; memory holds {told}: raise --max-num-seqs to "
        "run more"
    )
