"""A ``config.json`` may leave out what the class that vLLM reads it with fills in."""

import pytest
from hybrid_blocks.model import PlanError, from_config
from hybrid_blocks.model.layer import Attention, FullAttention, LatentAttention, Mamba2
from hybrid_blocks.tools.plan import Deployment, plan_vllm

GEMMA_12B: dict[str, object] = {
    "hidden_size": 3840,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 48,
    "sliding_window": 1024,
    "model_type": "gemma3_text",
}


def test_the_published_gemma_3_12b_has_the_head_size_of_its_class() -> None:
    model = from_config({"model_type": "gemma3", "text_config": GEMMA_12B}, "gemma-3-12b-it")
    one_batch = Deployment(max_model_len=131_072, in_flight_batches=1)
    plan = plan_vllm(model, 20 * 2**30, one_batch)
    assert plan.tokens == 242_335
    assert round(plan.max_concurrency, 2) == 1.85


@pytest.mark.parametrize("model_type", [None, "gemma3_text"])
def test_the_published_gemma_3_4b_is_read(model_type: str | None) -> None:
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    named = {} if model_type is None else {"model_type": model_type}
    text_config = {**text, "sliding_window": 1024, **named}
    model = from_config({"model_type": "gemma3", "text_config": text_config}, "4b")
    assert model.max_model_len == 131_072
    assert [layer.depth for layer in model.layers if isinstance(layer.cache, FullAttention)] == [
        5, 11, 17, 23, 29
    ]  # fmt: skip
    for layer in model.layers:
        assert isinstance(layer.cache, Attention)
        assert (layer.cache.query_heads, layer.cache.kv_heads, layer.cache.head_dim) == (8, 4, 256)


def test_a_field_that_is_null_takes_no_default() -> None:
    windowed = from_config({"model_type": "mistral", "num_hidden_layers": 2}, "absent")
    full = from_config({"model_type": "mistral", "sliding_window": None}, "null")
    assert windowed.layers[0].cache.kind == "sliding_window"
    assert full.layers[0].cache.kind == "full"


def test_a_size_under_another_name_goes_before_the_default() -> None:
    model = from_config({"model_type": "step3p5", "num_attention_groups": 2}, "step")
    cache = model.layers[0].cache
    assert isinstance(cache, FullAttention)
    assert cache.kv_heads == 2


def test_what_stands_around_a_decoder_counts_less_than_its_class() -> None:
    text = {"model_type": "gemma3_text"}
    model = from_config({"model_type": "gemma3", "head_dim": 64, "text_config": text}, "g")
    cache = model.layers[0].cache
    assert isinstance(cache, Attention)
    assert cache.head_dim == 256


def test_a_class_that_derives_a_size_is_followed() -> None:
    olmo = from_config({"model_type": "olmo_hybrid"}, "olmo").layers[0].cache
    assert (olmo.key_dim, olmo.value_dim) == (96, 192)  # type: ignore[union-attr]
    fields = {"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 32}
    granite = from_config({**fields, "mamba_d_head": "auto"}, "granite")
    mamba = granite.layers[0].cache
    assert isinstance(mamba, Mamba2)
    assert (mamba.heads, mamba.head_dim) == (128, 64)


def test_names_of_layers_are_read_as_transformers_writes_them_now() -> None:
    names = ["linear_attention", "full_attention"] * 16
    fields: dict[str, object] = {"model_type": "granitemoehybrid", "layer_types": names}
    kinds = [layer.cache.kind for layer in from_config(fields, "granite").layers]
    assert kinds == ["state", "full"] * 16


@pytest.mark.parametrize("section", ["text_config", "llm_config", "language_config"])
def test_a_decoder_is_found_under_any_of_its_names(section: str) -> None:
    model = from_config({"model_type": "vlm", section: GEMMA_12B}, "vlm")
    assert model.model_type == "gemma3_text"
    assert model.num_layers == 48


def test_a_decoder_in_a_section_of_a_section_is_found() -> None:
    thinker = {"model_type": "omni_thinker", "text_config": {"model_type": "qwen3"}}
    model = from_config({"model_type": "omni", "thinker_config": thinker}, "omni")
    assert (model.model_type, model.num_layers) == ("qwen3", 32)


@pytest.mark.parametrize("outer", ["gemma4", "gemma4_unified"])
def test_gemma_4_has_wide_heads_in_full_layers_and_a_full_last_one(outer: str) -> None:
    text: dict[str, object] = {"model_type": f"{outer}_text", "num_hidden_layers": 8}
    text |= {"num_global_key_value_heads": 1, "attention_k_eq_v": True}
    layers = from_config({"model_type": outer, "text_config": text}, outer).layers
    full = [layer for layer in layers if isinstance(layer.cache, FullAttention)]
    assert [layer.depth for layer in full] == [5, 7]
    for layer in full:
        assert isinstance(layer.cache, FullAttention)
        assert (layer.cache.kv_heads, layer.cache.head_dim) == (1, 512)


def test_step_3_7_lists_its_draft_layers_too() -> None:
    text = {
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 3,
        "num_attention_groups": 8,
        "sliding_window": 512,
        "layer_types": ["full_attention", *["sliding_attention"] * 3] * 2,
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": 96,
        },
    }
    fields: dict[str, object] = {"model_type": "step3p7", "text_config": {**text}}
    model = from_config(fields, "Step-3.7-Flash")
    caches = [layer.cache for layer in model.layers]
    assert [cache.kind for cache in caches] == ["full", *["sliding_window"] * 3]
    assert [it.query_heads for it in caches if isinstance(it, Attention)] == [64, 96, 96, 96]
    assert isinstance(caches[1], Attention)
    assert (caches[1].kv_heads, caches[1].head_dim) == (8, 128)


@pytest.mark.parametrize("inner", ["kimi_k2", "deepseek_v3", None])
def test_kimi_k2_5_is_a_deepseek_inside(inner: str | None) -> None:
    text = {"num_hidden_layers": 61, **({"model_type": inner} if inner else {})}
    model = from_config({"model_type": "kimi_k25", "text_config": text}, "Kimi-K2.5")
    assert model.layers[0].cache == LatentAttention(latent_dim=576, query_heads=128)
    assert len(model.layers) == 61


def test_a_window_of_ministral_3_that_is_null_is_none() -> None:
    text = {"model_type": "ministral3", "sliding_window": None}
    fields: dict[str, object] = {"model_type": "mistral3", "text_config": text}
    assert {layer.cache.kind for layer in from_config(fields, "ministral").layers} == {"full"}


@pytest.mark.parametrize("pattern", [["M", "E", "*", "-"], ["mamba", "moe", "attention", "mlp"]])
def test_a_pattern_of_nemotron_may_be_a_list_and_sizes_have_older_names(pattern: object) -> None:
    fields: dict[str, object] = {"model_type": "nemotron_h", "hybrid_override_pattern": pattern}
    fields |= {"mamba_n_groups": 4, "mamba_d_conv": 3, "mamba_expand": 2}
    fields |= {"mamba_num_heads": 16, "mamba_head_dim": 32}
    model = from_config(fields, "nemotron")
    assert model.num_layers == 4
    mamba = model.layers[0].cache
    assert isinstance(mamba, Mamba2)
    assert (mamba.groups, mamba.conv_kernel, mamba.inner_dim) == (4, 3, 512)
    assert model.layers[1].depth == 2


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 0},
            ["sliding_window"] * 4,
        ),
        ({"model_type": "exaone4", "sliding_window_pattern": "LG"}, ["sliding_window", "full"] * 2),
        ({"model_type": "exaone4", "sliding_window": None}, ["full"] * 4),
    ],
    ids=str,
)
def test_a_pattern_of_a_class_is_derived(fields: dict[str, object], kinds: list[str]) -> None:
    layers = from_config({**fields, "num_hidden_layers": 4}, "derived").layers
    assert [layer.cache.kind for layer in layers] == kinds


def test_windows_on_some_layers_of_qwen_are_refused_as_by_vllm() -> None:
    fields = {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 28}
    with pytest.raises(PlanError, match="4 of 32 layers have a sliding window"):
        from_config({**fields, "num_hidden_layers": 32}, "qwen2")
