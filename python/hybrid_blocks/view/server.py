"""The page of a plan with controls, served to the browsers of this machine."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.layouts import row
from bokeh.models.widgets import AutocompleteInput, Select, Slider, TextInput
from bokeh.server.server import Server

from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.plan.deployment import Deployment
from hybrid_blocks.plan.report import Plan, make_report
from hybrid_blocks.plan.report.verdict import typical_lengths
from hybrid_blocks.units import parse_memory, parse_tokens
from hybrid_blocks.view.page import safe, text
from hybrid_blocks.view.plan_page import PlanPage, encode
from hybrid_blocks.view.plan_picture import PlanPicture, make_plan_picture

ADDRESS: Final = "127.0.0.1"

KV_FORMATS: Final = ("auto", "bfloat16", "fp8", "nvfp4")

START: Final = Deployment()

RANKS: Final = ("1", "2", "4", "8")

MOST_RUNNING: Final = ("64", "128", "256", "512", "1024")


def plan(model: str, memory: str, deployment: Deployment) -> PlanPicture:
    """Return the picture of a plan, by what a person writes.

    Raises:
        HybridBlocksError: there is no such model, or it does not fit.

    """
    planned = Plan(load_model(model), parse_memory(memory), deployment)
    report = make_report(planned, typical_lengths(planned.limit))
    return make_plan_picture(planned, report)


class Controls:
    """Fields above the page. A mistake becomes a line of text, and the last plan stays."""

    def __init__(self, model: str, memory: str, deployment: Deployment = START) -> None:
        self._picture = plan(model, memory, deployment)
        self._model = AutocompleteInput(
            title="Model, or its config.json",
            value=model,
            completions=sorted(entries()),
            restrict=False,
            case_sensitive=False,
            search_strategy="includes",
            min_characters=1,
            width=250,
            name="model",
        )
        self._memory = TextInput(
            title="Free KV memory a GPU", value=memory, width=150, name="memory"
        )
        self._longest = TextInput(
            title="Longest request",
            value=str(deployment.max_model_len or ""),
            placeholder="the model's",
            width=110,
            name="longest",
        )
        self._tp = _select("Tensor parallel", "tp", RANKS, deployment.tp)
        self._format = _select("KV format", "format", KV_FORMATS, deployment.kv_cache_dtype)
        self._most = _select("max_num_seqs", "most", MOST_RUNNING, deployment.max_num_seqs)
        self._drafts = Slider(
            title="Draft tokens",
            value=deployment.num_speculative_tokens,
            start=0,
            end=8,
            step=1,
            width=150,
            name="drafts",
        )
        self._error = text(name="error")
        fields = (
            self._model,
            self._memory,
            self._longest,
            self._tp,
            self._format,
            self._drafts,
            self._most,
        )
        for field in fields:
            changed = "value_throttled" if isinstance(field, Slider) else "value"
            field.on_change(changed, self._change)
        self._page = PlanPage(self._picture, row(*fields), self._error)

    def show(self, document: Document) -> None:
        """Fill a browser's document."""
        document.title = "hybrid-blocks plan"
        document.add_root(self._page.root)
        document.js_on_event(DocumentReady, self._page.script)

    def _change(self, _attribute: str, _old: Any, _new: Any) -> None:
        try:
            longest = self._longest.value.strip()
            deployment = Deployment(
                tp=int(self._tp.value),
                kv_cache_dtype=self._format.value,
                max_model_len=parse_tokens(longest) if longest else None,
                num_speculative_tokens=int(self._drafts.value),
                max_num_seqs=int(self._most.value),
            )
            picture = plan(self._model.value, self._memory.value, deployment)
        except HybridBlocksError as error:
            self._error.text = f'<p class="warn">{safe(str(error))}</p>'
            return
        self._error.text = ""
        slider = self._page.slider
        length = self._picture.lengths[min(int(slider.value), len(self._picture.lengths) - 1)]
        self._picture = picture
        near = range(len(picture.lengths))
        slider.update(
            end=len(near) - 1, value=min(near, key=lambda at: abs(picture.lengths[at] - length))
        )
        self._page.tell(picture)
        self._page.state.data = {"json": [encode(picture)]}


def _select(title: str, name: str, options: tuple[str, ...], start: object) -> Select:
    """Return a field that begins with a value, which need not be one of its options."""
    value = str(start)
    choices: list[Any] = list(dict.fromkeys((*options, value)))
    return Select(title=title, value=value, options=choices, width=110, name=name)


def serve(
    model: str,
    memory: str,
    port: int,
    on_ready: Callable[[str], None],
    *,
    deployment: Deployment = START,
) -> None:
    """Serve the page until a signal ends the process; ``on_ready`` gets the address.

    Raises:
        HybridBlocksError: the first plan cannot be made.
        OSError: the port is taken.

    """
    plan(model, memory, deployment)
    with socket.create_server((ADDRESS, port)):
        pass  # where the port is taken, Tornado would leave a socket open
    server = make_server(model, memory, port, deployment=deployment)
    server.start()
    on_ready(f"http://localhost:{server.port}/")
    server.io_loop.start()  # a signal ends the process as any other command


def make_server(model: str, memory: str, port: int, *, deployment: Deployment = START) -> Server:
    """Return a server whose page begins with this plan; port 0 is a free one."""
    apps = {"/": partial(_open_plan, model, memory, deployment)}
    return Server(apps, port=port, address=ADDRESS)


def _open_plan(model: str, memory: str, deployment: Deployment, document: Document) -> None:
    Controls(model, memory, deployment).show(document)
