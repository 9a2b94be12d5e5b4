"""Configurations that level ``natural`` refuses, in worker and engine core alike."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import vllm.logger
from hybrid_blocks.geometry.kernel_blocks import DENSE_RUNS
from hybrid_blocks.model import Layer, Model, load_model
from hybrid_blocks.model.layer import FullAttention, Mamba2, SlidingWindow
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.natural import install, pipeline_stages, platform, refusal
from plan_oracle import StateLayer
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from natural.engine import Backend, Engine, installed

MEMORY = 24 * 2**30
DEPLOYMENT = Deployment(max_model_len=16_384)
STATE = Mamba2(inner_dim=64, groups=1, heads=4, head_dim=16, state_dim=32, conv_kernel=4)


@pytest.fixture(autouse=True)
def natural() -> Iterator[None]:
    with installed():
        yield


class FlatBackend(Backend):
    """A backend that flattens blocks and tokens, as FlexAttention."""

    layouts = (KVCacheLayout.LBNHC,)


class PackedBackend(Backend):
    """A backend that takes blocks of all layers, as FlashInfer on some GPUs."""

    layouts = (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC)


def connector(name: str, module: str | None = None, **extra: Any) -> Any:
    """Return the ``--kv-transfer-config`` of a connector."""
    return SimpleNamespace(
        has_connector=lambda _: False,
        kv_connector=name,
        kv_connector_module_path=module,
        kv_connector_extra_config=extra,
    )


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the KV connector NixlConnector": {"kv_transfer_config": connector("NixlConnector")},
    "the KV connector OffloadingConnector with CPUOffloadingSpec": {
        "kv_transfer_config": connector("OffloadingConnector")
    },
    "the KV connector HybridNixlConnector with bidirectional_kv_xfer": {
        "kv_transfer_config": connector(
            "HybridNixlConnector", "hybrid_blocks.offload.nixl", bidirectional_kv_xfer=True
        )
    },
    "auxiliary outputs": {"aux_output_config__enable_return_routed_experts": True},
    "ReplaySSM": {"cache_config__use_replayssm": True},
    "KV-cache residency metrics": {"observability_config__kv_cache_metrics": True},
    "no hybrid KV cache manager": {"scheduler_config__disable_hybrid_kv_cache_manager": True},
    "an attention backend that reads blocks as one dense run": {"backend": FlatBackend},
    "prefix_match_unit": {"cache_config__prefix_match_unit": 8},
}


REFUSED = [(name, why) for name in ("Qwen3.5-27B", "Gemma-3-27B") for why in CONFIGURATIONS]
# Without states vLLM itself checks the unit.
REFUSED.remove(("Gemma-3-27B", "prefix_match_unit"))
# vLLM serves no states without its hybrid manager.
REFUSED.remove(("Qwen3.5-27B", "no hybrid KV cache manager"))


@pytest.mark.parametrize(("name", "why"), REFUSED)
def test_a_refused_engine_plans_as_vllm_does(name: str, why: str) -> None:
    options = CONFIGURATIONS[why]
    engine = Engine(load_model(name), DEPLOYMENT, MEMORY, **options)
    said = refusal.reason_to_plan(engine.config, engine.specs)
    assert said is not None
    assert why in said or "Mamba blocks of" in said
    assert not isinstance(engine.kv_cache_config, NaturalKVCacheConfig)
    install.uninstall_planning()
    stock = Engine(load_model(name), DEPLOYMENT, MEMORY, **options)
    assert engine.kv_cache_config.num_blocks == stock.kv_cache_config.num_blocks
    assert engine.kv_cache_config.kv_cache_tensors == stock.kv_cache_config.kv_cache_tensors
    assert engine.config.cache_config.block_size == stock.config.cache_config.block_size


@pytest.mark.parametrize("name", [*DENSE_RUNS, "FLASH_ATTN", "TRITON_ATTN", "B12X"])
def test_the_backends_that_plan_knows_to_read_dense_runs_do_so(name: str) -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
    marked = refusal.mark(AttentionBackendEnum[name].get_class(), spec)
    assert (marked != spec) is (name in DENSE_RUNS)


def test_backends_that_take_blocks_of_all_layers_are_served() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY, backend=PackedBackend)
    assert isinstance(engine.kv_cache_config, NaturalKVCacheConfig)


def test_a_core_without_its_workers_part_plans_as_vllm_does() -> None:
    """Workers without the plugin inflate blocks; the core sees it in the layers' specs."""
    with patch.object(Platform, "_align_hybrid_block_size", platform.vllm_align_hybrid_block_size):
        engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    assert not isinstance(engine.kv_cache_config, NaturalKVCacheConfig)


def test_a_platform_with_a_builder_of_its_own_keeps_it() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    own = classmethod(lambda _cls, _config: "some.Builder")
    with patch.object(type(current_platform), "get_kv_cache_config_builder_cls", own):
        said = refusal.reason(engine.config, engine.specs)
    assert said is not None
    assert said.startswith("platform")


def made(*caches: Any) -> Engine:
    """Plan for a model of these layers."""
    layers = tuple(Layer(depth, cache) for depth, cache in enumerate(caches))
    model = Model(name="made", model_type="made", num_layers=len(layers), layers=layers)
    return Engine(model, Deployment(max_model_len=256), 2**28)


def why_refused(*caches: Any) -> str | None:
    engine = made(*caches)
    return refusal.reason_to_plan(engine.config, engine.specs)


FULL = FullAttention(kv_heads=1, head_dim=32)
WINDOW = SlidingWindow(kv_heads=4, head_dim=32, window=64)


@pytest.mark.parametrize("caches", [(FULL, STATE), (FULL, WINDOW)])
def test_caches_of_two_number_formats_are_refused(caches: tuple[Any, ...]) -> None:
    """Old numbers of one format may be no numbers in another, and no block is cleared between.

    vLLM clears blocks where states or a second format share them, and no others; here none is
    shared with states uncleared, so one format is what is left to ask for.
    """
    engine = made(*caches, FULL)
    assert refusal.reason(engine.config, engine.specs) is None
    last = list(engine.specs)[-1]
    spec: Any = engine.specs[last]
    other = replace(spec, dtype=torch.float8_e4m3fn)
    said = refusal.reason(engine.config, engine.specs | {last: other})
    assert said == "attention caches of 2 number formats"
    own = {name: one for name, one in engine.specs.items() if not isinstance(one, MambaSpec)}
    attention = [KVCacheGroupSpec([name], one) for name, one in own.items()]
    assert not KVCacheConfig(2, [], attention).needs_kv_cache_zeroing
    attention.append(KVCacheGroupSpec([last], other))
    assert KVCacheConfig(2, [], attention).needs_kv_cache_zeroing


def test_vllms_first_cpu_runner_zeroes_one_kind_of_full_attention_and_no_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = FullAttention(kv_heads=2, head_dim=32)
    for uses_second, is_refused in (("1", False), ("0", True)):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", uses_second)
        planned: Any = made(FULL, STATE).kv_cache_config
        assert planned.zeroes_single_blocks is is_refused
        windows, kinds = why_refused(FULL, WINDOW, STATE), why_refused(FULL, other, STATE)
        assert (windows is not None) is (kinds is not None) is is_refused
    assert str(windows).startswith("windowed attention beside states")
    assert str(kinds).startswith("full attention of 2 kinds beside states")
    # Nothing is zeroed where there are no states.
    assert why_refused(FULL, WINDOW) is None
    assert why_refused(FULL, other) is None


def test_more_requests_than_slabs_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notes(logging.Handler):
        records: list[str] = []  # noqa: RUF012 - one handler, one test

        def emit(self, record: logging.LogRecord) -> None:
            self.records.append(record.getMessage())

    heard = Notes()
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    # Another test may have had the same said.
    for said_once in (vllm.logger._print_info_once, vllm.logger._print_warning_once):
        said_once.cache_clear()
    with patch.object(logger, "handlers", [heard]):
        engine = Engine(
            load_model("Nemotron-H-47B"), DEPLOYMENT, MEMORY, scheduler_config__max_num_seqs=1024
        )
        engine.capacity()
    said = " ".join(heard.records)
    assert "max_num_seqs 1,024 exceeds the 169 slabs" in said
    assert "--max-num-seqs 169" in said
    assert "slabs of 145" in said
    assert "vLLM would log" in said


@pytest.mark.parametrize("name", ["Qwen3.5-27B", "Gemma-3-27B"])
def test_own_offload_is_laid_out_in_slabs(name: str) -> None:
    own = connector("OffloadingConnector", spec_name="HybridOffloadingSpec")
    engine = Engine(load_model(name), DEPLOYMENT, MEMORY, kv_transfer_config=own)
    assert refusal.reason_to_plan(engine.config, engine.specs) is None
    assert isinstance(engine.kv_cache_config, NaturalKVCacheConfig)


@pytest.mark.parametrize("split", ["pipeline", "decode_context"])
def test_a_connector_beside_layers_or_tokens_that_are_split_is_refused(split: str) -> None:
    engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    setattr(engine.config.parallel_config, f"{split}_parallel_size", 2)
    assert refusal.reason(engine.config, engine.specs) is None
    spec = {"spec_name": "HybridOffloadingSpec"}
    engine.config.kv_transfer_config = connector("OffloadingConnector", **spec)
    why = f"{split.replace('_', ' ')} parallelism beside a KV connector"
    assert refusal.reason(engine.config, engine.specs) == why


def test_a_stage_that_cannot_read_slabs_keeps_them_from_the_others() -> None:
    def gathered(_: VllmConfig, own: dict[str, Any]) -> list[dict[str, Any]]:
        name, spec = next(it for it in own.items() if isinstance(it[1], FullAttentionSpec))
        return [own, {f"{name}.next": replace(spec, block_stride_alignment=refusal.DENSE_ONLY)}]

    alone = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    with patch.object(pipeline_stages, "gathered", gathered):
        engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    assert alone.config.cache_config.block_size == 16
    assert engine.config.cache_config.block_size == 784
    assert not isinstance(engine.kv_cache_config, NaturalKVCacheConfig)


def test_a_drafter_that_holds_whole_blocks_is_refused_where_ranks_share_them_out() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    engine.config.parallel_config.decode_context_parallel_size = 2
    for method, why in (("dflash", "a block drafter beside decode"), ("mtp", None)):
        drafts: Any = SimpleNamespace(method=method)
        engine.config.speculative_config = drafts
        assert str(refusal._of_config(engine.config)).startswith(str(why))


def test_a_stage_without_attention_sizes_blocks_for_the_backends_of_the_others() -> None:
    engine = Engine(load_model("Qwen3.5-27B"), DEPLOYMENT, MEMORY)
    states = {n: one for n, one in engine.layers.items() if isinstance(one, StateLayer)}
    engine.config.compilation_config.static_forward_context = states
    assert Platform._find_non_ssm_backends(engine.config) == []
    with patch.object(
        pipeline_stages, "gathered", lambda _, own: [own, [PackedBackend], [PackedBackend]]
    ):
        found: list[Any] = Platform._find_non_ssm_backends(engine.config)
    assert found == [PackedBackend]
