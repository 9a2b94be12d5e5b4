"""The price of a step, by the model and the card of an engine."""

from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.geometry.step_time import step_tokens
from hybrid_blocks.model import load_model, table
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.level import CHECKPOINTS
from hybrid_blocks.vllm.natural import step_price
from hybrid_blocks.vllm.natural.manager import NaturalKVCacheManager

NAMES = {"NVIDIA H100 80GB HBM3": ("H100-80GB", 79), "NVIDIA B200": ("B200", 178)}


def config(fields: dict[str, Any] | None, name: str, tp: int = 1) -> Any:
    """The part of vLLM's configuration that the price reads."""
    read = None if fields is None else SimpleNamespace(to_dict=lambda: fields)
    model = SimpleNamespace(model=name, hf_config=read)
    parallel = SimpleNamespace(tensor_parallel_size=tp)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


def on_card(monkeypatch: pytest.MonkeyPatch, name: str, gib: int) -> None:
    platform = SimpleNamespace(
        is_cuda_alike=lambda: True,
        get_device_name=lambda: name,
        get_device_total_memory=lambda: gib * 2**30,
    )
    monkeypatch.setattr(step_price, "current_platform", platform)


@pytest.mark.parametrize(("device", "card"), NAMES.items())
def test_an_engine_knows_the_price_of_its_model_and_card(
    device: str, card: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_card(monkeypatch, device, card[1])
    fields, _ = table.fields(table.find("Qwen3.5-35B-A3B")[1])
    for tp in (1, 2):
        planned = step_tokens(load_model("Qwen3.5-35B-A3B"), Deployment(card=card[0], tp=tp))
        assert step_price.tokens_of(config(fields, "Qwen/Qwen3.5-35B-A3B", tp)) == planned
        assert 500 < planned < 1500


def test_without_a_known_card_or_model_there_is_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    fields, _ = table.fields(table.find("Qwen3.5-27B")[1])
    assert step_price.tokens_of(config(fields, "Qwen3.5-27B")) is None, "the CPU's engine"
    on_card(monkeypatch, "NVIDIA H100 80GB HBM3", 79)
    assert step_price.tokens_of(config(fields, "Qwen3.5-27B")) is not None
    assert step_price.tokens_of(config({"model_type": "unheard-of"}, "Qwen3.5-27B")) is None
    assert step_price.tokens_of(SimpleNamespace(model_config=SimpleNamespace())) is None
    on_card(monkeypatch, "Unheard-of 9000", 79)
    assert step_price.tokens_of(config(fields, "Qwen3.5-27B")) is None


@pytest.mark.parametrize(
    ("asked", "tokens", "placed"),
    [
        ("learned", None, "learned"),
        ("learned", 266, "learned/step_tokens=266"),
        ("fixed:128", 266, "fixed:128/step_tokens=266"),
        ("learned/step_tokens=9", 266, "learned/step_tokens=9"),
    ],
)
def test_a_placement_without_a_price_gets_one(asked: str, tokens: int | None, placed: str) -> None:
    manager: Any = SimpleNamespace(
        _checkpoints=asked, kv_cache_config=SimpleNamespace(step_tokens=tokens)
    )
    assert NaturalKVCacheManager._placement(manager) == placed, CHECKPOINTS
