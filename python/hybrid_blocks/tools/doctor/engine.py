"""vLLM's scheduler for a model and the features of an engine, without weights."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from importlib import import_module
from typing import Any

from vllm.config import (
    CacheConfig,
    ECTransferConfig,
    KVTransferConfig,
    LoRAConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.utils.hashing import sha256
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
)

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import block_tokens
from hybrid_blocks.model import Layer, Model, PlanError, Rank
from hybrid_blocks.model.kind import kind_of
from hybrid_blocks.model.layer import Attention, LatentAttention, LatentIndex, State
from hybrid_blocks.model.rank import shard_or_replicate
from hybrid_blocks.tools.doctor.environment import MODEL_RUNNER, environment
from hybrid_blocks.tools.doctor.features import OFFLOADING, OURS, Features, asked, transfer
from hybrid_blocks.vllm.natural import logged_capacity, planning
from hybrid_blocks.vllm.specs import make
from hybrid_blocks.weightless import make_scheduler, model_config

_HIDDEN_LAYERS, _HIDDEN_SIZE = 3, 1024
"""How many layers' hidden states are extracted, and their numbers. No answer depends on them."""


def attention_block(model: Model) -> int:
    """Return the tokens of a block of the attention kernels."""
    return block_tokens(model, Deployment())


def layer_specs(
    model: Model, rank: Rank, method: str | None, *, max_model_len: int, cache_mode: str
) -> dict[str, KVCacheSpec]:
    """Return vLLM's spec of each layer by its name: kernel blocks, and states for life.

    ``method`` is how tokens are drafted. A drafter's own model is not known. Level ``natural``
    plans these as they are; vLLM inflates the blocks of hybrid models first.
    """
    block = attention_block(model)
    longest = round_up(max_model_len + rank.num_speculative_tokens + 1, block)
    specs = {
        _name(layer): (
            _state(layer.cache, rank, longest, cache_mode)
            if isinstance(layer.cache, State)
            else _attention(layer, rank, block)
        )
        for layer in (model.layers + model.draft_layers if method == "mtp" else model.layers)
    }
    if method == "extract_hidden_states":
        specs["hidden_states"] = HiddenStateCacheSpec(
            block_size=block,
            num_kv_heads=_HIDDEN_LAYERS,
            head_size=_HIDDEN_SIZE,
            dtype=STR_DTYPE_TO_TORCH_DTYPE[rank.model_dtype],
        )
    return specs


def _name(layer: Layer) -> str:
    index = ".index" if isinstance(layer.cache, LatentIndex) else ""
    return f"layers.{layer.depth}.{layer.cache.kind}{index}{'.draft' if layer.draft else ''}"


def _state(cache: State, rank: Rank, block: int, cache_mode: str) -> KVCacheSpec:
    tensors = cache.tensors(rank)
    return MambaSpec(
        block_size=block,
        shapes=tuple(tensor.shape for tensor in tensors),
        dtypes=tuple(STR_DTYPE_TO_TORCH_DTYPE[tensor.dtype] for tensor in tensors),
        mamba_cache_mode=cache_mode,
        num_speculative_blocks=rank.num_speculative_tokens,
    )


def _attention(layer: Layer, rank: Rank, block: int) -> KVCacheSpec:
    cache: Any = layer.cache
    common: dict[str, Any] = {"block_size": block, "dtype": STR_DTYPE_TO_TORCH_DTYPE[rank.kv_dtype]}
    if isinstance(cache, LatentIndex):
        common["dtype"] = STR_DTYPE_TO_TORCH_DTYPE["fp8"]
        return MLAAttentionSpec(num_kv_heads=1, head_size=cache.token_bytes(rank), **common)
    if isinstance(cache, LatentAttention):
        return MLAAttentionSpec(num_kv_heads=1, head_size=cache.latent_dim, **common)
    attention: Attention = cache
    common["num_kv_heads"] = shard_or_replicate(attention.kv_heads, rank.tp, "KV heads")
    common["head_size"] = attention.head_dim
    kind = kind_of(cache)
    return make(kind.name, kind.window, **common) or FullAttentionSpec(**common)


MAX_MODEL_LEN = 16_384
NUM_BLOCKS = 4096
_ENOUGH_BYTES = 2**42

# Heads that ranks divide, and layers for stages.
_MODEL = {"num_key_value_heads": 1, "num_hidden_layers": 64}


class Engine:
    """An engine core's view of a model before it makes its scheduler.

    ``specs`` are the layers' with the blocks of their kernels, as workers report them at level
    ``natural``; ``kv_cache_config`` is vLLM's own plan.

    Raises ``PlanError`` where vLLM refuses the model or the features.
    """

    def __init__(self, model: Model, features: Features) -> None:
        self.features = features
        self._tp = features.tp or features.dcp
        is_hybrid = any(layer.cache.kind == State.kind for layer in model.layers)
        self.is_async = not features.needs_first_runner
        if features.connector is not None:
            _connector(features.connector)
        try:
            with self._model_runner():
                self.config = self._config(model)
        except ValueError as error:
            raise PlanError(f"vLLM refuses this engine: {_first_line(error)}") from error
        self.config.model_config.return_sampling_mask = features.sampling_masks
        # vLLM's checks of these ask for a model that the stand-in is not.
        self.config.aux_output_config.enable_return_routed_experts = features.aux_outputs
        self.config.cache_config.use_replayssm = features.replay_ssm
        self.config.cache_config.kv_cache_dtype_skip_layers = list(features.spared_layers)
        cache_mode = "align" if is_hybrid and features.prefix_caching else "none"
        self.config.cache_config.mamba_cache_mode = cache_mode  # type: ignore[assignment]
        # Workers on CUDA report this layout to engine cores.
        self.config.cache_config.kv_cache_layout = "LBNHC"
        rank = Rank(
            tp=features.tp or 1,
            num_speculative_tokens=self.config.num_speculative_tokens,
            model_dtype=model.dtype,
        )
        self.specs = layer_specs(
            model, rank, self._method, max_model_len=MAX_MODEL_LEN, cache_mode=cache_mode
        )
        self.kv_cache_config = self._planned(self.specs)
        self.config.cache_config.num_gpu_blocks = NUM_BLOCKS

    @property
    def asked(self) -> VllmConfig:
        """The configuration as a user gives it, with this package's connector."""
        name = self.features.connector
        if name is None or name not in OURS:
            return self.config
        config = copy(self.config)
        config.kv_transfer_config = KVTransferConfig(**asked(name))
        return config

    def scheduler(self, scheduler_cls: Callable[..., Scheduler]) -> Scheduler:
        """Make a scheduler as the engine core does.

        Raises ``PlanError`` where vLLM cannot, as without a connector's package.
        """
        init_none_hash(sha256)
        try:
            scheduler_block, hash_block = resolve_kv_cache_block_sizes(
                self.kv_cache_config, self.config
            )
            with self._model_runner():
                return make_scheduler(
                    scheduler_cls,
                    self.config,
                    self.kv_cache_config,
                    block_size=scheduler_block,
                    hash_block_size=hash_block,
                )
        except (
            ValueError,
            AssertionError,
            NotImplementedError,
            ImportError,
            RuntimeError,
        ) as error:
            raise PlanError(f"vLLM makes no scheduler: {_first_line(error)}") from error

    @property
    def _method(self) -> str | None:
        drafts = self.features.speculative
        return drafts.method if drafts is not None else None

    def _model_runner(self) -> AbstractContextManager[None]:
        return environment({MODEL_RUNNER: "0" if self.features.needs_first_runner else "1"})

    def _config(self, model: Model) -> VllmConfig:
        features = self.features
        # Heads that all ranks divide: vLLM must not complain of a number that is made up.
        heads = 64 * self._tp
        fields = _MODEL | {"num_attention_heads": heads, "hidden_size": heads}
        with model_config(fields, max_model_len=MAX_MODEL_LEN, dtype=model.dtype) as served:
            config = VllmConfig(
                model_config=served,
                cache_config=CacheConfig(
                    block_size=attention_block(model), enable_prefix_caching=features.prefix_caching
                ),
                parallel_config=self._parallel(),
                scheduler_config=SchedulerConfig(
                    max_num_seqs=64,
                    max_num_batched_tokens=8192,
                    max_model_len=MAX_MODEL_LEN,
                    is_encoder_decoder=False,
                    async_scheduling=False,
                    policy="priority" if features.priorities else "fcfs",
                    disable_hybrid_kv_cache_manager=features.no_hybrid_manager or None,
                ),
                **self._further(served, served.model),
            )
        # As on a GPU; on a CPU vLLM says no.
        config.scheduler_config.async_scheduling = self.is_async
        return config

    def _parallel(self) -> ParallelConfig:
        features = self.features
        ranks = self._tp * features.pcp
        return ParallelConfig(
            pipeline_parallel_size=features.pp,
            tensor_parallel_size=self._tp,
            decode_context_parallel_size=features.dcp,
            prefill_context_parallel_size=features.pcp,
            distributed_executor_backend="mp" if features.pp * ranks > 1 else None,
        )

    def _further(self, served: ModelConfig, folder: str) -> Mapping[str, Any]:
        features, found = self.features, dict[str, Any]()
        if features.speculative is not None:
            drafts = found["speculative_config"] = SpeculativeConfig(
                target_model_config=served,
                target_parallel_config=ParallelConfig(),
                method="ngram",
                num_speculative_tokens=features.speculative.num_tokens,
            )
            # The scheduler does not ask for a drafter's own model or package.
            drafts.method = features.speculative.method  # type: ignore[assignment]
        if features.connector is not None:
            extra = {"cpu_bytes_to_use": 2**30, "shared_storage_path": folder}
            # For this package's offload the connector stands that it derives from: the memory that
            # it shares with workers is there only where they run.
            stands = {OFFLOADING: OffloadingConnector.__name__}
            found["kv_transfer_config"] = KVTransferConfig(
                **transfer(features.connector, extra, stands)
            )
        if features.encoder_connector:
            found["ec_transfer_config"] = ECTransferConfig(
                ec_connector="ECExampleConnector",
                ec_role="ec_both",
                ec_connector_extra_config={"shared_storage_path": folder},
            )
        if features.lora:
            found["lora_config"] = LoRAConfig(max_lora_rank=8, max_loras=4)
        if features.residency_metrics or features.flop_metrics:
            found["observability_config"] = ObservabilityConfig(
                kv_cache_metrics=features.residency_metrics,
                enable_mfu_metrics=features.flop_metrics,
            )
        return found

    def _planned(self, specs: Mapping[str, KVCacheSpec]) -> KVCacheConfig:
        inflated = logged_capacity.with_stock_blocks(self.config, dict(specs))
        plan = planning().stock_config
        try:
            planned: KVCacheConfig = plan(self.config, inflated, _ENOUGH_BYTES)
        except (ValueError, AssertionError, NotImplementedError) as error:
            name = self.features.connector
            if name is not None and not supports_hma(_connector(name)):
                raise PlanError(
                    f"{name} does not support hybrid models: with it vLLM keeps one kind of cache "
                    "for all layers, and these are of several"
                ) from error
            raise PlanError(f"vLLM plans no KV cache: {_first_line(error)}") from error
        return generate_scheduler_kv_cache_config([replace(planned, num_blocks=NUM_BLOCKS)])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    # The first line of pydantic's errors counts them.
    message = next((line for line in lines if line.startswith("Value error, ")), None)
    if message is not None:
        return message.removeprefix("Value error, ").partition(" [type=")[0]
    return next(filter(None, lines), type(error).__name__)


def _connector(name: str) -> type:
    """Return a connector's class.

    Raises ``PlanError`` where vLLM does not know it or cannot import it.
    """
    try:
        found: type = (
            getattr(import_module(OURS[name]), name)
            if name in OURS
            else KVConnectorFactory.get_connector_class_by_name(name)
        )
    except ImportError as error:
        raise PlanError(f"KV connector {name} cannot be imported: {_first_line(error)}") from error
    except ValueError as error:
        known = ", ".join([*OURS, *sorted(KVConnectorFactory._registry)])
        raise PlanError(f"KV connector {name} is not known; known are {known}") from error
    return found
