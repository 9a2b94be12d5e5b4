"""The level of every built-in model with every feature, a row each."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.reach.answer import at_level, reach
from hybrid_blocks.reach.features import Features, is_served
from hybrid_blocks.reach.named import FEATURES
from hybrid_blocks.reach.reached import ONE_CALL, Reach
from hybrid_blocks.vllm.level import Level

MOST_SERVED = (
    "Qwen3.5-27B",
    "Qwen3.6-27B",
    "Qwen3.8-27B",
    "Qwen3.5-35B-A3B",
    "Qwen3.6-35B-A3B",
    "Qwen3.5-9B",
    "Qwen3-Next-80B-A3B",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "Gemma-3-27B",
    "Gemma-4-31B",
    "Gemma-4-26B-A4B",
    "DeepSeek-V3",
    "Kimi-K3",
    "Nemotron-3-Nano-30B-A3B",
    "Nemotron-3-Super-120B-A12B",
    "Granite-4.0-H-Small",
    "Llama-4-Scout-17B-16E",
    "Mistral-7B-v0.1",
    "Phi-4",
)
"""Twenty built-in models that stand for what is served most; a choice, not a statistic."""


class Row(NamedTuple):
    """One model with one feature. ``refused`` is vLLM's reason where it refuses the engine."""

    model: str
    feature: str
    reach: Reach | None
    refused: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether level ``manager`` at least and the scheduler in one call are reached."""
        found = self.reach
        return (
            found is not None
            and found.manager_level is Level.MANAGER
            and found.scheduler == ONE_CALL
        )


def rows(
    names: Iterable[str] | None = None, features: Iterable[str] = tuple(FEATURES)
) -> Iterator[Row]:
    """Yield a row for each feature of each model, by default of all built-in ones.

    Models of the same layers are constructed once.
    """
    answers: dict[tuple[object, str], Row] = {}
    features = tuple(features)
    # Once for all: what takes the place of vLLM's classes is looked for in all modules.
    with at_level(Level.MANAGER):
        for name in entries() if names is None else names:
            model = load_model(name)
            layers = (model.layers, model.draft_layers, model.dtype)
            for feature in features:
                if is_served(model, FEATURES[feature]):
                    key = (layers, feature)
                    if key not in answers:
                        answers[key] = _row(model, feature, FEATURES[feature])
                    yield answers[key]._replace(model=model.name)


def _row(model: Model, feature: str, features: Features) -> Row:
    try:
        return Row(model.name, feature, reach(model, features))
    except PlanError as error:
        return Row(model.name, feature, None, str(error))


def share(found: list[Row]) -> tuple[int, int]:
    """Return how many of the engines that vLLM serves reach all, and how many there are."""
    served = [row for row in found if row.reach is not None]
    return sum(row.is_whole for row in served), len(served)
