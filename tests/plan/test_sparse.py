"""Sparse attention: its index and its n-gram convolution count."""

import pytest
from hybrid_blocks.model import from_config, load_model
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.plan.report import Plan, make_report

FIELDS: dict[str, object] = {
    "model_type": "qwen4_exp_text",
    "hidden_size": 2560,
    "num_hidden_layers": 8,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "linear_num_value_heads": 48,
}
INDEX: dict[str, object] = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 128,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}


def test_the_index_of_a_published_model_counts() -> None:
    deployment = Deployment(max_model_len=262_144, num_speculative_tokens=2)
    plan = plan_vllm(load_model("Qwen3.8-Flash-Next"), int(8.69 * 2**30), deployment)
    assert plan.tokens == 307_041
    assert round(plan.max_concurrency, 2) == 1.17


def test_an_index_adds_a_page_to_each_full_layer_and_a_ring() -> None:
    plain = plan_vllm(from_config(FIELDS, "plain"), 2**32, Deployment(max_model_len=4096))
    model = from_config({**FIELDS, **INDEX}, "sparse")
    plan = plan_vllm(model, 2**32, Deployment(max_model_len=4096))
    assert plan.block_tokens == plain.block_tokens
    assert plan.block_bytes - plain.block_bytes == 2 * plan.block_tokens // 4 * 128 * 2
    assert [group.spec.kind for group in plan.groups] == ["mamba"] * 3 + ["full", "ring"]
    assert plan.blocks_per_request(4096) == plain.blocks_per_request(4096) + 1


@pytest.mark.parametrize("drafts", [0, 1, 4, 5])
def test_a_ring_holds_the_drafts_of_a_step_too(drafts: int) -> None:
    model = from_config({**FIELDS, **INDEX}, "sparse")
    deployment = Deployment(max_model_len=4096, num_speculative_tokens=drafts)
    plan = plan_vllm(model, 2**32, deployment)
    (ring,) = (group.spec for group in plan.groups if group.spec.kind == "ring")
    assert ring.block_tokens == {0: 4, 1: 8, 4: 8, 5: 12}[drafts]


def test_a_convolution_over_n_grams_has_states_of_its_own() -> None:
    model = from_config({**FIELDS, **INDEX, "ple_layer_ids": [2]}, "sparse")
    plan = plan_vllm(model, 2**32, Deployment(max_model_len=4096))
    own = [group for group in plan.groups if len(group.members) == 1]
    assert [(it.spec.kind, it.spec.unpadded_bytes) for it in own] == [("mamba", 9 * 4 * 2560 * 2)]


def test_level_natural_counts_the_compressed_keys() -> None:
    deployment = Deployment(max_model_len=4096)
    sparse, plain = (
        plan_natural(from_config(fields, "made"), 2**32, deployment)
        for fields in ({**FIELDS, **INDEX}, FIELDS)
    )
    full = [next(it for it in plan.groups if it.kind == "full") for plan in (sparse, plain)]
    pages = [group.page_bytes[0] for group in full]
    assert pages[0] - pages[1] == 16 // 4 * 128 * 2


def test_level_natural_is_refused_for_compressed_attention() -> None:
    model, deployment = load_model("Qwen3.8-Flash-Next"), Deployment(max_model_len=4096)
    warnings = make_report(Plan(model, 2**35, deployment)).warnings
    assert "natural: vLLM runs at level manager (compressed attention)" in warnings
