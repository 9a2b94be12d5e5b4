"""The slab that is chosen, and what it wastes."""

import pytest
from hybrid_blocks._core.offload import ChunkCodec
from hybrid_blocks.geometry.layout import MAX_GROUPS
from hybrid_blocks.geometry.slab import Demand, choose
from hybrid_blocks.model import load_model
from hybrid_blocks.model.layer import State, StateFormat
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.plan.report import Plan, make_report
from hybrid_blocks.tools.plan.report.figures import natural_budget, vllm_budget

CONVERSATION = 1366
"""Tokens of a conversation at its end, as the mean of a public trace."""

SERVED = [
    ("Qwen3.5-27B", Deployment(max_model_len=16_384)),
    ("Qwen3.5-27B", Deployment(max_model_len=16_384, num_speculative_tokens=2)),
    ("Qwen3.5-35B-A3B", Deployment(max_model_len=16_384, kv_cache_dtype="fp8")),
    ("Nemotron-H-8B", Deployment(max_model_len=16_384)),
    ("Granite-4.0-H-Small", Deployment(max_model_len=16_384)),
    ("Falcon-H1-7B", Deployment(max_model_len=16_384)),
    ("LFM2-1.2B", Deployment(max_model_len=16_384)),
    ("gpt-oss-20b", Deployment(max_model_len=16_384)),
    ("Gemma-3-27B", Deployment(max_model_len=16_384)),
]


@pytest.mark.parametrize(("name", "deployment"), SERVED)
def test_conversations_leave_under_three_per_cent_of_what_they_reserve_unused(
    name: str, deployment: Deployment
) -> None:
    geometry = plan_natural(load_model(name), 24 * 2**30, deployment)
    budget = natural_budget(geometry, CONVERSATION)
    reserved = budget.live + budget.rounding + budget.padding
    assert budget.live / reserved >= 0.97
    assert len(geometry.groups) <= MAX_GROUPS


@pytest.mark.parametrize(("name", "deployment"), SERVED)
def test_the_geometry_serves_more_where_vllms_wastes(name: str, deployment: Deployment) -> None:
    model = load_model(name)
    arena = plan_natural(model, 24 * 2**30, deployment)
    ours = natural_budget(arena, CONVERSATION)
    plan = plan_vllm(model, 24 * 2**30, deployment)
    theirs = vllm_budget(plan, CONVERSATION)
    # gpt-oss has as many layers of one kind as of the other: vLLM has nothing to pad or inflate.
    if theirs.padding == 0 and plan.block_tokens == arena.hash_block_size:
        assert ours.requests == theirs.requests
    else:
        assert ours.requests > theirs.requests


def test_the_padding_of_qwen_with_two_draft_tokens_is_the_one_that_vllm_logs() -> None:
    plan = plan_vllm(load_model("Qwen3.5-27B"), 2**34, Deployment(tp=2, num_speculative_tokens=2))
    state = next(group.spec for group in plan.groups if group.spec.kind == "mamba")
    assert round(100 * (state.page_bytes / state.unpadded_bytes - 1), 2) == 0.88
    assert plan.padding_layers == 3


def test_blocks_of_one_size_need_no_more_than_one_block_a_slab() -> None:
    slab = choose((Demand(4096, 10**6), Demand(4096, 10**5)))
    assert slab.slab_bytes == 4096
    assert slab.blocks_per_slab == (1, 1)


def test_sizes_with_a_small_common_multiple_are_not_padded() -> None:
    slab = choose((Demand(3 * 65_536, 10**8), Demand(5 * 65_536, 10**8)))
    assert slab.slab_bytes % (15 * 65_536) == 0


def test_the_slab_does_not_depend_on_the_memory() -> None:
    model = load_model("Qwen3.5-27B")
    sizes = {plan_natural(model, gib * 2**30, Deployment()).slab_bytes for gib in (2, 17, 80)}
    assert len(sizes) == 1


def test_state_layers_are_dealt_out_evenly() -> None:
    geometry = plan_natural(load_model("Nemotron-H-8B"), 24 * 2**30, Deployment())
    counts = [len(group.layers) for group in geometry.groups if group.kind == "state"]
    assert sum(counts) == 24
    assert max(counts) - min(counts) <= 1


def test_the_pages_of_a_block_fill_it() -> None:
    geometry = plan_natural(load_model("Gemma-4-26B-A4B"), 24 * 2**30, Deployment())
    for group in geometry.groups:
        assert sum(group.page_bytes) == group.block_bytes


def test_a_group_addresses_all_slots_of_all_slabs() -> None:
    model = load_model("Qwen3.5-27B")
    geometry = plan_natural(model, 24 * 2**30, Deployment(max_model_len=16_384))
    slots = {group.kind: geometry.num_slots(group) for group in geometry.groups}
    assert slots == {"state": None, "full": 664 * 37 * 16}
    report = make_report(Plan(model, 24 * 2**30, Deployment(max_model_len=16_384)))
    assert {group.kind: group.num_slots for group in report.groups} == slots


def test_latent_layers_have_regions_of_their_own_and_dense_blocks() -> None:
    geometry = plan_natural(load_model("Kimi-Linear-48B-A3B"), 24 * 2**30, Deployment())
    latent = next(group for group in geometry.groups if group.kind == "mla")
    assert geometry.num_regions == len(latent.layers) == 7
    assert latent.block_stride == latent.block_bytes


def test_a_plan_that_no_engine_carries_out_says_so() -> None:
    model = load_model("Qwen3.8-Flash-Next")
    warnings = make_report(Plan(model, 24 * 2**30, Deployment(max_model_len=4096))).warnings
    assert "natural: vLLM runs at level manager (compressed attention)" in warnings


HYBRIDS = ["Qwen3.5-27B", "Nemotron-H-8B", "Kimi-Linear-48B-A3B"]


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize(("state_format", "cut"), [("bf16", 2), ("fp8", 4), ("int8", 4)])
def test_smaller_checkpoints_fill_slabs_of_a_pool_of_their_own(
    name: str, state_format: StateFormat, cut: int
) -> None:
    geometry = plan_natural(load_model(name), 24 * 2**30, Deployment(), state_format)
    states = [group for group in geometry.groups if group.kind == "state"]
    assert {(group.kept_pool, group.kept_per_slab) for group in states} == {(2, cut)}
    assert geometry.pools[2] == cut
    assert all(group.kept_pool is None for group in geometry.groups if group.kind != "state")
    # The slab is larger than a running state, so that whole checkpoints fill it.
    assert min(group.block_stride / group.block_bytes for group in states) < 1.14


@pytest.mark.parametrize("name", [*HYBRIDS, "Jamba-1.5-Mini"])
@pytest.mark.parametrize("state_format", ["bf16", "fp8", "int8"])
@pytest.mark.parametrize("ssm_dtype", ["float32", "bfloat16"])
def test_a_checkpoint_takes_the_bytes_of_a_state_that_offload_stores(
    name: str, state_format: StateFormat, ssm_dtype: str
) -> None:
    model = load_model(name)
    state = next(layer.cache for layer in model.layers if isinstance(layer.cache, State))
    rank = Deployment(mamba_ssm_dtype=ssm_dtype).rank(model)
    parts = [
        ("convolution", 1, 1, tensor.nbytes, False)
        if tensor.role == "conv"
        else ("recurrent", 1, (n := tensor.shape[0]), tensor.nbytes // n, ssm_dtype == "float32")
        for tensor in state.tensors(rank)
    ]
    codec = ChunkCodec(parts, tp_size=1, state_format=state_format)
    assert state.kept_bytes(rank, state_format) == codec.stored_bytes
    assert (codec.stored_bytes < state.state_bytes(rank)) == (ssm_dtype == "float32")
