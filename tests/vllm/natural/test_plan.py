"""An engine plans what ``hybrid-blocks plan`` says."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hybrid_blocks.geometry import capacity
from hybrid_blocks.geometry.deployment import stages
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.layer import State, StateFormat
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import Deployment, plan_natural, plan_vllm
from hybrid_blocks.tools.plan.natural_refusals import natural_refusals
from hybrid_blocks.vllm.level import CHECKPOINTS
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural import logged_capacity
from plan_oracle import RELEASE
from vllm.distributed.utils import get_pp_indices
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

from natural.engine import Engine, installed

MEMORY = 24 * 2**30


@pytest.fixture(autouse=True)
def natural() -> Iterator[None]:
    with installed():
        yield


SERVED = [name for name in entries() if load_model(name).index is None]
"""Level natural refuses compressed attention, such as the index of sparse attention."""


@pytest.mark.parametrize("speculative", [0, 2])
@pytest.mark.parametrize("name", SERVED)
def test_an_engine_cuts_the_slabs_of_the_plan(name: str, speculative: int) -> None:
    model = load_model(name)
    sizes: Any = {"max_model_len": 16_384, "num_speculative_tokens": speculative}
    deployment = Deployment(in_flight_batches=1, **sizes)
    check_plan(model, deployment, "full")


def has_stages(name: str, pp: int) -> bool:
    """Whether every stage has a cache: the last layers of some models share those of others."""
    model = load_model(name)
    with suppress(PlanError):
        return bool(stages(model, model.layers, pp))
    return False


@pytest.mark.parametrize(
    ("name", "pp"), [(name, pp) for name in SERVED for pp in (2, 3, 4) if has_stages(name, pp)]
)
def test_all_pipeline_stages_cut_the_slabs_of_the_plan(name: str, pp: int) -> None:
    deployment = Deployment(max_model_len=16_384, pp=pp, in_flight_batches=pp)
    check_plan(load_model(name), deployment, "full")


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("Qwen3.5-27B", (48, 16)),
        ("Qwen3.5-27B", (7, 50, 7)),
        ("Kimi-Linear-48B-A3B", (20, 7)),
        ("Nemotron-H-8B", (12, 28, 12)),
        ("gpt-oss-20b", (5, 19)),
        ("Gemma-3-27B", (50, 12)),
    ],
)
def test_stages_of_other_sizes_are_planned_as_vllm_deals_their_layers(
    name: str, partition: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pp = load_model(name), len(partition)
    cut: Any = {"pp": pp, "pp_partition": partition}
    deployment = Deployment(max_model_len=16_384, in_flight_batches=pp, **cut)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", ",".join(map(str, partition)))
    dealt = [get_pp_indices(model.num_layers, stage, pp) for stage in range(pp)]
    held = stages(model, model.layers, pp, partition)
    depths = {layer.depth for layer in model.layers}
    dealt_depths = [{it for it in depths if start <= it < end} for start, end in dealt]
    assert [{layer.depth for layer in stage} for stage in held] == dealt_depths
    check_plan(model, deployment, "full")
    even = msgspec.structs.replace(deployment, pp_partition=None)
    assert plan_natural(model, MEMORY, deployment) != plan_natural(model, MEMORY, even)


@pytest.mark.parametrize("name", ["Qwen3.5-27B", "Kimi-Linear-48B-A3B", "Phi-4"])
def test_ranks_that_share_out_blocks_hold_more_tokens(name: str) -> None:
    model, deployment = load_model(name), Deployment(max_model_len=16_384, in_flight_batches=1)
    ranks: Any = {"parallel_config__decode_context_parallel_size": 4}
    alone, shared = Engine(model, deployment, MEMORY), Engine(model, deployment, MEMORY, **ranks)
    config = shared.kv_cache_config
    assert isinstance(config, NaturalKVCacheConfig)
    hash_blocks = [
        resolve_kv_cache_block_sizes(it.scheduler_config(), it.config)[1] for it in (alone, shared)
    ]
    assert hash_blocks[1] == 4 * hash_blocks[0]
    held = shared.capacity()[0] / alone.capacity()[0]
    # A state is not shared out.
    assert held < 4 if model.is_hybrid else held == pytest.approx(4, 0.01)
    assert held > 2


def check_plan(model: Model, deployment: Deployment, checkpoint_format: StateFormat) -> None:
    """An engine plans as the planner does."""
    assert not natural_refusals(model, deployment)
    plan = plan_natural(model, MEMORY, deployment, checkpoint_format)
    engine = Engine(model, deployment, MEMORY)
    for config in engine.stage_configs:
        assert isinstance(config, NaturalKVCacheConfig)
        assert config.kept_pools == tuple(group.kept_pool for group in plan.groups)
        assert config.num_blocks == plan.num_slabs
        assert {tensor.size for tensor in config.kv_cache_tensors} == {plan.arena_bytes}
        assert config.blocks_per_slab == plan.pools
        assert config.pools == tuple(group.pool for group in plan.groups)
        for number, group in enumerate(plan.groups):
            if group.slots_per_request is None:
                assert config.num_slots(number) == plan.num_slots(group)
    for number, group in enumerate(plan.groups):
        held = [config.kv_cache_groups[number].layer_names for config in engine.stage_configs]
        depths = [int(name.split(".")[1]) for names in held for name in names]
        assert depths == list(group.layers)
        assert max(map(len, held)) == len(group.page_bytes)
    length = deployment.length(model)
    assert engine.capacity()[1] == capacity.concurrency(plan, length)
    assert engine.capacity()[0] == capacity.tokens(plan, length)


@pytest.mark.parametrize(
    ("name", "checkpoint_format"),
    [
        *((name, "int8") for name in SERVED if load_model(name).is_hybrid),
        *((name, "bf16") for name in ("Qwen3.5-27B", "Nemotron-H-8B", "Kimi-Linear-48B-A3B")),
    ],
)
def test_an_engine_cuts_slabs_for_checkpoints_of_the_plans_format(
    name: str, checkpoint_format: StateFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKPOINTS, f"learned/format={checkpoint_format}")
    model = load_model(name)
    deployment = Deployment(max_model_len=16_384, mamba_ssm_dtype="float32", in_flight_batches=1)
    shrinks = any(
        layer.cache.kept_bytes(rank := deployment.rank_of(layer, model), checkpoint_format)
        < layer.cache.state_bytes(rank)
        for layer in model.layers
        if isinstance(layer.cache, State)
    )
    check_plan(model, deployment, checkpoint_format if shrinks else "full")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"card": "L40S"},
        {"card": "B200", "num_speculative_tokens": 2},
        {"tp": 4, "num_speculative_tokens": 1},
        {"mamba_cache_mode": "none"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    [
        *("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Nemotron-3-Nano-30B-A3B", "Jamba-1.5-Mini"),
        *("Kimi-K3", "Kimi-Linear-48B-A3B", "LFM2-1.2B", "Gemma-3-27B"),
    ],
)
def test_vllms_own_plan_is_what_the_planner_says(name: str, options: dict[str, Any]) -> None:
    model = load_model(name)
    deployment = Deployment(max_model_len=16_384, in_flight_batches=1, release=RELEASE, **options)
    engine = Engine(model, deployment, MEMORY, cache_config__user_specified_block_size=True)
    config = engine.kv_cache_config
    memory = config.kv_cache_tensors[0].size
    theirs = logged_capacity.vllms_config(engine.config, config.kv_cache_groups, memory)
    assert theirs is not None
    planned = plan_vllm(model, memory, deployment)
    assert theirs.num_blocks == planned.num_blocks
    runs = logged_capacity.vllm_get_max_concurrency_for_kv_cache_config(engine.config, theirs)
    assert runs == planned.max_concurrency


def test_vllms_own_plan_fills_the_same_bytes_where_the_user_sets_a_number_of_slabs() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), Deployment(max_model_len=16_384), MEMORY)
    config = engine.kv_cache_config
    memory = config.kv_cache_tensors[0].size
    free = logged_capacity.vllms_config(engine.config, config.kv_cache_groups, memory)
    engine.config.cache_config.num_gpu_blocks_override = 60
    fixed = logged_capacity.vllms_config(engine.config, config.kv_cache_groups, memory)
    assert free is not None
    assert fixed is not None
    assert fixed.num_blocks == free.num_blocks != 60
    assert engine.config.cache_config.num_gpu_blocks_override == 60


@pytest.mark.parametrize("name", ["Gemma-3-27B", "Kimi-Linear-48B-A3B"])
def test_layers_that_workers_add_to_a_group_get_no_memory(name: str) -> None:
    """Workers add the layers that read another layer's cache."""
    config = Engine(load_model(name), Deployment(max_model_len=16_384), MEMORY).kv_cache_config
    held = [list(tensor.layers) for tensor in config.kv_cache_tensors]
    for group in config.kv_cache_groups:
        group.layer_names.append("shares")
    assert [list(tensor.layers) for tensor in config.kv_cache_tensors] == held


def test_a_configuration_reaches_workers_whole() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), Deployment(max_model_len=16_384), MEMORY)
    config = engine.kv_cache_config
    for received in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert isinstance(received, NaturalKVCacheConfig)
        assert received == config
