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
    plans = {"natural": natural} | ({"vLLM": vllm} if vllm else {})
    mixes: dict[str, AtLength] = {name: plan.trace for name, plan in plans.items() if plan.trace}
    rows: list[tuple[str, dict[str, AtLength]]] = [
        (f"requests of {ours.length:,}", {n: plan.lengths[at] for n, plan in plans.items()})
        for at, ours in enumerate(natural.lengths)
    ]
    for what, found in (*rows, *([("requests of the trace", mixes)] if mixes else [])):
        warnings += _capped(what, found, max_num_seqs)
    return warnings


def _capped(what: str, found: dict[str, AtLength], max_num_seqs: int) -> list[str]:
    held = {name: one.concurrency for name, one in found.items() if one.concurrency > one.running}
    if not held:
        return []
    told = ", ".join(f"{concurrency:,.2f}x ({name})" for name, concurrency in held.items())
    return [
        f"max_num_seqs {max_num_seqs:,} caps {what}; memory holds {told}: raise --max-num-seqs to "
        "run more"
    ]
