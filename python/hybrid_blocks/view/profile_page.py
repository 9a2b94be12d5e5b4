"""The page of a profile: a step's parts at each level, and each step in its order."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from hybrid_blocks.profile.probes import Step
from hybrid_blocks.profile.report import TITLE, sections
from hybrid_blocks.profile.result import PARTS, Findings, LevelResult
from hybrid_blocks.profile.workload import FLOOR, Settings
from hybrid_blocks.view.page import WIDTH, MadeBy, document, footer, safe, text
from hybrid_blocks.view.replay_page import line_colors

MOST_POINTS: Final = 2000

COLORS: Final = ("#b8860b", "#7b5ea7", "#4c78a8", "#3f9e96", "#f58518", "#c3c8cf", "#8a8f98")
"""Of the parts of a step, in their order. Gray is vLLM's own loop around the blocks."""

_WORDS: Final = (
    "Level off is vLLM alone. Floor makes only the objects that any scheduler must make. "
    "Batched is level manager with this package's scheduler."
)


def profile_page(
    settings: Settings,
    findings: Mapping[str, Findings],
    gpu_step_ms: float,
    made_by: MadeBy | None = None,
) -> Document:
    """Return a document that shows where a step's time goes at each level."""
    results = {level: found.result for level, found in findings.items()}
    root = column(
        text(_head(settings, results), name="head"),
        text("<h2>Where a step's time goes, mean with probes</h2>"),
        _parts(results),
        text(
            "<h2>Each step with probes, in its order</h2>"
            "<p>A step is long where a prompt is computed, or a request ends.</p>"
        ),
        _steps(findings),
        text(_table(results, gpu_step_ms), name="figures"),
        footer(made_by, _WORDS),
        sizing_mode="stretch_width",
        styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
    )
    return document(root, "Profile of a scheduler step")


def _head(settings: Settings, results: Mapping[str, LevelResult]) -> str:
    if settings.trace is None:
        load = (
            f"{settings.requests:,} requests at a time; each has a prompt of "
            f"{settings.prompt_tokens:,} tokens and generates {settings.output_tokens:,}"
        )
    else:
        load = f"{settings.requests:,} requests at a time of {settings.trace}"
    sides = "".join(_side(level, one, results.get("off")) for level, one in results.items())
    return (
        "<h1>A step of vLLM's scheduler</h1>"
        f"<p>{safe(load)}; cache groups {safe(settings.groups)}.</p>"
        "<p>These are the figures of <code>hybrid-blocks profile</code>. No model runs, and all "
        "levels schedule the same.</p>"
        f'<div class="many">{sides}</div>'
    )


def _side(level: str, one: LevelResult, off: LevelResult | None) -> str:
    beside = ""
    if off is not None and level not in {"off", FLOOR}:
        ratio = off.step_us_p50 / one.step_us_p50
        beside = f'<span class="{"gain" if ratio >= 1 else "loss"}">{ratio:.1f}x as fast</span><br>'
    served = "" if level == FLOOR else f"{one.requests_per_second:,.1f} requests/s"
    return (
        f'<div class="side">{safe(level)}<br><b>{one.step_us_p50:,.0f}</b>µs a step<br>'
        f"{beside}{served}</div>"
    )


def _parts(results: Mapping[str, LevelResult]) -> Any:
    levels = list(results)
    plot = _figure(90 + 34 * len(levels), y_range=levels[::-1], x_axis_label="µs a step")
    left = np.zeros(len(levels))
    for part, color in zip(PARTS, COLORS, strict=True):
        micros = np.array([results[level].parts_us[part] for level in levels])
        source = ColumnDataSource(
            {
                "level": levels,
                "left": left,
                "right": left + micros,
                "us": micros,
                "share": [
                    100 * results[level].parts_us[part] / _whole(results[level]) for level in levels
                ],
            },
            name=part,
        )
        bars = plot.hbar(
            y="level",
            left="left",
            right="right",
            height=0.7,
            source=source,
            color=color,
            legend_label=part,
        )
        told = [("@level", part), ("", "@us{0,0.0} µs, @share{0.0} % of the step")]
        plot.add_tools(HoverTool(renderers=[bars], tooltips=told))
        left = left + micros
    plot.x_range.start = 0
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.ygrid.visible = False
    return _placed(plot)


def _whole(one: LevelResult) -> float:
    return sum(one.parts_us.values()) or 1.0


def _steps(findings: Mapping[str, Findings]) -> Any:
    plot = _figure(300, y_axis_type="log", x_axis_label="step", y_axis_label="µs")
    longest = max(len(found.steps) for found in findings.values())
    plot.x_range = Range1d(start=0, end=max(longest - 1, 1))
    for (level, found), color in zip(findings.items(), line_colors(), strict=False):
        source = ColumnDataSource(_thinned(found.steps), name=f"steps of {level}")
        line = plot.line("step", "us", source=source, color=color, legend_label=level)
        told = [(level, "step @step{0,0}: @us{0,0} µs"), ("", "@running running, @what")]
        plot.add_tools(HoverTool(renderers=[line], tooltips=told, mode="vline"))
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    return _placed(plot)


def _thinned(steps: list[Step]) -> dict[str, Any]:
    """Return the columns of at most `MOST_POINTS` steps: the longest one of each stretch."""
    width = -(-len(steps) // MOST_POINTS)
    kept = [
        max(range(at, min(at + width, len(steps))), key=lambda it: _length(steps[it]))
        for at in range(0, len(steps), width)
    ]
    return {
        "step": kept,
        "us": [_length(steps[at]) / 1e3 for at in kept],
        "running": [steps[at].num_running for at in kept],
        "what": [
            "decodes alone" if steps[at].only_decodes else "a prompt or an end" for at in kept
        ],
    }


def _length(step: Step) -> int:
    return step.schedule + step.update


def _table(results: Mapping[str, LevelResult], gpu_step_ms: float) -> str:
    head = "".join(f"<th>{safe(level)}</th>" for level in results)
    rows = "".join(
        f"<tr><td>{safe(name)}</td>{''.join(f'<td class=n>{safe(one)}</td>' for one in texts)}</tr>"
        for section in sections(results, gpu_step_ms)
        for name, texts in section
    )
    return f"<h2>{TITLE.capitalize()}</h2><table><tr><th></th>{head}</tr>{rows}</table>"


def _figure(height: int, **options: Any) -> Any:
    return figure(width=WIDTH, height=height, tools="", toolbar_location=None, **options)


def _placed(plot: Any) -> Any:
    """Put the legend above the drawing, in one row."""
    plot.legend.orientation = "horizontal"
    plot.legend.label_text_font_size = "12px"
    plot.add_layout(plot.legend[0], "above")
    plot.outline_line_color = "#c9ced6"
    return plot
