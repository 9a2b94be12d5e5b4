"""Every reason of the table is given by the code that decides it."""

import dataclasses
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hybrid_blocks.connector import Connector
from hybrid_blocks.reasons import REASONS
from hybrid_blocks.tools.doctor import answer
from hybrid_blocks.vllm.level import Grant, Level
from hybrid_blocks.vllm.manager.geometry import unsupported_reason
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.natural import refusal
from hybrid_blocks.vllm.scheduler import batching
from oracle.engines import ENGINES, full, mamba, mla, sliding
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheSpec, RSWASpec

Produce = Callable[[pytest.MonkeyPatch], str | None]

NATIVE = NativeKVCacheManager.__new__(NativeKVCacheManager)
SIZES: dict[str, Any] = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
PULLS = ("HybridNixlConnector", "hybrid_blocks.offload.nixl")
DEFAULTS = {
    "parallel_config.decode_context_parallel_size": 1,
    "parallel_config.prefill_context_parallel_size": 1,
    "parallel_config.pipeline_parallel_size": 1,
    "cache_config.use_replayssm": False,
    "cache_config.kv_cache_dtype_skip_layers": [],
    "cache_config.prefix_match_unit": None,
    "cache_config.enable_prefix_caching": True,
    "model_config.supports_kv_cache_grouping": False,
    "model_config.max_model_len": 64,
    "observability_config.kv_cache_metrics": False,
    "aux_output_config.enabled": False,
    "attention_config.hisparse_config": None,
    "scheduler_config.disable_hybrid_kv_cache_manager": False,
    "kv_transfer_config": None,
    "speculative_config": None,
    "use_v2_model_runner": True,
}


def config(changed: dict[str, Any]) -> Any:
    made = SimpleNamespace()
    for path, value in (DEFAULTS | changed).items():
        holder = made
        *folders, last = path.split(".")
        for folder in folders:
            vars(holder).setdefault(folder, SimpleNamespace())
            holder = getattr(holder, folder)
        setattr(holder, last, value)
    return made


def engine(*specs: Any, **changed: Any) -> Produce:
    """Ask whether level ``natural`` may plan layers of these specs, full attention by default."""
    paths = {name.replace("__", "."): value for name, value in changed.items()}
    layers = {f"layer{number}": spec for number, spec in enumerate(specs or (full(4),))}
    return lambda _: refusal.reason_to_plan(config(paths), layers)


def on_another_platform(patch: pytest.MonkeyPatch) -> str | None:
    other = SimpleNamespace(device_name="tpu", is_cuda=lambda: False, is_cpu=lambda: False)
    patch.setattr(refusal, "current_platform", other)
    return engine()(patch)


def with_connector(name: str, *, module: str | None = None, **asked: Any) -> Produce:
    extra = asked.pop("extra", {})
    return lambda _: Connector(name, module, extra).refused({}, **asked)


def with_format(*specs: Any, **changed: Any) -> Produce:
    paths = {name.replace("__", "."): value for name, value in changed.items()}
    layers = dict(enumerate(specs))
    return lambda _: refusal.format_reason(config(paths), layers, "int8")  # type: ignore[arg-type]


def with_other_copies(patch: pytest.MonkeyPatch) -> str | None:
    patch.setattr(refusal, "worker_grant", lambda level: Grant(level, ("a parameter is new",)))
    return with_format(STATE)(patch)


def group(spec: Any, hash_block_size: int = 4) -> Produce:
    made = dataclasses.replace(ENGINES["full"], groups=(full(4), spec), enable_caching=False)
    return lambda _: unsupported_reason(made.config(), hash_block_size=hash_block_size)


def scheduler(**changed: Any) -> Produce:
    absent = ("dynamic_sd_lookup", "aux_output_connector")
    usual = {"kv_cache_manager": NATIVE, "num_sampled_tokens_per_step": 1, **dict.fromkeys(absent)}
    usual |= dict.fromkeys(("is_encoder_decoder", "is_mm_encoder_only"), False)
    made: Any = SimpleNamespace(**usual | changed)
    return lambda _: batching.unsupported_reason(made)


class Replaced(Scheduler):
    def _update_request_with_output(self, *_: Any) -> Any:
        """Replaces vLLM's method, so that one call would pass it by."""


def with_outputs_left(patch: pytest.MonkeyPatch) -> str | None:
    patch.setattr(answer, "scheduler_grant", lambda: Grant(Level.MANAGER))
    patch.setattr(batching, "unsupported_reason", lambda _: None)
    return answer._one_by_one(SimpleNamespace(scheduler=None, num_left=1))  # type: ignore[arg-type]


def replace(spec: KVCacheSpec, **fields: Any) -> KVCacheSpec:
    """Change fields that only some specs have."""
    return dataclasses.replace(spec, **fields)


STATE = replace(mamba(128, "align"), shapes=((1,), (2, 4, 4)), dtypes=(torch.float32,) * 2)
PRODUCED: dict[str, Produce] = {
    "pcp": engine(parallel_config__prefill_context_parallel_size=2),
    "block_drafter_with_dcp": engine(
        parallel_config__decode_context_parallel_size=2,
        speculative_config=SimpleNamespace(method="dflash"),
    ),
    "connector": with_connector("NixlConnector"),
    "connector_option": with_connector("OffloadingConnector"),
    "drafts_with_connector": with_connector(PULLS[0], module=PULLS[1], drafts=True),
    "pp_with_connector": with_connector("OffloadingConnector", pp=2),
    "dcp_with_connector": with_connector("OffloadingConnector", dcp=2),
    "aux_outputs": engine(aux_output_config__enabled=True),
    "hisparse": engine(attention_config__hisparse_config=object()),
    "replay_ssm": engine(cache_config__use_replayssm=True),
    "residency_metrics": engine(observability_config__kv_cache_metrics=True),
    "skipped_quantization": engine(cache_config__kv_cache_dtype_skip_layers=["0"]),
    "no_hybrid_manager": engine(scheduler_config__disable_hybrid_kv_cache_manager=True),
    "own_grouping": engine(model_config__supports_kv_cache_grouping=True),
    "platform": on_another_platform,
    "no_attention": engine(STATE),
    "cache_kind": engine(CrossAttentionSpec(**SIZES)),
    "dense_run": engine(replace(full(4), block_stride_alignment=refusal.DENSE_ONLY)),
    "padded_pages": engine(replace(full(4), page_size_padded=4096)),
    "compressed": engine(replace(mla(4), tokens_per_state=4)),
    "sparse_latent": engine(replace(mla(4), model_version="deepseek_v4")),
    "state_shapes": engine(full(4), STATE, mamba(128, "align")),
    "number_formats": engine(full(4), replace(full(4), dtype=torch.float16)),
    "block_sizes": engine(full(4), full(8)),
    "windows_with_dcp": engine(sliding(4, 8), parallel_config__decode_context_parallel_size=2),
    "prefix_match_unit": engine(full(4), STATE, cache_config__prefix_match_unit=8),
    "full_kinds_on_cpu": engine(
        full(4), replace(full(4), num_kv_heads=2), STATE, use_v2_model_runner=False
    ),
    "windows_on_cpu": engine(full(4), sliding(4, 8), STATE, use_v2_model_runner=False),
    "padded_states": engine(full(4), replace(STATE, page_size_padded=4096)),
    "short_state_blocks": engine(full(4), replace(STATE, block_size=8)),
    "differs": lambda _: Grant(Level.POOL, ("a parameter is new",)).reason,
    "group_manager": group(RSWASpec(rswa_window=8, **SIZES)),
    "uncached_group": lambda _: unsupported_reason(
        ENGINES["replayed-full"].config(), hash_block_size=8
    ),
    "mamba_mode": engine(full(4), mamba(128, "all")),
    "not_at_manager": scheduler(kv_cache_manager=None),
    "drafts_by_batch": scheduler(dynamic_sd_lookup=object()),
    "samples_other": scheduler(num_sampled_tokens_per_step=0),
    "encoder_decoder": scheduler(is_encoder_decoder=True),
    "encoder_only": scheduler(is_mm_encoder_only=True),
    "aux_connector": scheduler(aux_output_connector=object()),
    "replaced_methods": lambda _: batching.foreign_reason(Replaced),
    "outputs_left": with_outputs_left,
    "no_prefix_cache": with_format(STATE, cache_config__enable_prefix_caching=False),
    "nothing_smaller": with_format(mamba(128, "align")),
    "pp_with_format": with_format(STATE, parallel_config__pipeline_parallel_size=2),
    "connector_with_format": with_format(STATE, kv_transfer_config=SimpleNamespace()),
    "vllms_copies": with_other_copies,
}


# `natural/test_prefill_checkpoints.py` holds those that end chunks.
KEYS = [key for key, reason in REASONS.items() if reason.keeps_from != "prefill checkpoints"]


@pytest.mark.parametrize("key", KEYS)
def test_the_code_that_decides_gives_the_reason(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = map(re.escape, re.split(r"\{\w+\}", REASONS[key].sentence))
    assert re.fullmatch(".+".join(parts) + r"( \(layer\d\))?", str(PRODUCED[key](monkeypatch)))


def test_an_engine_without_any_of_them_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine(full(4), STATE)(monkeypatch) is None
    assert with_format(STATE)(monkeypatch) is None
