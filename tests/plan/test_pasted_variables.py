"""Variables before a pasted command: which of them change its figures."""

import re

import pytest
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.plan import plan_natural
from hybrid_blocks.tools.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.tools.read.command import read_command

GIB = 2**30
QWEN = "vllm serve Qwen/Qwen3.8-27B -pp 2 --max-model-len 65536"


def planned(text: str, gib: int) -> VllmPlan:
    command = read_command([text])
    return plan_vllm(command.model, gib * GIB, command.deployment)


@pytest.mark.parametrize(
    "text",
    [
        f"VLLM_PP_LAYER_PARTITION=48,16 {QWEN}",
        f"export VLLM_PP_LAYER_PARTITION=48,16\n{QWEN}",
        f"docker run -e VLLM_PP_LAYER_PARTITION=48,16 vllm/vllm-openai {QWEN}",
    ],
)
def test_a_partition_gives_the_layers_of_each_stage(text: str) -> None:
    plan = planned(text, 10)
    figures = (plan.num_blocks, int(plan.max_concurrency * 65536), f"{plan.max_concurrency:.2f}")
    assert figures == (278, 202_433, "3.09")
    assert planned(QWEN, 10).num_blocks == 417


@pytest.mark.parametrize("value", ["48", "48,17", "48,16,0", "64,0", "a,b", "", "9" * 400])
def test_a_partition_that_vllm_refuses_is_refused(value: str) -> None:
    with pytest.raises(PlanError, match="VLLM_PP_LAYER_PARTITION="):
        planned(f"VLLM_PP_LAYER_PARTITION={value} {QWEN}", 10)


@pytest.mark.parametrize(
    ("model", "checkpoints", "slabs", "mib"),
    [
        ("Qwen/Qwen3.5-27B", "learned", 332, 37),
        ("Qwen/Qwen3.5-27B", "learned/format=int8", 472, 26),
        ("Qwen/Qwen3.5-27B", "learned/format=bf16", 491, 25),
        ("nvidia/Nemotron-H-8B-Base-8K", "learned", 756, 16.25),
        ("nvidia/Nemotron-H-8B-Base-8K", "learned/format=int8", 725, 16.946),
    ],
)
def test_checkpoints_in_a_format_are_planned_as_the_engine_plans_them(
    model: str, checkpoints: str, slabs: int, mib: float
) -> None:
    length = "" if "Nemotron" in model else "--max-model-len 65536"
    variables = f"HYBRID_BLOCKS=natural HYBRID_BLOCKS_CHECKPOINTS={checkpoints}"
    command = read_command([f"{variables} vllm serve {model} {length}"])
    arena = plan_natural(command.model, 12 * GIB, command.deployment)
    assert arena.num_slabs == slabs
    assert arena.slab_bytes / 2**20 == pytest.approx(mib, abs=0.001)


@pytest.mark.parametrize("value", ["format=int8", "learned/format=int4", "nonsense"])
def test_checkpoints_that_the_engine_refuses_are_refused(value: str) -> None:
    with pytest.raises(PlanError, match="HYBRID_BLOCKS_CHECKPOINTS="):
        read_command([f"HYBRID_BLOCKS_CHECKPOINTS={value} vllm serve Qwen/Qwen3.5-27B"])


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ("", ""),
        ("VLLM_SSM_CONV_STATE_LAYOUT=DS", ""),
        ("VLLM_SSM_CONV_STATE_LAYOUT=SD", ""),
        ("VLLM_KV_CACHE_LAYOUT=HND", ""),
        ("VLLM_KV_CACHE_LAYOUT=NHD", ""),
        ("", "--watermark 0.02"),
    ],
)
def test_layouts_and_the_watermark_change_no_figure(variables: str, options: str) -> None:
    plan = planned(
        f"{variables} vllm serve Qwen/Qwen3.5-27B -tp 2 --max-model-len 65536 {options}", 24
    )
    assert (plan.num_blocks, f"{plan.max_concurrency:.2f}") == (1_003, "11.14")
    assert int(plan.max_concurrency * plan.max_model_len) == 730_362


@pytest.mark.parametrize(
    ("variable", "model"),
    [
        ("VLLM_KV_CACHE_LAYOUT=BLHNC", "Qwen3.5-27B"),
        ("VLLM_SSM_CONV_STATE_LAYOUT=X", "Qwen3.5-27B"),
        ("VLLM_MLA_DISABLE=1", "DeepSeek-V3"),
    ],
)
def test_a_variable_that_cannot_be_planned_is_named(variable: str, model: str) -> None:
    with pytest.raises(PlanError, match=re.escape(variable)):
        read_command([f"{variable} vllm serve {model}"])
