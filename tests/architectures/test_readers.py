"""Every architecture that generates text is read as vLLM builds it, or refused with a reason."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import Model, PlanError, Rank, from_config
from hybrid_blocks.model.kind import kind_of
from hybrid_blocks.model.layer import LatentAttention, LatentIndex, State

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, Any]] = json.loads((HERE / "recorded.json").read_bytes())
REASONS: dict[str, dict[str, str]] = tomllib.loads((HERE / "reasons.toml").read_text())
REFUSED, NOT_BUILT = REASONS["refused"], REASONS["not_built"]

Cache = tuple[object, ...]

OTHER_NUMBERS = ("Zamba2ForCausalLM",)
"""vLLM counts the attention layers by themselves here, not by the depth at which they lie."""


VLLMS_GUESS = 2048
"""Longest request that vLLM takes where a model names none."""


@pytest.mark.parametrize("name", RECORDED)
def test_an_architecture_is_read_as_vllm_builds_it_or_refused(name: str) -> None:
    """Read what is recorded, and all fields that its class writes into a ``config.json``."""
    row = RECORDED[name]
    if name in REFUSED:
        with pytest.raises(PlanError) as refusal:
            from_config(row["config"], name)
        assert REFUSED[name] in str(refusal.value)
        return
    if name in NOT_BUILT:
        assert NOT_BUILT[name] in row["error"]
        return
    _compare(from_config(row["config"], name), name, row)
    _compare(from_config(row["written"], name), name, row)


def _compare(model: Model, name: str, row: dict[str, Any]) -> None:
    if name in OTHER_NUMBERS:
        assert Counter(read(model)) == Counter(built(row, model.num_layers))
    else:
        assert read(model) == built(row, model.num_layers)
    assert model.dtype == row["dtype"]
    assert (model.max_model_len or VLLMS_GUESS) == row["max_model_len"]


def test_no_reason_is_given_for_what_is_read() -> None:
    assert REFUSED.keys() <= RECORDED.keys()
    assert not REFUSED.keys() & NOT_BUILT.keys()
    failed = {name for name, row in RECORDED.items() if "error" in row}
    assert failed - REFUSED.keys() == NOT_BUILT.keys()


def test_the_changelog_counts_what_is_read_and_refused() -> None:
    changes = (HERE.parent.parent / "CHANGELOG.md").read_text()
    told = re.search(
        r"(\d+) of the (\d+)\s+architectures.*?It refuses (\d+) by name", changes, re.DOTALL
    )
    read_ones = len(RECORDED) - len(REFUSED) - len(NOT_BUILT)
    assert told is not None
    assert [int(number) for number in told.groups()] == [read_ones, len(RECORDED), len(REFUSED)]


def read(model: Model) -> list[Cache]:
    """Caches of all layers as we read them, by depth."""
    rank = Rank(model_dtype=model.dtype, kv_dtype=model.dtype)
    caches = [(layer.depth % model.num_layers, _read(layer.cache, rank)) for layer in model.layers]
    return [cache for _, cache in sorted(caches, key=repr_of_depth)]


def built(row: dict[str, Any], num_layers: int) -> list[Cache]:
    """Caches of all layers as vLLM builds them, by depth.

    A layer of several caches, or of several turns, may count them behind the last layer.
    """
    caches = [((layer["depth"] or 0) % num_layers, _built(layer)) for layer in _layers(row)]
    return [cache for _, cache in sorted(caches, key=repr_of_depth)]


def repr_of_depth(cache: tuple[int, Cache]) -> tuple[int, str]:
    return cache[0], repr(cache[1])


def _layers(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(row["specs"][index], depth=depth) for depth, index in row["layers"]]


def _read(cache: Any, rank: Rank) -> Cache:
    if isinstance(cache, State):
        return _state(
            [tensor.shape for tensor in cache.tensors(rank)],
            [tensor.dtype for tensor in cache.tensors(rank)],
        )
    if isinstance(cache, LatentAttention | LatentIndex):
        return ("mla", cache.token_bytes(rank))
    kind = kind_of(cache)
    value_dim = cache.head_dim if cache.value_dim is None else cache.value_dim
    return (kind.name, cache.kv_heads, cache.head_dim, value_dim, kind.window)


KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked",
    "CrossAttentionSpec": "cross",
}


def _built(layer: dict[str, Any]) -> Cache:
    kind = layer["kind"]
    if kind == "MambaSpec":
        return _state(layer["shapes"], layer["dtypes"])
    if kind == "MLAAttentionSpec" and layer["tokens_per_state"] == 1:
        return ("mla", layer["page_size_bytes"] // layer["block_size"])
    window = layer.get("sliding_window", layer.get("attention_chunk_size"))
    sizes = (layer["num_kv_heads"], layer["head_size"], layer["head_size_v"])
    return (KINDS.get(kind, kind), *sizes, window)


def _state(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> Cache:
    """A convolution's columns come first or last, as the kernel has it."""
    pairs = zip(shapes, dtypes, strict=True)
    return ("state", *((*sorted(shape), dtype) for shape, dtype in pairs))


def test_a_class_inside_another_has_other_values_than_one_that_stands_alone() -> None:
    alone: dict[str, object] = {"model_type": "bailing_hybrid"}
    inside: dict[str, object] = {"model_type": "bailing_moe_v3_vl", "text_config": alone}
    assert from_config(alone, "alone").num_layers == 42
    assert from_config(inside, "inside").num_layers == 20


def test_a_window_counts_whatever_a_field_says_that_the_class_does_not_have() -> None:
    fields: dict[str, object] = {"sliding_window": 512, "use_sliding_window": False}
    mistral = from_config({"model_type": "mistral", **fields}, "mistral")
    assert {layer.cache.kind for layer in mistral.layers} == {"sliding_window"}
    qwen = from_config({"model_type": "qwen3_moe", **fields}, "qwen")
    assert {layer.cache.kind for layer in qwen.layers} == {"full"}


def test_layers_of_smollm_without_rotary_embedding_are_windowed() -> None:
    fields: dict[str, object] = {"num_hidden_layers": 8, "sliding_window": 256}
    model = from_config({"model_type": "smollm3", "use_sliding_window": True, **fields}, "smol")
    windowed = [layer.depth for layer in model.layers if layer.cache.kind == "sliding_window"]
    assert windowed == [3, 7]


def test_a_list_of_layers_that_vllm_does_not_read_changes_nothing() -> None:
    names = ["full_attention"] * 2 + ["sliding_attention"] * 2
    fields: dict[str, object] = {"model_type": "gpt_oss", "num_hidden_layers": 4}
    model = from_config({**fields, "layer_types": names}, "gpt")
    assert [layer.cache.kind for layer in model.layers] == ["sliding_window", "full"] * 2


def test_rnj_has_windows_where_layers_are_chunked_whatever_gemmas_names_mean() -> None:
    names = ["chunked_attention", "sliding_attention", "full_attention"]
    fields: dict[str, object] = {"model_type": "gemma3_text", "layer_types": names}
    fields |= {"num_hidden_layers": 3, "sliding_window": 512}
    gemma = {**fields, "layer_types": ["sliding_attention"] * 3}
    rnj = from_config({**fields, "architectures": ["Rnj1ForCausalLM"]}, "rnj")
    assert [layer.cache.kind for layer in rnj.layers] == ["sliding_window", "full", "full"]
    assert {layer.cache.kind for layer in from_config(gemma, "gemma").layers} == {"sliding_window"}


def test_sections_without_a_type_have_the_defaults_of_their_classes() -> None:
    fields: dict[str, object] = {"text_config": {"num_hidden_layers": 3}}
    model = from_config({"model_type": "qwen3_omni_moe", "thinker_config": fields}, "omni")
    assert [layer.depth for layer in model.layers] == [0, 1, 2]


HEADS = [name for name, row in RECORDED.items() if "head" in row]


@pytest.mark.parametrize("name", HEADS)
def test_a_head_for_multi_token_prediction_is_read_as_vllm_builds_it(name: str) -> None:
    head = RECORDED[name]["head"]
    model = from_config(head["config"], name)
    rank = Rank(model_dtype=model.dtype, kv_dtype=model.dtype)
    ours = Counter(_read(layer.cache, rank) for layer in model.draft_layers)
    assert ours == Counter(_built(layer) for layer in _layers(head))
    depths = {layer.depth for layer in model.draft_layers}
    assert depths == set(range(model.num_layers, model.num_layers + len(depths)))
