"""The plan of a built-in model equals what vLLM's own planning code makes of its layers."""

import msgspec
import pytest
from hybrid_blocks.geometry.deployment import stages
from hybrid_blocks.model import Model, PlanError, from_config, load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import Deployment, plan_vllm
from hybrid_blocks.tools.read.log_lines import read_lines
from plan_oracle import INDEX, RELEASE, Oracle
from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig
from vllm.distributed.utils import get_pp_indices
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.core import kv_cache_planning

MEMORY = 80 * 2**30

REFUSED = {
    "tp8": (
        "Falcon-H1-7B",
        "Falcon-H1-34B",
        "Falcon-H1-3B",
        "Granite-4.0-H-Tiny",
        "Granite-4.0-H-1B",
        "Olmo-Hybrid-7B",
        "Phi-4",
    ),
    "pp2": ("Gemma-4-E2B",),
    "pp3": ("Gemma-4-E2B",),
}
"""Heads that do not divide, and stages whose layers all share caches of an earlier stage."""

DEPLOYMENTS = {
    "plain": Deployment(max_model_len=8192),
    "fp8": Deployment(max_model_len=40_000, kv_cache_dtype="fp8"),
    "speculating": Deployment(max_model_len=8192, num_speculative_tokens=3),
    "tp2": Deployment(max_model_len=16_384, tp=2, max_num_batched_tokens=2048),
    "tp8": Deployment(max_model_len=8192, tp=8),
    "no-prefix-cache": Deployment(max_model_len=8192, mamba_cache_mode="none"),
    "float32-state": Deployment(max_model_len=8192, mamba_ssm_dtype="float32"),
    "one batch": Deployment(max_model_len=8192, in_flight_batches=1),
    "pp2": Deployment(max_model_len=8192, pp=2, num_speculative_tokens=1, in_flight_batches=2),
    "pp3": Deployment(max_model_len=8192, pp=3, in_flight_batches=2),
    "blackwell": Deployment(max_model_len=8192, card="B200", num_speculative_tokens=1),
    "ada": Deployment(max_model_len=8192, card="L40S"),
}


@pytest.mark.parametrize("deployment", DEPLOYMENTS)
@pytest.mark.parametrize("name", entries())
def test_the_plan_of_a_built_in_model_equals_vllms_own(name: str, deployment: str) -> None:
    model, options = load_model(name), DEPLOYMENTS[deployment]
    if name in REFUSED.get(deployment, ()):
        with pytest.raises(PlanError, match=f"--{deployment[:2]} {deployment[2:]}"):
            plan_vllm(model, MEMORY, options)
        return
    _compare(model, options)


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("Gemma-3-27B", (40, 22)),
        ("Qwen3.8-27B", (48, 16)),
        ("Qwen3.8-27B", (20, 12, 16, 16)),
        ("Qwen3-Next-80B-A3B", (1, 47)),
        ("Nemotron-H-8B", (30, 22)),
        ("Kimi-Linear-48B-A3B", (9, 9, 9)),
    ],
    ids=str,
)
def test_the_plan_of_a_partition_equals_vllms_own(
    name: str, partition: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pp = load_model(name), len(partition)
    options = Deployment(max_model_len=8192, pp=pp, pp_partition=partition, in_flight_batches=2)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", ",".join(map(str, partition)))
    cut = [get_pp_indices(model.num_layers, rank, pp) for rank in range(pp)]
    ours = stages(model, model.layers, pp, partition)
    assert [{layer.depth for layer in stage} for stage in ours] == [
        {layer.depth for layer in model.layers if begin <= layer.depth < end} for begin, end in cut
    ]
    _compare(model, options)


@pytest.mark.parametrize("deployment", ["plain", "fp8", "speculating", "tp2", "pp3"])
def test_the_plan_of_sparse_latents_equals_vllms_own(deployment: str) -> None:
    fields: dict[str, object] = {"model_type": "deepseek_v32", "num_nextn_predict_layers": 1}
    fields |= {"index_topk": 2048, "index_head_dim": 128, "index_topk_freq": 4}
    _compare(from_config(fields, "sparse"), DEPLOYMENTS[deployment])


def _compare(model: Model, options: Deployment) -> None:
    options = msgspec.structs.replace(options, release=RELEASE)
    plan = plan_vllm(model, MEMORY, options)
    oracle = Oracle(model, options, MEMORY)
    assert plan.block_tokens == oracle.block_tokens
    assert plan.num_blocks == oracle.num_blocks
    assert [len(group.members) for group in plan.groups] == [
        sum(not name.endswith(INDEX) for name in group.layer_names) for group in oracle.groups
    ]
    sizes = [group.kv_cache_spec.block_size for group in oracle.groups]
    assert [group.spec.block_tokens for group in plan.groups] == sizes
    assert plan.max_concurrency == oracle.concurrency
    assert plan.tokens == oracle.tokens


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_the_batches_in_flight_on_a_gpu_are_vllms(pp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    config = VllmConfig()
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.max_num_batched_tokens = 512
    config.parallel_config.pipeline_parallel_size = pp
    planned = Deployment(pp=pp, max_num_batched_tokens=512).in_flight_tokens
    assert planned == config.max_in_flight_tokens


@pytest.mark.parametrize("name", ["Qwen3.5-27B", "Nemotron-H-8B"])
def test_vllm_captures_graphs_for_as_many_sequences_as_the_plan_says(name: str) -> None:
    model, options = load_model(name), DEPLOYMENTS["plain"]
    most = plan_vllm(model, MEMORY, options).cuda_graph_batch
    assert most is not None
    config = Oracle(model, options, MEMORY).configs[0]

    def capture(max_num_seqs: int) -> None:
        CompilationConfig(
            cudagraph_mode=CUDAGraphMode.FULL_DECODE_ONLY
        ).resolve_cudagraph_mode_and_sizes(
            AttentionCGSupport.ALWAYS, None, kv_cache_config=config, max_num_reqs=max_num_seqs
        )

    capture(most)
    with pytest.raises(ValueError, match=rf"lower max_num_seqs to at most {most} "):
        capture(most + 1)


def test_vllms_own_line_of_a_failed_start_is_read() -> None:
    check = kv_cache_planning._check_enough_kv_cache_memory
    with pytest.raises(ValueError, match="KV cache is needed") as raised:
        check(12 << 30, lambda: 17 << 30, 262_144, lambda _: 190_512)
    log = read_lines([str(raised.value)])
    found = [log.last(fact) for fact in ("needed", "usable", "longest")]
    assert found == ["17.0", "12.0", "190512"]
    assert "262144 tokens" in log.troubles[0][1]
