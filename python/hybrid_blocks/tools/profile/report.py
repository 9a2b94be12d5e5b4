"""A profile as a table and as JSON."""

from collections.abc import Callable, Mapping

import msgspec
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

    def each(name: str, text: Callable[[LevelResult], str]) -> Row:
        return name, [text(one) for one in found]

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
