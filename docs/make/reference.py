"""Write the pages of ``docs/reference`` that the code tells: ``python docs/make/reference.py``.

The command line, the environment variables, the figures of ``/metrics``, and why a level is lower.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
from hybrid_blocks.metrics import DROPS, ENDS, ENGINE, OFFLOAD, PARTS, PLACES, SEVERAL, Figure
from hybrid_blocks.reasons import REASONS
from hybrid_blocks.tools.cli import FUNCTIONS, app
from hybrid_blocks.variables import VARIABLES

FOLDER: Final = Path(__file__).parents[1] / "reference"
MADE: Final = "`make reference` writes this page from the code.\n"


def command_line() -> str:
    """Return the page of all commands with their arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = ["# Command line\n", MADE]
    parts.append(
        "A default stands in brackets. Every mistake on the command line is one `error:` line and "
        "exit code 2.\n"
    )
    for name in FUNCTIONS:
        command = group.get_command(typer.Context(group), name)
        parts += [f"## {name}\n", f"{_text(command.help)}\n"]
        rows = list(_parameters(command))
        parts += ["| option | effect |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if parameter.name == "help":
            continue
        is_option = parameter.param_type_name == "option"
        names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name]
        written = ", ".join(f"`{name if is_option else name.upper()}`" for name in names)
        is_flag = getattr(parameter, "is_flag", False)
        value = "" if is_flag else f" {_value(parameter)}"
        yield f"| {written}{value} | {_text(parameter.help)}{_default(parameter)} |"


def _value(parameter: Any) -> str:
    kind = parameter.type
    if choices := getattr(kind, "choices", None):
        text = ", ".join(f"`{getattr(choice, 'value', choice)}`" for choice in choices)
    elif parameter.param_type_name == "option" and parameter.metavar:
        text = f"`{_text(parameter.metavar)}`"
    elif parameter.nargs == 2:
        text = "two files"
    else:
        # Releases of Typer name its types differently.
        first = str(kind.name).split()[0]
        text = {"int": "integer", "str": "text", "path": "file"}.get(first, first)
    return text + (", repeatable" if parameter.multiple else "")


def _default(parameter: Any) -> str:
    default = parameter.default
    if default is None or default is False or str(default) in {"", "Sentinel.UNSET", "()", "[]"}:
        return ""
    return f" (`{'on' if default is True else default}`)"


def environment() -> str:
    """Return the page of all environment variables."""
    parts = ["# Environment variables\n", MADE]
    parts.append(
        "Processes that vLLM starts inherit them. An unknown level or choice, or a size that is "
        "none, stops the engine at start.\n"
    )
    parts += ["| variable | values (default) | effect |", "|---|---|---|"]
    for it in VARIABLES:
        default = f" (`{it.default}`)" if it.default else ""
        parts.append(f"| `{it.name}` | {it.values}{default} | {_text(it.effect)} |")
    parts += ["", "[Inside vLLM](../vllm.md#environment-variables) explains them.", ""]
    return "\n".join(parts)


def metrics() -> str:
    """Return the page of all figures."""
    values = {"place": PLACES, "reason": DROPS, "ended_by": ENDS}
    parts = ["# Metrics\n", MADE]
    parts.append(
        "Labels stand in braces; each figure also has vLLM's `model_name` and `engine`. Names that "
        "end in `_total` are counters, all others gauges. Figures of slabs, forks, checkpoints and "
        "hits come from engines at level `natural` alone.\n"
    )
    parts += ["## Engines\n", *_figures(ENGINE)]
    parts += ["", "| label | values |", "|---|---|"]
    for label, known in values.items():
        parts.append(f"| `{label}` | {', '.join(f'`{value}`' for value in known)} |")
    parts += ["", "`hybrid_blocks_info` gives `reason` a sentence instead."]
    parts += ["", "### Reserved bytes\n", "Reserved are the slabs in which a block has an owner."]
    parts += ["", "| `part` | meaning |", "|---|---|"]
    parts += [f"| `{part}` | {meaning} |" for part, meaning in PARTS.items()]
    parts += ["", "## Offload\n", *_figures(OFFLOAD)]
    parts += ["", "## Several connectors\n", *_figures(SEVERAL)]
    parts.append(
        "\n[Inside vLLM](../vllm.md#metrics-and-failures) says how to read them, and "
        "[offload](../offload.md) how those of its tiers.\n"
    )
    return "\n".join(parts)


def _figures(figures: tuple[Figure, ...]) -> Iterator[str]:
    yield from ("| name | meaning |", "|---|---|")
    for it in figures:
        labels = f"{{{', '.join(it.labels)}}}" if it.labels else ""
        yield f"| `{it.name}{labels}` | {_text(it.documentation)} |"


_KEEPS_FROM: Final = {
    "natural": "level `natural`: the engine runs at level `manager`",
    "manager": "level `manager`: the engine runs at level `pool`, which decides alike but slower",
    "one call": "one call: vLLM's own code schedules decoding requests one by one",
    "prefill checkpoints": "prefill checkpoints: chunks of prompts end at checkpoints",
    "checkpoint format": "a checkpoint format: checkpoints stay as running states are",
}


def reasons() -> str:
    """Return the page of all reasons for a lower level."""
    parts = ["# Which level an engine reaches\n", MADE]
    parts.append(
        "[`hybrid-blocks doctor -- vllm serve …`](cli.md#doctor) answers before an engine starts, "
        "with exit code 3 if it reaches less than you asked for. [coverage.md](../coverage.md) "
        "has all built-in models. The log, `doctor` and `plan` show the first reason that applies, "
        "in the words below.\n"
    )
    for keeps_from, heading in _KEEPS_FROM.items():
        parts += [
            f"## Without {heading}\n",
            "| the line says | the engine has |",
            "|---|---|",
        ]
        parts += [
            f"| `{it.sentence}` | {it.has} |"
            for it in REASONS.values()
            if it.keeps_from == keeps_from
        ]
        parts.append("")
    return "\n".join(parts)


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


PAGES: Final = {
    "cli.md": command_line,
    "environment.md": environment,
    "metrics.md": metrics,
    "reasons.md": reasons,
}
"""Each page with the function that makes it."""


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make())
