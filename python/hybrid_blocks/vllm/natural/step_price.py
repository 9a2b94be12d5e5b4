"""The time of one more step of this engine, in prompt tokens: the price of a chunk that ends."""

from typing import Any

from vllm.platforms import current_platform

from hybrid_blocks.errors import PlanError
from hybrid_blocks.geometry import card
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.step_time import step_tokens
from hybrid_blocks.model import Model, from_config


def tokens_of(vllm_config: Any) -> int | None:
    """Return the price by model and card, or None where either is not known."""
    model, name = _model(vllm_config.model_config), _card()
    if model is None or name is None:
        return None
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return step_tokens(model, Deployment(card=name, tp=ranks))


def _model(model_config: Any) -> Model | None:
    """Return the model that the planner reads from the engine's own configuration."""
    fields = getattr(model_config, "hf_config", None)
    if fields is None:
        return None
    try:
        return from_config(fields.to_dict(), model_config.model)
    except PlanError:
        return None


def _card() -> str | None:
    """Return the card that runs workers; other platforms have none."""
    if not current_platform.is_cuda_alike():
        return None
    return card.find(current_platform.get_device_name(), current_platform.get_device_total_memory())
