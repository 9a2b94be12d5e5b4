"""The page of ``replay --share``: hits over memory, beside what attention alone allows."""

from collections.abc import Sequence
from typing import Any

from bokeh.document import Document
from bokeh.layouts import column
from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter
from bokeh.plotting import figure

from hybrid_blocks.replay.report import engine_text
from hybrid_blocks.replay.result import Result
from hybrid_blocks.view.page import WIDTH, MadeBy, document, footer, safe, text
from hybrid_blocks.view.replay_page import line_colors
from hybrid_blocks.view.replay_picture import lacks_vllm
from hybrid_blocks.view.replay_text import MANAGER, WITHOUT_VLLM


def share_page(results: Sequence[Result], made_by: MadeBy | None = None) -> Document:
    """Return a document that shows the hits of each variant at each size of the memory."""
    first = results[0]
    plot: Any = figure(
        width=WIDTH,
        height=460,
        x_axis_type="log",
        tools="",
        toolbar_location=None,
        x_axis_label="memory of the cache, GiB",
        y_axis_label="prompt tokens found, %",
    )
    names = list(dict.fromkeys(str(result.variant) for result in results))
    for name, color in zip(names, line_colors(), strict=False):
        own = sorted(
            (one for one in results if one.variant == name), key=lambda one: one.memory_bytes
        )
        source = ColumnDataSource(
            {
                "gib": [one.memory_bytes / 2**30 for one in own],
                "found": [100 * one.hit_rate for one in own],
                "share": [str(one.share) for one in own],
            },
            name=f"hits of {name}",
        )
        plot.line("gib", "found", source=source, color=color, line_width=2, legend_label=name)
        points = plot.scatter("gib", "found", source=source, color=color, size=7)
        told = [(name, "@found{0.00} %"), ("memory", "@gib{0,0.0} GiB, @share")]
        plot.add_tools(HoverTool(renderers=[points], tooltips=told))
    if first.sequential_hit_rate is not None:
        sizes = [result.memory_bytes / 2**30 for result in results]
        bound = 100 * first.sequential_hit_rate
        plot.line(
            [min(sizes), max(sizes)],
            [bound, bound],
            color="#1b1f24",
            line_dash="dotted",
            legend_label=f"attention alone, nothing evicted: {first.sequential_hit_rate:.2%}",
        )
    plot.y_range.start = 0
    plot.legend.location = "bottom_right"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0.[0]")
    root = column(
        text(
            f"<h1>Hits of {safe(first.trace)}</h1>"
            f"<p>{safe(engine_text(first, has_memory=False))}</p>"
            f"{f'<p>{WITHOUT_VLLM}</p>' if lacks_vllm(results) else ''}"
        ),
        plot,
        text(_table(results)),
        footer(made_by, MANAGER),
        styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
    )
    return document(root, f"Hits of {first.trace}")


def _table(results: Sequence[Result]) -> str:
    rows = "".join(
        f"<tr><td>{safe(str(one.share))}</td><td class='n'>{one.memory_bytes / 2**30:,.1f} GiB</td>"
        f"<td>{safe(str(one.variant))}</td><td class='n'>{one.hit_rate:.2%}</td></tr>"
        for one in results
    )
    head = "<tr><th>share</th><th>memory</th><th>manager</th><th>hits</th></tr>"
    return f"<h2>Hits</h2><table>{head}{rows}</table>"
