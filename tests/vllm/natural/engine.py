"""The planning of an engine, run through vLLM's own functions on the layers of a model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import plan_oracle
import torch
import vllm_planning
from hybrid_blocks.geometry.deployment import stages
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import State
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.natural import install
from plan_oracle import StateLayer
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_capacity
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.worker.gpu import attn_utils


class Backend:
    """Stands for CUDA's dense attention backends."""

    latent = False
    layouts: tuple[Any, ...] | None = None

    @classmethod
    def is_mla(cls) -> bool:
        return cls.latent

    @staticmethod
    def is_ssm() -> bool:
        return False

    @staticmethod
    def get_name() -> str:
        return "DENSE"

    @staticmethod
    def get_supported_kernel_block_sizes(_spec: KVCacheSpec | None = None) -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def get_preferred_block_size(default: int) -> int:
        return default

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...] | None:
        return cls.layouts

    @staticmethod
    def supports_block_size(size: int | None) -> bool:
        return size is None or size % 16 == 0

    @staticmethod
    def customize_spec(spec: KVCacheSpec) -> KVCacheSpec:
        return spec


class LatentBackend(Backend):
    """Stands for FlashAttention's and Triton's backends of latent attention."""

    latent = True


class AttentionLayer(AttentionLayerBase):
    """An attention layer that knows nothing but its cache."""

    def __init__(self, layer: Layer, oracle: "Engine") -> None:
        self.layer, self.oracle = layer, oracle
        self.is_draft_layer = layer.draft
        self.kv_cache: Any = None
        self.backend: Any = oracle.backend

    def get_attn_backend(self) -> Any:
        return self.backend

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        self.kv_cache = kv_cache

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec:
        return self.oracle.attention_spec(self.layer.cache, vllm_config.cache_config.block_size)


def _state_bytes(layer: StateLayer) -> int:
    pairs = zip(layer.shapes, layer.dtypes, strict=True)
    return sum(prod(shape) * dtype.itemsize for shape, dtype in pairs)


class Engine(plan_oracle.Oracle):
    """Plans of an engine core and its worker for a model at level ``natural``."""

    def __init__(
        self,
        model: Model,
        deployment: Deployment,
        memory_bytes: int,
        *,
        backend: type[Backend] | None = None,
        layout: str = "LBNHC",
        **config: Any,
    ) -> None:
        self.model, self.deployment = model, deployment
        latent = any(layer.cache.kind == "mla" for layer in model.layers)
        self.backend = backend or (LatentBackend if latent else Backend)
        self.config = plan_oracle._vllm_config(model, deployment)
        self.config.parallel_config.pipeline_parallel_size = deployment.pp
        self.config.cache_config.kv_cache_layout = layout
        self.config.cache_config.block_size = 16
        if deployment.num_speculative_tokens:
            drafter = plan_oracle.speculation(model, deployment.num_speculative_tokens)
            self.config.speculative_config = drafter
        for name, value in config.items():
            holder: Any = self.config
            *path, last = name.split("__")
            for part in path:
                holder = getattr(holder, part)
            setattr(holder, last, value)
        layers = model.active_layers(deployment.num_speculative_tokens)
        self.layer_of = {f"layers.{layer.depth}.{layer.cache.kind}": layer for layer in layers}
        self.layers: dict[str, Any] = {
            name: StateLayer(layer.cache, self)
            if isinstance(layer.cache, State)
            else AttentionLayer(layer, self)
            for name, layer in self.layer_of.items()
        }
        self.config.compilation_config.static_forward_context = self.layers
        with self._worker():
            if model.is_hybrid:
                Platform._align_hybrid_block_size(self.config, self.backend)  # type: ignore[arg-type]
            self.specs = attn_utils.get_kv_cache_spec(self.config)
        by_stage = [
            {name: spec for name, spec in self.specs.items() if self.layer_of[name] in held}
            for held in stages(model, tuple(layers), deployment.pp, deployment.pp_partition)
        ]
        memory = [memory_bytes] * deployment.pp
        self.groups, self.stage_configs = vllm_planning.plan(self.config, by_stage, memory)
        self.kv_cache_config: KVCacheConfig = self.stage_configs[0]

    @contextmanager
    def _worker(self) -> Iterator[None]:
        """Let vLLM find the states of the model, and only the backend above."""
        states = [layer for layer in self.layers.values() if isinstance(layer, StateLayer)]
        largest = max(states, key=_state_bytes, default=None)
        model_class = SimpleNamespace(
            get_mamba_state_shape_from_config=lambda _: largest and largest.shapes,
            get_mamba_state_dtype_from_config=lambda _: largest and largest.dtypes,
        )
        with (
            patch.object(Platform, "_find_non_ssm_backends", lambda _: [self.backend]),
            patch.object(ModelRegistry, "resolve_model_cls", lambda *_, **__: (model_class, "")),
        ):
            yield

    def scheduler_config(self) -> KVCacheConfig:
        """The configuration that the scheduler gets."""
        return generate_scheduler_kv_cache_config(self.stage_configs)

    def capacity(self) -> tuple[int, float]:
        """Tokens and requests of the maximum length, as vLLM logs them."""
        return get_kv_cache_capacity(self.config, self.scheduler_config())


@contextmanager
def installed() -> Iterator[None]:
    """Level ``natural``'s planning in vLLM's place, for workers with vLLM's second model runner."""
    install.install_planning()
    try:
        with (
            patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
            # The check asks for Triton, which the CPU build of 0.32 lacks; no worker starts here.
            patch.object(VllmConfig, "_validate_v2_model_runner", lambda _: None),
        ):
            yield
    finally:
        install.uninstall_planning()
