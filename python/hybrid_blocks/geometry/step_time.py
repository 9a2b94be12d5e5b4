"""The time of an engine's step, by model, card and tensor parallelism.

``step_times.json`` holds kernels that were measured on cards, fitted by
``benches/python/step_times.py``. Other models and cards are estimated from the model's shape.
"""

import math
import re
from bisect import bisect_right
from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

from hybrid_blocks.geometry.card import CARDS
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import Model
from hybrid_blocks.model.kind import kind_of
from hybrid_blocks.model.layer import State
from hybrid_blocks.model.weights import weight_bytes, without_format

MEASURED: Final = "measured kernels"
ESTIMATED: Final = "estimated from the model's shape"

DEFAULT_STEP_TOKENS: Final = 149
"""Prompt tokens that take as long as an empty step, where the model or the card is not known."""

_BANDWIDTH_SHARE: Final = 0.85
_FLOPS_SHARE: Final = 0.7
_EXPERTS_FLOPS_SHARE: Final = 0.5
"""Shares of a card's peaks that the measured kernels reach."""
_DISTINCT: Final = 0.85
"""Exponent of the tokens that choose experts independently, as popular experts are chosen often."""
_LAUNCH_MS: Final = 1.0
_COLLECTIVE_MS: Final = 0.034
"""Two collectives of a layer, where ranks share it."""

_ACTIVE: Final = {
    "DeepSeek-V3": 37.0,
    "Granite-4.0-H-Small": 9.0,
    "Granite-4.0-H-Tiny": 1.0,
    "Jamba-1.5-Large": 94.0,
    "Jamba-1.5-Mini": 12.0,
    "Llama-4-Scout-17B-16E": 17.0,
    "MiniMax-Text-01": 45.9,
    "gpt-oss-120b": 5.1,
    "gpt-oss-20b": 3.6,
}
"""Billions of parameters that a token uses, where a model's name does not say."""
_ACTIVE_OF_NAME: Final = re.compile(r"A(\d+(?:\.\d+)?)B\b")


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of one step.

    ``source`` says where the numbers come from.

    Attributes:
        ms: the time at each of `KNOTS` tokens; straight lines lie between, and the last one goes
            on.
        prompt: added for each prompt token.
        decode: added for each request that decodes.
        context: added for each token that decodes read.
        pair: added for a million pairs of a prompt token and a token before it.
        chunk: added once where a prompt is computed.
    """

    ms: tuple[float, ...]
    prompt: float = 0.0
    decode: float = 0.0
    context: float = 0.0
    pair: float = 0.0
    chunk: float = 0.0
    source: str = MEASURED

    def milliseconds(
        self, prompt_tokens: int, decodes: int, context_tokens: int, pairs: float, drafts: int = 0
    ) -> float:
        """Return the time of a step; ``pairs`` are single pairs.

        ``drafts`` are tokens that requests verify beside the one that they decode. A state is read
        once a request, and written once a token.
        """
        return (
            self._of_tokens(prompt_tokens + decodes + drafts)
            + self.prompt * prompt_tokens
            + self.decode * (decodes + drafts / 2)
            + self.context * context_tokens
            + self.pair * pairs / 1e6
            + self.chunk * (prompt_tokens > 0)
        )

    @property
    def text(self) -> str:
        """Say where the numbers come from."""
        return self.source

    @property
    def step_tokens(self) -> int:
        """Prompt tokens of a long chunk that take as long as one more step of few tokens."""
        first, last = KNOTS.index(1024), len(KNOTS) - 1
        token = self.prompt + (self.ms[last] - self.ms[first]) / (KNOTS[last] - KNOTS[first])
        few = KNOTS.index(16)
        return max(1, round((self.ms[few] + self.chunk) / token) - KNOTS[few])

    def _of_tokens(self, num_tokens: int) -> float:
        at = min(max(bisect_right(KNOTS, num_tokens), 1), len(KNOTS) - 1)
        left, right = KNOTS[at - 1], KNOTS[at]
        share = (max(num_tokens, 1) - left) / (right - left)
        return self.ms[at - 1] + share * (self.ms[at] - self.ms[at - 1])


class Row(StepTime, frozen=True, kw_only=True):
    """A measured model on a card, over ``tp`` ranks.

    ``error`` is the median and the largest difference from the measured kernels, in percent.
    """

    model: str
    card: str
    tp: int
    dtype: str
    error: tuple[float, float]

    @property
    def text(self) -> str:
        """Say which kernels were measured, and how far a row is from them."""
        return f"{self.source}, {self.dtype}, {self.error[0]:g} % off in the median"


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measured rows, and where they come from."""

    source: str
    licence: str
    form: str
    knots: tuple[int, ...]
    rows: tuple[Row, ...]


@cache
def record() -> Record:
    """Return the measured rows."""
    text = files("hybrid_blocks.geometry").joinpath("step_times.json").read_bytes()
    return msgspec.json.decode(text, type=Record)


KNOTS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def step_time(model: Model, deployment: Deployment) -> StepTime | None:
    """Return the time of a step, or None where the card or the model's weights are not known."""
    name, where = _plain(model.name), (deployment.card, deployment.tp)
    for row in record().rows:
        if (row.card, row.tp) == where and _plain(row.model) == name and _is_same(row, model):
            return row
    return _estimate(model, deployment)


def step_tokens(model: Model, deployment: Deployment) -> int:
    """Return how many prompt tokens take as long as one more step of few tokens."""
    found = step_time(model, deployment)
    return DEFAULT_STEP_TOKENS if found is None else found.step_tokens


def _plain(name: str) -> str:
    """Return the name of a model without its owner and the format of its weights."""
    return without_format(name.rsplit("/", 1)[-1]).lower().removesuffix("-bf16")


def _is_same(row: Row, model: Model) -> bool:
    """Whether a model's weights have the format of a row."""
    bits = model.weights.bits if model.weights else None
    return bits is None if row.dtype == "bf16" else bits is not None and bits < 8


def _estimate(model: Model, deployment: Deployment) -> StepTime | None:
    """Work out a step from bytes and operations at the shares of a card's peaks."""
    if deployment.card not in CARDS or model.weights is None:
        return None
    card, tp = CARDS[deployment.card], deployment.tp
    bytes_a_ms = card.terabytes * 1e9 * _BANDWIDTH_SHARE * tp
    flops_a_ms = card.teraflops * 1e9 * tp
    total = model.weights.parameters
    active = _active(model)
    bits = 8 * weight_bytes(model.weights, model.dtype) / total
    # Without experts each step reads all weights, else only those that some token chose.
    chosen_from = 0.0 if active == total else total - active
    flops_share = _EXPERTS_FLOPS_SHARE if chosen_from else _FLOPS_SHARE

    def of_tokens(num: int) -> float:
        operations = 2 * active * num / flops_a_ms / flops_share
        read = (total - chosen_from) * bits / 8 / bytes_a_ms
        chosen = 1 - math.pow(1 - active / total, math.pow(num, _DISTINCT))
        of_experts = chosen_from * chosen * bits / 8 / bytes_a_ms
        return _LAUNCH_MS + collectives + of_experts + max(read, operations)

    collectives = _COLLECTIVE_MS * model.num_layers * (tp > 1)
    rank = msgspec.structs.replace(deployment.rank(model), tp=1)
    states = sum(it.cache.state_bytes(rank) for it in model.layers if isinstance(it.cache, State))
    attending = [it.cache for it in model.layers if not isinstance(it.cache, State)]
    reading_all = [cache for cache in attending if kind_of(cache).grows]
    kv_bytes = sum(cache.token_bytes(rank) for cache in reading_all)
    width = model.weights.hidden_size * len(reading_all)
    return StepTime(
        ms=tuple(of_tokens(num) for num in KNOTS),
        prompt=0.0,
        decode=2 * states / bytes_a_ms,
        context=kv_bytes / bytes_a_ms,
        pair=4 * width * 1e6 / flops_a_ms / _FLOPS_SHARE,
        chunk=0.0,
        source=ESTIMATED,
    )


def _active(model: Model) -> float:
    """Return the parameters that a token uses."""
    assert model.weights is not None
    weights, total = model.weights, float(model.weights.parameters)
    if weights.experts and weights.used_experts is not None:
        return total - weights.experts + weights.used_experts
    if (billions := _ACTIVE.get(model.name)) is None:
        named = _ACTIVE_OF_NAME.search(model.name)
        billions = float(named[1]) if named else total / 1e9
    return min(billions * 1e9, total)
