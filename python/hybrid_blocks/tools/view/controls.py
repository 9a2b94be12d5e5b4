"""Fields above the page of a plan, by which its reader plans another model or deployment."""

from typing import Any, Final

from bokeh.document import Document
from bokeh.events import DocumentReady
from bokeh.layouts import row
from bokeh.models.widgets import AutocompleteInput, Select, Slider, TextInput

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model
from hybrid_blocks.model.load import built_in
from hybrid_blocks.model.table import entries
from hybrid_blocks.terminal import plain
from hybrid_blocks.tools.plan.report import Plan, make_report
from hybrid_blocks.tools.plan.report.verdict import typical_lengths
from hybrid_blocks.tools.view.page import safe, text
from hybrid_blocks.tools.view.plan_page import PlanPage, encode
from hybrid_blocks.tools.view.plan_picture import PlanPicture, make_plan_picture, name_text
from hybrid_blocks.units import parse_memory, parse_tokens

KV_FORMATS: Final = ("auto", "bfloat16", "fp8", "nvfp4")

START: Final = Deployment()

RANKS: Final = ("1", "2", "4", "8")

MOST_RUNNING: Final = ("64", "128", "256", "512", "1024")

MOST_DRAFTS: Final = 8

MOST_LETTERS: Final = 32
"""The width of a field of text."""


def plan(model: Model, memory: str, deployment: Deployment) -> PlanPicture:
    """Return the picture of a plan; the memory is what a person writes."""
    planned = Plan(model, parse_memory(memory), deployment)
    return make_plan_picture(planned, make_report(planned, typical_lengths(planned.limit)))


class Controls:
    """Fields above the page. A mistake becomes a line of text, and the last plan stays.

    The fields are what a browser sends: each value is checked, and none names a file.
    """

    def __init__(self, model: Model, memory: str) -> None:
        self._picture = plan(model, memory, START)
        first = plain(name_text(model))
        self._models = {**dict.fromkeys(entries()), first: model}
        self._model = AutocompleteInput(
            title="Model",
            value=first,
            completions=sorted(self._models),
            case_sensitive=False,
            search_strategy="includes",
            min_characters=1,
            width=250,
            name="model",
        )
        self._memory = TextInput(
            title="Free KV memory a GPU",
            value=memory,
            max_length=MOST_LETTERS,
            width=150,
            name="memory",
        )
        self._longest = TextInput(
            title="Longest request",
            max_length=MOST_LETTERS,
            placeholder="the model's",
            width=110,
            name="longest",
        )
        self._tp = _select("Tensor parallel", "tp", RANKS, START.tp)
        self._format = _select("KV format", "format", KV_FORMATS, START.kv_cache_dtype)
        self._most = _select("max_num_seqs", "most", MOST_RUNNING, START.max_num_seqs)
        self._options = {
            field: list(field.options) for field in (self._tp, self._format, self._most)
        }
        self._drafts = Slider(
            title="Draft tokens",
            value=0,
            start=0,
            end=MOST_DRAFTS,
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
            picture = plan(self._chosen_model(), _letters(self._memory), self._deployment())
        except HybridBlocksError as error:
            self._error.text = f'<p class="warn">{safe(str(error))}</p>'
            return
        self._error.text = ""
        slider, lengths = self._page.slider, self._picture.lengths
        at = slider.value if 0 <= slider.value < len(lengths) else self._picture.start
        length = lengths[int(at)]
        self._picture = picture
        near = range(len(picture.lengths))
        slider.update(
            end=len(near) - 1, value=min(near, key=lambda at: abs(picture.lengths[at] - length))
        )
        self._page.tell(picture)
        self._page.state.data = {"json": [encode(picture)]}

    def _chosen_model(self) -> Model:
        name = self._model.value
        if name not in self._models:
            raise InvalidArgumentError("Model: choose a built-in name from the list")
        return self._models[name] or built_in(name)

    def _deployment(self) -> Deployment:
        longest = _letters(self._longest).strip()
        drafts = self._drafts.value
        if not 0 <= drafts <= MOST_DRAFTS:
            raise InvalidArgumentError(f"{self._drafts.title}: from 0 to {MOST_DRAFTS}")
        return Deployment(
            tp=int(self._chosen(self._tp)),
            kv_cache_dtype=self._chosen(self._format),
            max_model_len=parse_tokens(longest) if longest else None,
            num_speculative_tokens=int(drafts),
            max_num_seqs=int(self._chosen(self._most)),
        )

    def _chosen(self, field: Select) -> str:
        if field.value not in self._options[field]:
            raise InvalidArgumentError(f"{field.title}: choose one of the list")
        return str(field.value)


def _letters(field: TextInput) -> str:
    if len(field.value) > MOST_LETTERS:
        raise InvalidArgumentError(f"{field.title}: at most {MOST_LETTERS} letters")
    return str(field.value)


def _select(title: str, name: str, options: tuple[str, ...], start: object) -> Select:
    """Return a field that begins with one of its options."""
    choices: list[Any] = list(options)
    return Select(title=title, value=str(start), options=choices, width=110, name=name)
