"""Parameters counted from a ``config.json``, and the bytes that they take."""

import json
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import from_config, load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.model.weights import bits_of_name, weight_bytes

SIZES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("published_sizes.json").read_bytes()
)
UNKNOWN = {"Kimi-K3", "Ling-3.0-Flash", "Qwen3.8-Flash-Next"}
"""Built-in models whose number of weights is neither in their names nor published."""


@pytest.mark.parametrize("row", SIZES, ids=lambda row: row["model"])
def test_the_count_is_what_is_published(row: dict[str, Any]) -> None:
    weights = from_config(row["config"], row["model"]).weights
    assert weights is not None
    assert weights.source == "counted from config.json"
    assert weights.parameters / 1e9 == pytest.approx(row["billions"], rel=0.005)


def _gemma(**fields: object) -> dict[str, object]:
    """Gemma-3-4B as its publisher describes it: only what its class does not have."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, **fields}
    text |= {"model_type": "gemma3_text", "sliding_window": 1024}
    return {"model_type": "gemma3", "text_config": text}


def test_a_class_tells_the_vocabulary_and_whether_it_is_shared() -> None:
    weights = from_config(_gemma(), "Gemma-3-4B").weights
    assert weights is not None
    assert weights.embeddings == 262_208 * 2560
    assert weights.parameters / 1e9 == pytest.approx(3.88, rel=0.005)
    own = from_config(_gemma(vocab_size=1000, tie_word_embeddings=False), "ours").weights
    assert own is not None
    assert own.embeddings == 2 * 1000 * 2560


def test_only_fields_that_are_missing_are_named() -> None:
    config = {"model_type": "exaone", "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "head_dim": 64, "hidden_size": 256}
    model = from_config(config, "ours")
    assert model.weights is None
    assert model.weights_unknown == "config.json lacks vocab_size, intermediate_size"
    model = from_config({**config, "intermediate_size": 512}, "ours")
    assert model.weights_unknown == "config.json lacks vocab_size"


def test_built_in_models_have_the_parameters_of_their_names() -> None:
    found = {name: load_model(name).weights for name in entries()}
    assert {name for name, weights in found.items() if weights is None} == UNKNOWN
    billions = {name: weights.parameters / 1e9 for name, weights in found.items() if weights}
    for name, number in (
        ("Qwen3.5-27B", 27),
        ("Qwen3.5-0.8B", 0.8),
        ("Qwen3.6-35B-A3B", 35),
        ("Ring-2.5-1T", 1000),
        ("Phi-4", 14.7),
        ("Llama-4-Scout-17B-16E", 108.6),
    ):
        assert billions[name] == pytest.approx(number)


def test_names_and_counts_tell_the_same_of_models_that_have_both() -> None:
    named = {name: load_model(name).weights for name in entries()}
    for row in SIZES:
        if (weights := named.get(row["model"])) is not None:
            assert weights.parameters / 1e9 == pytest.approx(row["billions"], rel=0.09)


@pytest.mark.parametrize(
    ("quantized", "bits"),
    [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4}, 4 + 20 / 128),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "NVFP4"}}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4 + 20 / 32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float"}}},
            },
            4.5,
        ),
        ({"quant_method": "unheard-of"}, None),
        ({"quant_method": "compressed-tensors", "config_groups": "all"}, None),
    ],
)
def test_the_bits_are_those_of_the_format(quantized: dict[str, Any], bits: float | None) -> None:
    config = {**SIZES[0]["config"], "quantization_config": quantized}
    weights = from_config(config, "quantized").weights
    assert weights is not None
    assert weights.bits == bits


def test_embeddings_stay_in_the_models_format() -> None:
    config = {**SIZES[0]["config"], "quantization_config": {"quant_method": "fp8"}}
    weights = from_config(config, "quantized").weights
    assert weights is not None
    embeddings = 2 * 128_256 * 4096
    rest = weights.parameters - embeddings
    assert weight_bytes(weights, "bfloat16") == 2 * embeddings + rest


@pytest.mark.parametrize(
    ("name", "bits"),
    [("-FP8", 8), ("-NVFP4", 4.5), ("-MXFP4", 4.25), ("-AWQ", 4.15), ("-w8a8", 8), ("fp8", 8)],
)
def test_a_name_tells_the_format(name: str, bits: float) -> None:
    assert bits_of_name(name) == bits
    assert bits_of_name("-Instruct") is None
