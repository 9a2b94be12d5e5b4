"""vLLM's own planning code, run on the layers of a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import lcm
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import vllm
import vllm_planning
from hybrid_blocks.geometry.deployment import stages
from hybrid_blocks.geometry.kernel_blocks import block_tokens
from hybrid_blocks.model import Layer, Model
from hybrid_blocks.model.layer import (
    ChunkedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LatentIndex,
    LightningAttention,
    Mamba1,
    Mamba2,
    RgLru,
    ShortConv,
    SlidingWindow,
    State,
)
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.vllm import align
from hybrid_blocks.vllm.surface.support import ordered, release_of
from vllm.config import VllmConfig
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import (
    MambaStateDtypeCalculator,
    MambaStateShapeCalculator,
)
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.utils.math_utils import round_up
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1 import kv_cache_interface
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, get_kv_cache_capacity
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

Shapes = tuple[tuple[int, ...], ...]
Dtypes = tuple[torch.dtype, ...]


RELEASE: Any = ordered(str(release_of(vllm.__version__)))
"""The installed vLLM, which a deployment names."""

INDEX = ".index"
"""Ends the name of an index's cache, which the plan counts with its layer."""


class Oracle:
    """vLLM's plan for a model, as vLLM itself makes it.

    ``match_unit`` is ``--prefix-match-unit``.
    """

    def __init__(
        self, model: Model, deployment: Deployment, memory_bytes: int, match_unit: int | None = None
    ) -> None:
        self.model = model
        self.deployment = deployment
        self.config = _vllm_config(model, deployment)
        if deployment.num_speculative_tokens:
            self.config.speculative_config = speculation(model, deployment.num_speculative_tokens)
        if match_unit is not None:
            self.config.cache_config.prefix_match_unit = match_unit
        is_async = deployment.in_flight_tokens > deployment.max_num_batched_tokens
        self.config.scheduler_config.async_scheduling = is_async
        assert self.config.max_in_flight_tokens == deployment.in_flight_tokens
        layers = model.active_layers(deployment.num_speculative_tokens)
        self.config.compilation_config.static_forward_context = {
            _name(it): StateLayer(it.cache, self) for it in layers if isinstance(it.cache, State)
        }
        self.block_tokens = self._block_size()
        workers = [
            {_name(layer): self._spec(layer) for layer in stage} | self._sparse(stage)
            for stage in stages(model, layers, deployment.pp, deployment.pp_partition)
        ]
        self.configs: list[KVCacheConfig]
        memory = [memory_bytes] * deployment.pp
        self.groups, self.configs = vllm_planning.plan(self.config, workers, memory)
        scheduler_config = generate_scheduler_kv_cache_config(self.configs)
        self.tokens, self.concurrency = get_kv_cache_capacity(self.config, scheduler_config)

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.configs[0].num_blocks

    def _states(self) -> list[State]:
        return [layer.cache for layer in self.model.layers if isinstance(layer.cache, State)]

    def _dtype(self) -> torch.dtype:
        name = self.deployment.kv_cache_dtype
        return STR_DTYPE_TO_TORCH_DTYPE[name if name != "auto" else self.model.dtype]

    def _block_size(self) -> int:
        if not self.model.is_hybrid:
            return block_tokens(self.model, self.deployment)
        with _fake_backend(max(self._states(), key=_size(self)), self):
            Platform._align_hybrid_block_size(self.config, _Backend)  # type: ignore[arg-type]
        block_size: int = self.config.cache_config.block_size
        return block_size

    def state(self, cache: State) -> tuple[Shapes, Dtypes]:  # noqa: PLR0911
        """Shapes and formats from vLLM's own calculators."""
        tp, spec = self.deployment.tp, self.deployment.num_speculative_tokens
        shape, dtype = MambaStateShapeCalculator, MambaStateDtypeCalculator
        model_dtype = STR_DTYPE_TO_TORCH_DTYPE[self.model.dtype]
        ssm: Any = self.deployment.mamba_ssm_dtype
        if ssm == "auto":
            ssm = cache.ssm_dtype or "auto"
        mamba = dtype._mamba_state_dtype(model_dtype, "auto", ssm)
        match cache:
            case GatedDeltaNet():
                keys = (cache.key_heads, cache.value_heads, cache.key_dim, cache.value_dim)
                shapes = shape.gated_delta_net_state_shape(tp, *keys, cache.conv_kernel, spec)
                return shapes, mamba
            case Mamba1():
                return shape.mamba1_state_shape(
                    tp, cache.inner_dim, cache.state_dim, cache.conv_kernel
                ), mamba
            case Mamba2():
                heads: Any = {"num_heads": cache.heads, "head_dim": cache.head_dim}
                sizes: Any = {"n_groups": cache.groups, "state_size": cache.state_dim, **heads}
                sizes |= {"intermediate_size": cache.inner_dim, "conv_kernel": cache.conv_kernel}
                shapes = shape.mamba2_state_shape(tp_world_size=tp, num_spec=spec, **sizes)
                return shapes, mamba
            case KimiDeltaAttention():
                own: Any = {"conv_kernel_size": cache.conv_kernel, "num_spec": spec}
                shapes = shape.kda_state_shape(tp, cache.heads, cache.head_dim, **own)
                return shapes, dtype.kda_state_dtype(model_dtype, "auto", ssm)
            case LightningAttention():
                return shape.linear_attention_state_shape(
                    cache.heads, tp, cache.head_dim
                ), dtype.linear_attention_state_dtype(model_dtype, "auto")
            case ShortConv():
                return shape.short_conv_state_shape(
                    tp, cache.width, cache.conv_kernel, spec
                ), dtype.short_conv_state_dtype(model_dtype, "auto")
            case RgLru():
                # vLLM has no such layer any more; a Mamba-1 with one state column is the same size.
                return shape.mamba1_state_shape(tp, cache.width, 1, cache.conv_kernel + spec), mamba
        raise AssertionError(cache)

    def _spec(self, layer: Layer) -> KVCacheSpec:
        cache = layer.cache
        if isinstance(cache, State):
            held: Any = self.config.compilation_config.static_forward_context[_name(layer)]
            spec = held.get_kv_cache_spec(self.config)
            assert isinstance(spec, MambaSpec)
            return replace(spec, num_speculative_blocks=self.deployment.num_speculative_tokens)
        spec = self.attention_spec(cache, self.block_tokens)
        # Before 0.33 vLLM told a drafter's layers by their names.
        is_told = layer.draft and hasattr(spec, "is_draft")
        return replace(spec, is_draft=True) if is_told else spec

    def _sparse(self, stage: tuple[Layer, ...]) -> dict[str, KVCacheSpec]:
        """Specs of what sparse attention keeps beside its layers, as Qwen4-Exp's model has them."""
        speculative = self.deployment.num_speculative_tokens
        specs: dict[str, KVCacheSpec] = {}
        for convolution in self.model.convolutions:
            if convolution.depth in {layer.depth for layer in stage}:
                like: Any = self._spec(next(layer for layer in stage if not layer.depth))
                shape = (convolution.columns + speculative, convolution.width)
                own = replace(like, shapes=(shape,), dtypes=(torch.bfloat16,), tp_replicated=True)
                specs[f"layers.{convolution.depth}.ple"] = own
        for layer in stage if (index := self.model.index) else ():
            if index and layer.cache.kind == "full":
                common: dict[str, Any] = {
                    "num_kv_heads": 1,
                    "head_size": index.head_dim,
                    "dtype": torch.bfloat16,
                }
                ratio = index.compress_ratio
                specs[f"{_name(layer)}{INDEX}"] = MLAAttentionSpec(
                    block_size=self.block_tokens, tokens_per_state=ratio, **common
                )
                specs[f"{_name(layer)}.ring"] = kv_cache_interface.CircularBufferSpec(
                    block_size=round_up(ratio + speculative, ratio), head_size_v=0, **common
                )
        return specs

    def attention_spec(self, cache: Any, block_tokens: int) -> KVCacheSpec:
        """vLLM's spec of an attention layer."""
        common: dict[str, Any] = {"block_size": block_tokens, "dtype": self._dtype()}
        if isinstance(cache, LatentIndex):
            common["dtype"] = torch.uint8  # an index keeps scales beside its keys
            size = cache.head_dim + cache.head_dim // 128 * 4
            return MLAAttentionSpec(num_kv_heads=1, head_size=size, **common)
        if isinstance(cache, LatentAttention):
            packed = cache.sparse and self.deployment.kv_cache_dtype.startswith("fp8")
            common |= {"num_kv_heads": 1, "state_content_bytes": 656 if packed else None}
            return MLAAttentionSpec(head_size=cache.latent_dim, **common)
        heads = max(1, cache.kv_heads // self.deployment.tp)
        common |= {"num_kv_heads": heads, "head_size": cache.head_dim}
        if isinstance(cache, SlidingWindow):
            return SlidingWindowSpec(sliding_window=cache.window, dcp_sharded=False, **common)
        if isinstance(cache, ChunkedAttention):
            return ChunkedLocalAttentionSpec(attention_chunk_size=cache.chunk, **common)
        return FullAttentionSpec(**common)


class StateLayer(MambaBase):
    """A recurrent layer: vLLM's own base class, over shapes and formats of a model.

    Layers that write states from inside a forward report it as vLLM's do: those of GDN keep to the
    grid of the prefix cache.
    """

    is_draft_layer = False

    def __init__(self, cache: State, oracle: Oracle) -> None:
        self.shapes, self.dtypes = oracle.state(cache)
        self.keeps_to_grid = isinstance(cache, GatedDeltaNet)
        self.alignment = align.alignment(oracle.model, oracle.deployment)
        is_linear = isinstance(cache, LightningAttention)
        names = MambaAttentionBackendEnum
        self._mamba_type = names.LINEAR if is_linear else names.MAMBA2

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return self._mamba_type

    def get_state_shape(self) -> Any:
        return self.shapes

    def get_state_dtype(self) -> Any:
        return self.dtypes

    def get_prefill_checkpoint_alignment(self) -> int | None:
        return self.alignment if self.keeps_to_grid else None

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec | None:
        spec = super().get_kv_cache_spec(vllm_config)
        if self.alignment is None or not isinstance(spec, MambaSpec):
            return spec
        unit = vllm_config.cache_config.prefix_match_unit
        grid = spec.block_size if unit is None else lcm(unit, self.alignment)
        alignment = grid if self.keeps_to_grid else self.alignment
        return replace(
            spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=alignment
        )


class _Backend:
    """Stands for CUDA's attention backends, whose kernels take multiples of 16 tokens."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: KVCacheSpec) -> KVCacheSpec:
        return spec


def _size(oracle: Oracle) -> Any:
    def size(cache: State) -> int:
        shapes, dtypes = oracle.state(cache)
        return MambaSpec(block_size=-1, shapes=shapes, dtypes=dtypes).page_size_bytes

    return size


@contextmanager
def _fake_backend(cache: State, oracle: Oracle) -> Iterator[None]:
    """Let vLLM find a model class with the states of ``cache``, and only the backend above."""
    shapes, dtypes = oracle.state(cache)
    model_class = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes,
        get_mamba_state_dtype_from_config=lambda _: dtypes,
    )
    with (
        patch.object(Platform, "_find_non_ssm_backends", lambda _: [_Backend]),
        patch.object(ModelRegistry, "resolve_model_cls", lambda *_, **__: (model_class, "")),
    ):
        yield


def draft_method(model: Model) -> str:
    """Return vLLM's method of drafts: the model's own head, or n-grams, which have no layers."""
    return "mtp" if model.draft_layers else "ngram"


def speculation(model: Model, num_tokens: int) -> Any:
    """Return a drafter for a model."""
    method = draft_method(model)
    has_head = method == "mtp"
    answers = dict.fromkeys(("use_eagle", "use_eagle_block_drop"), lambda: has_head)
    own = {"num_speculative_tokens": num_tokens, "method": method, "compute_hash": lambda: ""}
    own |= {"disable_lookahead_block_hashes": False, "use_multi_module_mtp": lambda: False}
    return SimpleNamespace(**own, **answers)


def _vllm_config(model: Model, deployment: Deployment) -> VllmConfig:
    config = VllmConfig()
    # QSA's backends take no layer-outermost layout.
    config.cache_config.kv_cache_layout = "LBNHC" if model.index is None else "BLNHC"
    config.cache_config.cache_dtype = deployment.kv_cache_dtype
    config.cache_config.mamba_cache_mode = deployment.mamba_cache_mode
    config.cache_config.block_size = 16
    config.cache_config.mamba_block_size = deployment.length(model)
    config.scheduler_config.max_num_batched_tokens = deployment.max_num_batched_tokens
    config.scheduler_config.async_scheduling = False
    attention = next(layer.cache for layer in model.layers if not isinstance(layer.cache, State))
    assert not isinstance(attention, LatentIndex)
    if isinstance(attention, LatentAttention):
        kv_heads, head_size = 1, attention.latent_dim
    else:
        kv_heads, head_size = max(1, attention.kv_heads // deployment.tp), attention.head_dim
    config.model_config = SimpleNamespace(  # type: ignore[assignment]
        max_model_len=deployment.length(model),
        original_max_model_len=deployment.length(model),
        supports_kv_cache_grouping=False,
        is_hybrid=model.is_hybrid,
        dtype=STR_DTYPE_TO_TORCH_DTYPE[model.dtype],
        use_mla=isinstance(attention, LatentAttention),
        architecture=model.model_type,
        get_num_kv_heads=lambda _: kv_heads,
        get_head_size=lambda: head_size,
    )
    return config


def _name(layer: Layer) -> str:
    keys = ".keys" if isinstance(layer.cache, LatentIndex) else ""
    return f"layers.{layer.depth}.{layer.cache.kind}{keys}"
