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
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

from hybrid_blocks.model import Model, PlanError, Rank
from hybrid_blocks.tools.doctor.connectors import CONNECTORS, OFFLOADING, OURS, asked, transfer
from hybrid_blocks.tools.doctor.environment import MODEL_RUNNER, environment
from hybrid_blocks.tools.doctor.features import Features
from hybrid_blocks.tools.doctor.layers import attention_block, layer_specs
from hybrid_blocks.vllm.natural import planning, shown
from hybrid_blocks.weightless import make_scheduler, model_config

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
        is_hybrid = any(layer.cache.kind == "state" for layer in model.layers)
        self.is_async = not features.needs_first_runner
        if features.connector_class is not None:
            _connector(features.connector_class)
        try:
            with self._model_runner():
                self.config = self._config(model)
        except ValueError as error:
            raise PlanError(f"vLLM refuses this engine: {_first_line(error)}") from error
        self.config.model_config.return_sampling_mask = features.sampling_masks
        cache_mode = "align" if is_hybrid and features.prefix_caching else "none"
        self.config.cache_config.mamba_cache_mode = cache_mode  # type: ignore[assignment]
        # That of CUDA, which engine cores ask workers for.
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
        name = self.features.connector_class
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
                    block_size=attention_block(model),
                    enable_prefix_caching=features.prefix_caching,
                ),
                parallel_config=self._parallel(),
                scheduler_config=SchedulerConfig(
                    max_num_seqs=64,
                    max_num_batched_tokens=8192,
                    max_model_len=MAX_MODEL_LEN,
                    is_encoder_decoder=False,
                    async_scheduling=False,
                    policy="priority" if features.priorities else "fcfs",
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
        if features.connector_class is not None:
            extra = {"cpu_bytes_to_use": 2**30, "shared_storage_path": folder}
            # For this package's offload the connector stands that it derives from: the memory that
            # it shares with workers is there only where they run.
            stands = {OFFLOADING: OffloadingConnector.__name__}
            found["kv_transfer_config"] = KVTransferConfig(
                **transfer(features.connector_class, extra, stands)
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
        inflated = shown.with_stock_blocks(self.config, dict(specs))
        plan = planning().stock_config
        try:
            planned: KVCacheConfig = plan(self.config, inflated, _ENOUGH_BYTES)
        except (ValueError, AssertionError, NotImplementedError) as error:
            name = self.features.connector_class
            if name is not None and not supports_hma(_connector(name)):
                raise PlanError(
                    f"--connector {self.features.connector} does not support hybrid models: with "
                    f"{name} vLLM keeps one kind of cache for all layers, and these are of several"
                ) from error
            raise PlanError(f"vLLM plans no KV cache: {_first_line(error)}") from error
        return generate_scheduler_kv_cache_config([replace(planned, num_blocks=NUM_BLOCKS)])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    # The first line of pydantic's errors counts them.
    told = next((line for line in lines if line.startswith("Value error, ")), None)
    if told is not None:
        return told.removeprefix("Value error, ").partition(" [type=")[0]
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
        raise PlanError(f"--connector {name} cannot be imported: {_first_line(error)}") from error
    except ValueError as error:
        known = ", ".join([*CONNECTORS, *sorted(KVConnectorFactory._registry)])
        raise PlanError(f"--connector {name} is not known; known are {known}") from error
    return found
