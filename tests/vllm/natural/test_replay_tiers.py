"""A replay with tiers at level ``natural`` finds what vLLM serves there, with the same bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.plan import Deployment
from hybrid_blocks.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.replay import Cache, EngineConfig, ReplayError, model_cache
from hybrid_blocks.replay.tiers.connector import TiersConnector
from hybrid_blocks.replay.tiers.loop import Loop
from hybrid_blocks.replay.tiers.result import TieredResult
from hybrid_blocks.replay.tiers.run import replay_tiers
from hybrid_blocks.replay.tiers.side import Side, default_sides
from hybrid_blocks.replay.tiers.sizes import TierBytes
from hybrid_blocks.replay.tiers.slabs import at_level_natural, slab_config
from hybrid_blocks.replay.tiers.worker import InstantWorker
from hybrid_blocks.trace import Trace, generate_workload, read_trace
from public_data import DATA
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from natural.engine import Engine

MIB = 2**20
AGENTS = DATA / "traces" / "claude_code_agentic_dev.jsonl.gz"
MODELS = ("LFM2-1.2B", "gpt-oss-20b", "Qwen3.5-27B", "Kimi-Linear-48B-A3B", "Gemma-3-27B")


def conversations() -> Trace:
    """More turns than device and host hold."""
    return generate_workload("conversations", 0, 60)


def cache_of(model: str, num_bytes: int, trace: Trace | None = None) -> Cache:
    length = None if trace is None else int(trace.total_tokens.max()) + 1
    deployment = Deployment(max_model_len=length, in_flight_batches=1, max_num_seqs=2)
    return model_cache(model, num_bytes, deployment)


CONFIG = EngineConfig(max_num_seqs=2, watermark=0)
DEVICE, HOST = 200 * MIB, 400 * MIB


def replayed(trace: Trace, side: Side = Side.NATURAL, disk: int = 0) -> TieredResult:
    cache = cache_of("LFM2-1.2B", DEVICE, trace)
    return replay_tiers(trace, cache, TierBytes(host=HOST, disk=disk), side, CONFIG)


@contextmanager
def served(trace: Trace) -> Iterator[Loop]:
    """Serve a trace with vLLM's planning, and the connector and spec that users name."""
    cache = cache_of("LFM2-1.2B", DEVICE, trace)
    deployment = cache.deployment
    assert deployment is not None
    with at_level_natural():
        config = Engine(load_model("LFM2-1.2B"), deployment, DEVICE).scheduler_config()
        groups = config.kv_cache_groups
        header = Header(
            rank_bytes=[it.kv_cache_spec.page_size_bytes * len(it.layer_names) for it in groups],
            layout={},
            structures=[],
        )
        transfer = KVTransferConfig(
            kv_connector="HybridOffloadingConnector",
            kv_connector_module_path="hybrid_blocks.offload.connector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "HybridOffloadingSpec",
                "spec_module_path": "hybrid_blocks.offload",
                "host": HOST,
            },
        )
        assert transfer.engine_id is not None
        region = Region.create(transfer.engine_id, HOST, 0, header)

        def configure(vllm_config: VllmConfig) -> None:
            vllm_config.scheduler_config.watermark = 0.0
            vllm_config.kv_transfer_config = transfer

        scheduler: Any = scheduler_over(
            config,
            num_requests=CONFIG.max_num_seqs,
            max_model_len=int(trace.total_tokens.max()) + 1,
            max_num_batched_tokens=CONFIG.max_num_batched_tokens,
            hash_block_size=16,
            scheduler_cls=Scheduler,
            configure=configure,
        )
        side = scheduler.connector.connector_scheduler
        spec: Any = SimpleNamespace(replicated_layout=False)
        worker = OffloadingConnectorWorker(spec, scheduler.vllm_config, config)
        worker.worker = InstantWorker()
        connector: Any = SimpleNamespace(connector_worker=worker)
        device: Any = SimpleNamespace(
            scheduler=scheduler,
            hasher=make_hasher(16),
            connector=SimpleNamespace(
                run=lambda scheduled: TiersConnector.run(connector, scheduled),
                has_pending_push_work=scheduler.connector.has_pending_push_work,
            ),
        )
        try:
            loop = Loop(trace, device, CONFIG.step_time, frozenset())
            loop.run(lambda _: None)
            yield loop
        finally:
            side.shutdown()
            region.cleanup()


def test_hits_by_tier_are_those_of_vllm_with_the_connector_of_users() -> None:
    trace = conversations()
    result = replayed(trace)
    device, host = (tier.hit_tokens for tier in result.tiers)
    with served(trace) as loop:
        assert (device, host) == (loop.device_hits, loop.hits[CacheHitSource.HOST])
        assert result.steps == loop.num_steps
        assert result.virtual_seconds == loop.now
    assert min(device, host) > 0
    assert (result.tiers[1].evicted_bytes or 0) > 0


def test_a_disk_gives_back_what_host_memory_evicted() -> None:
    trace = conversations()
    without, beside = replayed(trace), replayed(trace, disk=10 * HOST)
    device, host, disk = beside.tiers
    assert [tier.tier for tier in beside.tiers] == ["device", "host", "disk"]
    assert (without.tiers[1].evicted_bytes or 0) > 0, "host memory holds less than all"
    assert disk.evicted_bytes == 0, "the disk holds all"
    assert disk.hit_tokens > 0
    assert beside.hit_rate > without.hit_rate
    assert device.hit_tokens + host.hit_tokens + disk.hit_tokens == beside.hit_tokens
    assert beside.hit_rate >= replayed(trace, Side.HYBRID, disk=10 * HOST).hit_rate
    larger = cache_of("LFM2-1.2B", 64 * DEVICE, trace)
    everything = replay_tiers(trace, larger, TierBytes(host=HOST), Side.NATURAL, CONFIG)
    # A device so small leaves fewer checkpoints than one that holds all.
    assert 0.9 * everything.hit_rate < beside.hit_rate < everything.hit_rate


@pytest.mark.parametrize("model", MODELS)
def test_the_slabs_are_those_that_vllm_plans(model: str) -> None:
    cache = cache_of(model, 40 * 1024 * MIB)
    assert cache.deployment is not None
    length = cache.deployment.length(load_model(model))
    found = slab_config(cache.geometry, length, 0)
    with at_level_natural():
        planned: Any = Engine(
            load_model(model), cache.deployment, cache.memory_bytes
        ).scheduler_config()
    assert found.num_blocks == planned.num_blocks
    assert found.pools == planned.pools
    assert found.blocks_per_slab == planned.blocks_per_slab
    assert found.checkpoint_interval == planned.checkpoint_interval
    groups = zip(found.kv_cache_groups, planned.kv_cache_groups, strict=True)
    for ours, theirs in groups:
        assert len(ours.layer_names) == len(theirs.layer_names)
        mine, other = ours.kv_cache_spec, theirs.kv_cache_spec
        assert type(mine) is type(other)
        assert (mine.block_size, mine.page_size_bytes) == (other.block_size, other.page_size_bytes)
        for name in ("sliding_window", "attention_chunk_size", "mamba_cache_mode"):
            assert getattr(mine, name, None) == getattr(other, name, None)


def test_no_side_has_more_bytes_than_the_others() -> None:
    trace = conversations()
    cache = cache_of("LFM2-1.2B", DEVICE, trace)
    slab = cache.geometry.slab_bytes
    assert DEVICE - slab < cache.geometry.num_slabs * slab <= DEVICE
    for side in (Side.NATURAL, Side.HYBRID, Side.LRU):
        device, host = replayed(trace, side).tiers
        assert (device.total_bytes, host.total_bytes) == (DEVICE, HOST)
        assert 0 < (host.stored_bytes or 0) - (host.evicted_bytes or 0) <= HOST


@pytest.mark.skipif(not AGENTS.exists(), reason="the recorded trace is not here")
def test_of_recorded_agents_natural_finds_more_than_the_other_plan() -> None:
    trace = read_trace(AGENTS).head(24)
    config = EngineConfig(max_num_seqs=4, reject_too_large=True)
    cache = model_cache("Qwen3.5-27B", 5 * 2**30, Deployment(max_num_seqs=4, in_flight_batches=1))
    tiers, sides = TierBytes(host=15 * 2**30), (Side.NATURAL, Side.HYBRID, Side.LRU)
    ours, manager, theirs = (
        replay_tiers(trace, cache, tiers, side, config, beside=sides) for side in sides
    )
    assert ours.prompt_tokens == manager.prompt_tokens == theirs.prompt_tokens > 0
    assert ours.hit_tokens > manager.hit_tokens
    assert ours.hit_tokens > theirs.hit_tokens


@pytest.mark.parametrize(
    ("model", "has_natural"),
    [
        ("LFM2-1.2B", True),
        ("gpt-oss-20b", True),
        ("Granite-4.0-Micro", False),
        ("Qwen3.8-Flash-Next", False),
    ],
)
def test_level_natural_is_compared_where_it_differs(model: str, has_natural: bool) -> None:
    sides = default_sides(cache_of(model, 64 * 1024 * MIB))
    assert (Side.NATURAL in sides) == has_natural
    assert sides[-3:] == (Side.HYBRID, Side.LRU, Side.ARC)


def test_a_model_that_level_natural_refuses_says_why() -> None:
    cache = cache_of("Qwen3.8-Flash-Next", 64 * 1024 * MIB)
    with pytest.raises(ReplayError, match="does not run at level natural"):
        replay_tiers(conversations(), cache, TierBytes(host=HOST), Side.NATURAL, CONFIG)
