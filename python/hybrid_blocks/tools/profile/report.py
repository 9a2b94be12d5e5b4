"""A profile as a table, as JSON, as stacked bars and as a trace for a timeline viewer."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from rich.table import Table

from hybrid_blocks.terminal import grid
from hybrid_blocks.tools.profile.result import PARTS, Findings, LevelResult
from hybrid_blocks.tools.profile.workload import FLOOR, Settings

TITLE = "a scheduler step, in µs"


Row = tuple[str, list[str]]
"""A figure's name, and its text for each level."""


def make_table(results: Mapping[str, LevelResult], gpu_step_ms: float) -> Table:
    """Return a table with one column a level."""
    table = grid(TITLE, "", *results)
    for section in sections(results, gpu_step_ms):
        for name, texts in section:
            table.add_row(name, *texts)
        table.add_section()
    return table


def sections(results: Mapping[str, LevelResult], gpu_step_ms: float) -> list[list[Row]]:
    """Return the rows of the table: whole steps, their parts, and what comes of them."""
    found = list(results.values())

    def each(name: str, told: Callable[[LevelResult], str]) -> Row:
        return name, [told(one) for one in found]

    def beside_others(name: str, step_us: Callable[[LevelResult], float]) -> list[Row]:
        rows = [each(name, lambda one: f"{step_us(one):,.0f}")]
        for beside, title in (("off", "faster than off"), (FLOOR, "times the floor")):
            if beside in results:
                reference = step_us(results[beside])
                rows.append((title, [_ratio(step_us(one), reference, beside) for one in found]))
        return rows

    whole = beside_others("step p50", lambda one: one.step_us_p50)
    if all(one.decode_us_p50 for one in found):
        whole += beside_others("step of decodes alone p50", lambda one: one.decode_us_p50)
    whole += [
        each("step p99", lambda one: f"{one.step_us_p99:,.0f}"),
        each("schedule p50", lambda one: f"{one.schedule_us_p50:,.0f}"),
        each("update p50", lambda one: f"{one.update_us_p50:,.0f}"),
        each("allocate p50, a request", lambda one: f"{one.allocate_us_p50:,.2f}"),
    ]
    parts = [(f"{part}, mean", [f"{one.parts_us[part]:,.0f}" for one in found]) for part in PARTS]
    hidden = f"hidden by a {gpu_step_ms:g} ms step"
    load = [
        each("running", lambda one: f"{one.running:,.0f}"),
        each("requests/s sustained", lambda one: f"{one.requests_per_second:,.1f}"),
        each(hidden, lambda one: f"{one.hidden_share(gpu_step_ms):.0%}"),
    ]
    return [whole, parts, load]


def _ratio(step: float, reference: float, beside: str) -> str:
    return f"{step / reference if beside == FLOOR else reference / step:.1f}x"


def to_json(settings: Settings, findings: Mapping[str, Findings]) -> bytes:
    """Return the settings and every level's figures."""
    contents = {
        "settings": msgspec.structs.replace(settings, level=",".join(findings)),
        "levels": {level: found.result for level, found in findings.items()},
    }
    return msgspec.json.format(msgspec.json.encode(contents), indent=2)


def write_timeline(path: Path, findings: Mapping[str, Findings]) -> None:
    """Write every level's probed steps in the trace event format, one process a level.

    Times count from the level's first step; Perfetto and other viewers of that format open it.
    """
    events: list[dict[str, object]] = []
    for process, (level, found) in enumerate(findings.items()):
        name = {"name": f"level {level}"}
        events.append({"ph": "M", "pid": process, "name": "process_name", "args": name})
        origin = found.steps[0].begin

        def add(name: str, start: int, length: int, process: int, origin: int) -> None:
            times = {"ts": (start - origin) / 1e3, "dur": length / 1e3}
            events.append({"ph": "X", "pid": process, "tid": 0, "name": name, **times})

        for step in found.steps:
            add("admit", step.begin, step.admit, process, origin)
            add("schedule", step.admitted, step.schedule, process, origin)
            add("update_from_output", step.resumed, step.update, process, origin)
        for span in found.spans:
            add(span.part, span.start, span.length, process, origin)
    path.write_bytes(msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"}))


def plot(path: Path, results: Mapping[str, LevelResult]) -> None:
    """Draw what each level's step consists of; the file's ending chooses the format."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency

    figure = Figure(figsize=(1.5 + 1.2 * len(results), 4), layout="constrained")
    axes = figure.subplots()
    levels = list(results)
    bottom = np.zeros(len(levels))
    for part in PARTS:
        heights = np.array([results[level].parts_us[part] for level in levels]) / 1e3
        axes.bar(levels, heights, bottom=bottom, label=part)
        bottom += heights
    axes.set_ylabel("ms a step, mean with probes")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
