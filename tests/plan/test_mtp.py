"""Heads for multi-token prediction: their layers count while a model drafts."""

from typing import Any

import pytest
from hybrid_blocks.model import Layer, from_config, load_model
from hybrid_blocks.model.mtp import HEADS
from hybrid_blocks.model.table import entries, fields
from hybrid_blocks.tools.plan import Deployment, plan_vllm

GIB = 2**30
WITHOUT = (
    *("Nemotron-H-8B", "Nemotron-H-47B", "Nemotron-H-56B", "Nemotron-Nano-9B-v2"),
    *("Nemotron-Nano-12B-v2", "Nemotron-3-Nano-30B-A3B", "Ring-2.5-1T"),
)
"""Built-in models of families with heads that have none, or whose configuration names none."""


@pytest.mark.parametrize(
    ("name", "gib", "options", "tokens"),
    [
        (
            "Nemotron-3-Super-120B-A12B",
            6,
            {"kv_cache_dtype": "fp8", "max_model_len": 262_144, "mamba_ssm_dtype": "float32"},
            758_837,
        ),
        ("Ling-3.0-Flash", 60, {"max_model_len": 32_768}, 2_727_736),
        ("DeepSeek-V3", 60, {"max_model_len": 163_840, "attention_backend": "FLASHMLA"}, 901_952),
    ],
    ids=str,
)
def test_built_in_models_draft(name: str, gib: int, options: dict[str, Any], tokens: int) -> None:
    drafting = Deployment(num_speculative_tokens=3, **options)
    assert plan_vllm(load_model(name), gib * GIB, drafting).tokens == tokens


def test_every_built_in_model_of_a_family_with_heads_has_one_or_is_named() -> None:
    types = {name: fields(entry)[0]["model_type"] for name, entry in entries().items()}
    of_families = {name for name, model_type in types.items() if model_type in HEADS}
    headless = {name for name in of_families if not load_model(name).draft_layers}
    assert headless == set(WITHOUT)
    assert {"Kimi-K3", "Qwen3.5-27B", "Qwen3-Next-80B-A3B"} <= of_families


def test_a_count_without_a_class_of_vllms_is_no_head() -> None:
    """vLLM refuses multi-token prediction for it; the field stands in the file all the same."""
    decoder: dict[str, object] = {"model_type": "deepseek_v3", "num_hidden_layers": 2}
    decoder |= {"num_attention_heads": 8, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    decoder |= {"num_nextn_predict_layers": 1}
    assert len(from_config(decoder, "own").draft_layers) == 1
    within: dict[str, object] = {"model_type": "kimi_k25", "text_config": decoder}
    assert not from_config(within, "within").draft_layers


def test_windows_of_a_head_are_its_own() -> None:
    exaone: dict[str, object] = {"model_type": "exaone_moe", "num_hidden_layers": 4}
    exaone |= {"num_attention_heads": 8, "hidden_size": 1024, "sliding_window": 4096}
    exaone |= {"layer_types": ["sliding_attention", "full_attention"] * 2}
    head = from_config(exaone, "listed").draft_layers
    assert [(it.depth, it.cache.kind) for it in head] == [(4, "sliding_window")]
    exaone |= {"mtp_layer_types": ["full_attention", "sliding_attention"]}
    exaone |= {"mtp_sliding_windows": [None, 128], "num_nextn_predict_layers": 2}
    head = from_config(exaone, "apart").draft_layers
    assert _windows(head) == [None, 128]


def test_windows_of_layers_may_differ() -> None:
    exaone: dict[str, object] = {"model_type": "exaone_moe", "num_hidden_layers": 3}
    exaone |= {"num_attention_heads": 8, "hidden_size": 1024, "sliding_window": 4096}
    exaone |= {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    exaone |= {"sliding_windows": [128, 512, None]}
    model = from_config(exaone, "windows")
    assert _windows(model.layers) == [128, 512, None]
    assert _windows(model.draft_layers) == [128]


def _windows(layers: tuple[Layer, ...]) -> list[int | None]:
    return [getattr(layer.cache, "window", None) for layer in layers]
