"""Boards as Grafana imports them, in the convention of vLLM's own: variables, tag, data source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {"job": "Job", "model_name": "Model", "instance": "Instance", "engine": "Engine"}
"""What a board is filtered by, beside the data source."""
ENGINES = ", ".join(f'{name}=~"${name}"' for name in VARIABLES)
WIDTH = 24


@dataclass(frozen=True)
class Panel:
    """One panel: PromQL by legend. ``{{label}}`` in a legend is a label's value."""

    title: str
    description: str
    queries: dict[str, str]
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    stacked: bool = False
    width: int = 8
    height: int = 8


@dataclass(frozen=True)
class Row:
    """Panels under a heading that Grafana can fold."""

    title: str
    panels: Sequence[Panel]
    folded: bool = False


def selected(name: str, **labels: str) -> str:
    """Return the series of a metric that the board's variables select."""
    own = "".join(f', {label}="{value}"' for label, value in labels.items())
    return f"{name}{{{ENGINES}{own}}}"


def rate(name: str, by: str = "", **labels: str) -> str:
    """Return a counter's increase a second, as a sum over engines."""
    return f"sum{_by(by)}(rate({selected(name, **labels)}[$__rate_interval]))"


def total(name: str, by: str = "", **labels: str) -> str:
    """Return a gauge's sum over engines."""
    return f"sum{_by(by)}({selected(name, **labels)})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""


def document(
    uid: str, title: str, description: str, of: str, rows: Iterable[Row]
) -> dict[str, Any]:
    """Return a board as JSON; the choices of its variables are the labels of the metric ``of``."""
    return {
        "title": title,
        "uid": uid,
        "description": description,
        "tags": ["vllm"],
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "type": "dashboards",
                "title": "vLLM dashboards",
                "tags": ["vllm"],
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "panels": list(_placed(rows)),
        "refresh": "30s",
        "schemaVersion": 39,
        "templating": {"list": list(_variables(of))},
        "time": {"from": "now-1h", "to": "now"},
        "version": 1,
    }


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Yield the PromQL of all panels, those of folded rows included."""
    for panel in board["panels"]:
        for shown in (panel, *panel.get("panels", ())):
            for target in shown.get("targets", ()):
                yield target["expr"]


def _variables(of: str) -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }
    chosen: list[str] = []
    for name, label in VARIABLES.items():
        query = f"label_values({of}{{{', '.join(chosen)}}}, {name})"
        yield {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": SOURCE,
            "definition": query,
            "query": query,
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        }
        chosen.append(f'{name}=~"${name}"')
    yield {
        "name": "filters",
        "label": "Filters",
        "type": "adhoc",
        "datasource": SOURCE,
        "filters": [],
    }


def _placed(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in rows:
        number += 1
        heading = {
            "type": "row",
            "id": number,
            "title": row.title,
            "collapsed": row.folded,
            "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
            "panels": [],
        }
        y += 1
        panels: list[dict[str, Any]] = []
        x = height = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            number += 1
            place = {"h": panel.height, "w": panel.width, "x": x, "y": y}
            panels.append({"id": number, "gridPos": place, **_panel(panel)})
            x, height = x + panel.width, max(height, panel.height)
        y += height
        if row.folded:
            yield heading | {"panels": panels}
        else:
            yield heading
            yield from panels


def _panel(panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    targets = [
        {
            "refId": chr(ord("A") + number),
            "expr": query,
            "legendFormat": legend,
            **({"format": "table", "instant": True} if is_table else {}),
        }
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "noValue": "No traffic"}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "lineWidth": 1,
            "showPoints": "never",
            "fillOpacity": 40 if panel.stacked else 10,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    found: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }
    if is_table:
        found["transformations"] = [
            {"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}
        ]
    elif panel.kind == "timeseries":
        found["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        found["options"] = {
            "colorMode": "none",
            "graphMode": "area",
            "reduceOptions": {"calcs": ["lastNotNull"]},
        }
    return found
