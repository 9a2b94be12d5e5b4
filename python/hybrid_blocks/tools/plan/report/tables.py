"""Tables of a report for the terminal, all of one look."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hybrid_blocks.model.layer import State
from hybrid_blocks.terminal import grid, print_table, print_verdict
from hybrid_blocks.tools.plan.report.figures import AtLength, PlanReport, rows
from hybrid_blocks.tools.plan.report.report import Report
from hybrid_blocks.tools.plan.report.verdict import Gain, percent
from hybrid_blocks.units import gib, human


def render(report: Report, console: Console, *, num_bytes: int = 1, whole: bool = False) -> None:
    """Print what a report says, the answer first.

    ``num_bytes`` lengths besides the maximum have their bytes shown. ``whole`` shows them for all
    lengths, and the groups.
    """
    print_verdict(console, report.verdict.lines)
    title = Text(title_text(report))
    title.stylize("bold", 0, len(report.model))
    console.print(title, soft_wrap=True)
    tables = [_capacity(report)]
    if whole:
        tables.append(_groups("natural", report.natural))
        if report.vllm is not None:
            tables.append(_groups("vLLM", report.vllm))
    indexes = range(len(report.natural.lengths))
    shown = indexes if whole else indexes[1 : 1 + num_bytes] or indexes[:1]
    tables += [_bytes(report, index) for index in shown]
    for table in tables:
        console.print()
        print_table(console, table)
    console.print()
    if not whole:
        console.print("--all shows groups, and the bytes of each length")
    notes = (*report.notes, *filter(None, (report.sglang_refusal,)))
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)
    for warning in report.warnings:
        console.print(Text.assemble(("warning:", "yellow"), f" {warning}"), soft_wrap=True)


def title_text(report: Report) -> str:
    """Return what the first lines say of the model and its deployment."""
    layers = ", ".join(f"{count} {name}" for name, count in report.layers.items())
    origin = "" if report.verified == "config" else f" ({report.verified})"
    return f"{report.model}{origin}: {layers}\n{deployment_text(report)}"


def deployment_text(report: Report, card: str | None = None) -> str:
    """Say for which memory and options the plan is; an estimate of the memory names its card."""
    deployment = report.deployment
    estimated = "" if card is None else f" (estimate for {card})"
    return (
        f"{gib(report.memory_bytes)} a GPU{estimated}, tp {deployment.tp}, pp {deployment.pp}, "
        f"KV {report.kv_cache_dtype}, max length {report.max_model_len:,}, "
        f"{deployment.num_speculative_tokens} speculative tokens"
    )


def _groups(title: str, plan: PlanReport) -> Table:
    table = grid(
        f"{title}: groups",
        "kind",
        "layers",
        "tokens",
        "block",
        "stride",
        "slots",
        "a request",
        "token slots",
        "a slab" if plan.slab_bytes else "",
    )
    for name, group in rows(plan):
        padding = f" + {group.padding_layers}" if group.padding_layers else ""
        state = group.slots_per_request is not None
        table.add_row(
            name,
            f"{group.layers}{padding}",
            State.kind if state else f"{group.block_tokens:,}",
            human(group.page_bytes),
            human(group.block_bytes),
            f"{group.slots_per_request}" if state else "",
            f"{group.blocks_per_request:,}",
            f"{group.num_slots:,}" if group.num_slots else "",
            f"{group.blocks_per_slab:,}" if group.blocks_per_slab else "",
        )
    return table


def _capacity(report: Report) -> Table:
    pools = report.sglang
    engines = () if pools is None else ("SGLang",)
    table = grid("capacity", "", "natural", "vLLM", "gain", *engines)

    def row(
        name: str, show: Callable[[PlanReport], str], sglang: str = "", gain: Gain | None = None
    ) -> None:
        theirs = "-" if report.vllm is None else show(report.vllm)
        more = "" if gain is None else percent(gain.share)
        cells = (show(report.natural), theirs, more, *(sglang for _ in engines))
        table.add_row(name, *cells)

    row(
        "slabs",
        lambda plan: (
            f"{plan.num_slabs:,} x {human(plan.slab_bytes or 0)}" if plan.num_slabs else ""
        ),
    )
    row("block tokens", lambda plan: f"{plan.block_tokens:,}")
    row("blocks", lambda plan: f"{plan.num_blocks:,}")
    row(
        "tokens",
        lambda plan: f"{plan.tokens:,}",
        "" if pools is None else f"{pools.lengths[0].tokens:,}",
    )
    verdict = report.verdict
    lengths = [at_length.length for at_length in report.natural.lengths]
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        row(
            f"requests of {lengths[index]:,}",
            lambda plan, index=index: concurrency(plan.lengths[index]),  # type: ignore[misc]
            "" if pools is None else f"{pools.lengths[index].running:,.2f}x",
            verdict.gains[index],
        )
    if report.vllm is not None:
        table.add_row(f"vLLM logs for {report.max_model_len:,}", "", logged(report.vllm))
    if report.natural.trace is not None:
        mean = report.natural.trace.length
        row(
            f"requests of the trace (mean {mean:,})",
            lambda plan: concurrency(plan.trace),
            "" if pools is None or pools.trace is None else f"{pools.trace.running:,.2f}x",
            verdict.trace,
        )
    row(
        "longest request",
        lambda plan: f"{plan.max_length:,}",
        "" if pools is None else f"{min(pools.tokens, report.max_model_len):,}",
    )
    if report.natural.state_slots is not None:
        row(
            "state slots",
            lambda plan: f"{plan.state_slots or 0:,}",
            "" if pools is None else f"{pools.state_slots or 0:,}",
        )
        row("max_num_seqs for CUDA graphs", lambda plan: f"{plan.cuda_graph_batch or 0:,}")
    return table


def logged(vllm: PlanReport) -> str:
    """Return what vLLM logs at start: its token capacity and concurrency."""
    if vllm.logged_tokens is None or vllm.logged_concurrency is None:
        return "does not start"
    return f"{vllm.logged_tokens:,} tokens, {vllm.logged_concurrency:,.2f}x"


def concurrency(at_length: AtLength | None) -> str:
    """Return how many requests run at once, and what caps them if memory does not."""
    if at_length is None:
        return "-"
    capped = " (max_num_seqs)" if at_length.running < at_length.concurrency else ""
    return f"{at_length.running:,.2f}x{capped}"


def _bytes(report: Report, index: int) -> Table:
    """Where the bytes go when the memory is full of requests of one length."""
    budgets = {"natural": report.natural.lengths[index].budget}
    if report.vllm is not None:
        budgets["vLLM"] = report.vllm.lengths[index].budget
    length = report.natural.lengths[index].length
    table = grid(f"bytes, full of requests of {length:,} tokens", "", *budgets)
    table.add_row("memory holds", *(f"{budget.requests:,}" for budget in budgets.values()))
    for part in budgets["natural"].parts:
        shares = ((budget.parts[part], budget.total) for budget in budgets.values())
        table.add_row(
            part.replace("_", " "),
            *(f"{human(nbytes)} {nbytes / total:7.2%}" for nbytes, total in shares),
        )
    return table
