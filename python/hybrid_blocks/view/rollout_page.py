"""The page of a rollout: a command, and what to expect of it at level ``natural``."""

from typing import Any, Final

from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models.widgets import TextAreaInput, TextInput

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.units import parse_count, parse_tokens
from hybrid_blocks.view.page import FLUID, WIDTH, footer, safe, text
from hybrid_blocks.view.rollout import Fleet, Rollout, make_rollout

EXAMPLE: Final = "vllm serve Qwen/Qwen3.5-27B-FP8 --max-model-len 32768"
MOST_USERS: Final = 10**7
MOST_DRAWN: Final = 60

_BACK: Final = (
    ("HYBRID_BLOCKS=off", "vLLM alone, from the next start of the engine"),
    ("HYBRID_BLOCKS=manager", "the decisions of vLLM, in Rust; the default"),
    ("pip uninstall hybrid-blocks", "vLLM without the package"),
)

_FOOT: Final = (
    "The level follows from the options and the model. Where vLLM is installed, "
    "hybrid-blocks doctor asks the plugin itself."
)


class RolloutControls:
    """Fields above the page. A mistake becomes a line of text, and the last answer stays."""

    def __init__(self, command: str = EXAMPLE, memory: str = "24GiB") -> None:
        self._command = TextAreaInput(
            title="Command of your engine: vllm serve, docker run, or a container's args",
            value=command,
            rows=4,
            max_length=20_000,
            name="command",
            **FLUID,
        )
        self._memory = _field("Free KV memory a GPU", "memory", memory)
        self._gpu = _field("or cards, such as 2xH100-80GB", "gpu", "")
        self._length = _field("Tokens of a request", "length", "8k")
        self._users = _field("Requests at once, in all", "users", "200")
        self._error, self._answer = text(name="error"), text(name="answer")
        for field in (self._command, self._memory, self._gpu, self._length, self._users):
            field.on_change("value", self._change)
        self._answer_now()

    def show(self, document: Document, *above: Any) -> None:
        """Fill a browser's document."""
        document.title = "hybrid-blocks rollout"
        fields = row(self._memory, self._gpu, self._length, self._users)
        document.add_root(
            column(
                *above,
                text("<h1>Rollout of level natural</h1>"),
                self._command,
                fields,
                self._error,
                self._answer,
                footer(None, _FOOT),
                sizing_mode="stretch_width",
                styles={"max-width": f"{WIDTH}px", "margin": "0 auto", "padding": "12px"},
            )
        )

    def _change(self, _attribute: str, _old: Any, _new: Any) -> None:
        self._answer_now()

    def _answer_now(self) -> None:
        try:
            found = make_rollout(
                self._command.value,
                self._memory.value.strip() or None,
                self._gpu.value.strip() or None,
                parse_tokens(self._length.value),
                parse_count(self._users.value, "requests at once", MOST_USERS),
            )
        except HybridBlocksError as error:
            self._error.text = f'<p class="warn">{safe(str(error))}</p>'
            return
        self._error.text = ""
        self._answer.text = answer(found)


def answer(found: Rollout) -> str:
    """Return the page's answer as HTML."""
    notes = "".join(f"<p>note: {safe(note)}</p>" for note in found.notes)
    return (
        f"{_level(found)}{_replicas(found)}{_start(found)}{_log(found)}{_board(found)}{_back()}"
        f"<h2>Notes</h2>{notes}"
    )


def _level(found: Rollout) -> str:
    reason = "nothing stands in the way" if found.reason is None else f"because of {found.reason}"
    verdict = "".join(f"<p><b>{safe(line)}</b></p>" for line in found.verdict)
    is_gain = "gain" if found.level == "natural" else "loss"
    return (
        f"<h2>Level</h2><p>HYBRID_BLOCKS=natural reaches <b class={is_gain}>{found.level}</b>: "
        f"{safe(reason)}. Model {safe(found.model)}.</p>{verdict}"
    )


def _replicas(found: Rollout) -> str:
    sides = "".join(_fleet(fleet, found) for fleet in found.fleets)
    return f'<h2>Replicas</h2><div class="sides">{sides}</div>'


def _fleet(fleet: Fleet, found: Rollout) -> str:
    drawn = '<i class="replica"></i>' * min(fleet.replicas, MOST_DRAWN)
    more = " …" if fleet.replicas > MOST_DRAWN else ""
    each = "" if fleet.gpus == fleet.replicas else f", {fleet.gpus:,} GPUs"
    many = "replica" if fleet.replicas == 1 else "replicas"
    return (
        f'<div class="side">{safe(fleet.name)}<br><b>{fleet.replicas:,}</b>{many}{each} for '
        f"{found.users:,} requests of {found.length:,} tokens<br>"
        f"each runs {fleet.running:,} at once<br>{drawn}{more}</div>"
    )


def _start(found: Rollout) -> str:
    if found.command is None:
        told = f"<p>Set {safe(', '.join(found.variables))} for the engine.</p>"
    else:
        told = f"<pre>{safe(found.command)}</pre>"
    return f"<h2>Start one replica</h2><p>It needs the package installed beside vLLM.</p>{told}"


def _log(found: Rollout) -> str:
    return (
        "<h2>Line of its log</h2>"
        f"<pre>{safe(found.log_line)}</pre>"
        "<p>Versions and the size of the pool are those of your engine. A WARNING names a reason "
        "if it gets less.</p>"
    )


def _board(found: Rollout) -> str:
    rows = "".join(
        f"<tr><td>{safe(one.shows)}</td><td><code>{safe(one.text)}</code></td>"
        f"<td>{safe(one.expect)}</td></tr>"
        for one in found.queries
    )
    return (
        "<h2>Queries for a board</h2>"
        "<p>dashboards/hybrid_blocks.json is a board of Grafana with these and more.</p>"
        f"<table><tr><th></th><th>query of Prometheus</th><th>expect</th></tr>{rows}</table>"
    )


def _back() -> str:
    rows = "".join(
        f"<tr><td><code>{safe(what)}</code></td><td>{safe(then)}</td></tr>" for what, then in _BACK
    )
    return (
        f"<h2>The way back</h2><table>{rows}</table><p>The device's cache is lost at the restart, "
        "as at any other. Nothing else is left behind, except files of offload that you named.</p>"
    )


def _field(title: str, name: str, value: str) -> TextInput:
    return TextInput(title=title, value=value, width=210, name=name)
