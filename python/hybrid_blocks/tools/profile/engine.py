"""vLLM's scheduler on its own, over the cache groups of a kind of model, without weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import lcm
from typing import Any, Literal

import numpy as np
import torch
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.config.lora import LoRAConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import StructuredOutputsParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import BlockHash, init_none_hash, resolve_dcp_kv_block_size
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request

from hybrid_blocks import weightless
from hybrid_blocks.tools.profile.workload import Settings
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.specs import is_state
from hybrid_blocks.weightless import model_config

_IMAGE_TOKENS = 64


class Grammars:
    """Stands for vLLM's manager of grammars: one that takes every token."""

    def accept_tokens(self, request: Any, token_ids: list[int]) -> bool:  # noqa: ARG002
        """Return that a grammar takes tokens."""
        return True


@dataclass(frozen=True)
class NothingToDo(KVConnectorMetadata):
    """Metadata for workers. It compares by its fields, not by its place in memory."""


class NothingToLoad(KVConnectorBase_V1, SupportsHMA):
    """A KV connector that looks at every step and never loads or keeps anything."""

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ARG002
        num_computed_tokens: int,  # noqa: ARG002
    ) -> tuple[int | None, bool]:
        """Return that nothing is kept outside."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take note of nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ARG002
        """Return that workers have nothing to do."""
        return NothingToDo()

    def request_finished_all_groups(
        self,
        request: Any,  # noqa: ARG002
        block_ids: Any,  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return that blocks may be freed."""
        return False, None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing in a step."""

    def wait_for_layer_load(self, *args: Any, **kwargs: Any) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Save nothing in a step."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""


def configure(config: VllmConfig, settings: Settings) -> None:
    """Switch on in a configuration what requests will ask for."""
    if settings.loras:
        config.lora_config = LoRAConfig(max_loras=settings.loras, max_lora_rank=8)
    if settings.connector:
        name = NothingToLoad.__name__
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, __name__, name)
        config.kv_transfer_config = KVTransferConfig(kv_connector=name, kv_role="kv_both")


def equip(scheduler: Any, settings: Settings) -> None:
    """Give a scheduler what a model without images or grammars comes without."""
    if settings.images:
        scheduler.max_num_encoder_input_tokens = 8192
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=65_536)
    if settings.grammar:
        scheduler.structured_output_manager = Grammars()


def request_options(settings: Settings, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of the request of that number, and those of its sampling parameters."""
    about: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    if settings.images:
        position = PlaceholderRange(offset=0, length=min(_IMAGE_TOKENS, settings.prompt_tokens))
        image = MultiModalFeatureSpec(
            data=None, modality="image", identifier=f"image{number}", mm_position=position
        )
        about["mm_features"] = [image]
    if settings.loras:
        lora = number % settings.loras + 1
        about["lora_request"] = LoRARequest(f"lora{lora}", lora, "/nowhere")
    if settings.logprobs:
        sampling["logprobs"] = settings.logprobs
    if settings.grammar and number % 4 == 0:
        sampling["structured_outputs"] = StructuredOutputsParams(regex=".*")
    return about, sampling


def allow(request: Any) -> Any:
    """Return a request whose grammar, if it has one, is there."""
    if request.structured_output_request is not None:
        request.structured_output_request.grammar = object()
    return request


def sampler(settings: Settings) -> Callable[[list[int]], tuple[list[list[int]], Any]]:
    """Return what makes up tokens for requests, given how many drafts of each a step verifies.

    A negative number of drafts stands for a request that gets no token. Log probabilities are
    returned beside.
    """
    random = np.random.default_rng(settings.seed)
    width = settings.logprobs + 1

    def sample(num_drafts: list[int]) -> tuple[list[list[int]], Any]:
        draws = random.random((len(num_drafts), max(settings.num_drafts, 1)))
        accepted = np.cumprod(draws < settings.acceptance, axis=1).sum(axis=1).tolist()
        sampled = [
            [] if drafts < 0 else [7] * (1 + min(drafts, taken))
            for drafts, taken in zip(num_drafts, accepted, strict=True)
        ]
        if not settings.logprobs:
            return sampled, None
        starts = np.cumsum([0, *map(len, sampled)]).tolist()
        rows = max(starts[-1], 1)
        ids = np.zeros((rows, width), dtype=np.int32)
        return sampled, LogprobsLists(ids, ids.astype(np.float32), ids[:, 0], starts)

    return sample


HASH_BLOCK_SIZE = 16


class Groups(StrEnum):
    """Kinds of model, by their cache groups."""

    FULL = "full"
    """One group of full attention, 16 tokens a block."""
    SWA = "swa"
    """One group of full attention and five with a sliding window of 1,024 tokens."""
    HYBRID = "hybrid"
    """One group of full attention and three of Mamba states, 528 tokens a block."""

    RING = "ring"
    """Latent attention and three groups of states, 528 tokens a block, and a ring of 16 tokens."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return 528 if self in (Groups.HYBRID, Groups.RING) else HASH_BLOCK_SIZE

    def hash_block_size(self, dcp: int) -> int:
        """Return how many tokens a digest is of. One group alone is hashed by its own blocks."""
        return HASH_BLOCK_SIZE * dcp if self is Groups.FULL else HASH_BLOCK_SIZE

    def specs(self) -> list[KVCacheSpec]:
        """Return one spec a group."""
        heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
        full = FullAttentionSpec(block_size=self.block_size, **heads)
        state = MambaSpec(
            block_size=self.block_size,
            shapes=((1, 1),),
            dtypes=(torch.float32,),
            page_size_padded=full.page_size_bytes,
            mamba_cache_mode="align",
        )
        match self:
            case Groups.FULL:
                return [full]
            case Groups.SWA:
                window = SlidingWindowSpec(block_size=self.block_size, sliding_window=1024, **heads)
                return [full, *[window] * 5]
            case Groups.HYBRID:
                return [full, *[state] * 3]
            case Groups.RING:
                latent = MLAAttentionSpec(block_size=self.block_size, **heads)
                ring = CircularBufferSpec(block_size=HASH_BLOCK_SIZE, **heads)
                return [latent, *[state] * 3, ring]

    def config(self, num_blocks: int, num_draft_tokens: int = 0) -> KVCacheConfig:
        """Return what a worker would have reported: a state has a block for each draft."""
        specs = [
            replace(spec, num_speculative_blocks=num_draft_tokens) if is_state(spec) else spec
            for spec in self.specs()
        ]
        groups = _groups(specs)
        return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)

    def natural_config(self, num_blocks: int, max_model_len: int) -> NaturalKVCacheConfig:
        """Return the same bytes at level ``natural``: a slab holds what a block held.

        Attention has blocks of 16 tokens, and a state one block for life.
        """
        longest = -(-max_model_len // HASH_BLOCK_SIZE) * HASH_BLOCK_SIZE
        specs = [
            replace(spec, block_size=longest if is_state(spec) else HASH_BLOCK_SIZE)
            for spec in self.specs()
        ]
        pools = [int(is_state(spec)) for spec in specs]
        return NaturalKVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=_groups(specs),
            pools=tuple(pools),
            blocks_per_slab=(self.block_size // HASH_BLOCK_SIZE, 1)[: max(pools) + 1],
        )


def _groups(specs: list[KVCacheSpec]) -> list[KVCacheGroupSpec]:
    return [KVCacheGroupSpec([f"layer.{number}"], spec) for number, spec in enumerate(specs)]


def make_scheduler(
    groups: Groups,
    *,
    num_requests: int,
    num_blocks: int,
    max_model_len: int,
    max_num_batched_tokens: int = 8192,
    scheduler_cls: type[Scheduler] = AsyncScheduler,
    is_natural: bool = False,
    num_draft_tokens: int = 0,
    dcp: int = 1,
    configure: Callable[[VllmConfig], None] | None = None,
) -> Scheduler:
    """Return an asynchronous scheduler with prefix caching over ``num_blocks`` blocks.

    ``is_natural`` lays them out in slabs, ``configure`` switches on what else the engine offers.
    """
    if is_natural:
        config: KVCacheConfig = groups.natural_config(num_blocks, max_model_len)
    else:
        config = groups.config(num_blocks, num_draft_tokens)
    return scheduler_over(
        config,
        num_requests=num_requests,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        hash_block_size=groups.hash_block_size(dcp),
        scheduler_cls=scheduler_cls,
        num_draft_tokens=num_draft_tokens,
        dcp=dcp,
        configure=configure,
    )


def scheduler_over(
    kv_cache_config: KVCacheConfig,
    *,
    num_requests: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    hash_block_size: int,
    scheduler_cls: type[Scheduler] = AsyncScheduler,
    num_draft_tokens: int = 0,
    draft_method: Literal["ngram", "eagle"] = "ngram",
    enable_caching: bool = True,
    dcp: int = 1,
    configure: Callable[[VllmConfig], None] | None = None,
) -> Scheduler:
    """Return a scheduler over the groups of a configuration, with drafts of a vLLM method.

    ``dcp`` ranks of decode context parallelism share out each block.
    """
    init_none_hash(sha256)
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    block_sizes = [spec.block_size for spec in specs]
    has_aligned_states = any(is_state(spec) and spec.mamba_cache_mode == "align" for spec in specs)
    with model_config({}, max_model_len=max_model_len, dtype="float16") as model:
        cache = CacheConfig(block_size=min(block_sizes), enable_prefix_caching=enable_caching)
        drafts = None
        if num_draft_tokens:
            drafts = SpeculativeConfig(
                target_model_config=model,
                target_parallel_config=ParallelConfig(),
                method="ngram",
                num_speculative_tokens=num_draft_tokens,
            )
        config = VllmConfig(
            model_config=model,
            cache_config=cache,
            speculative_config=drafts,
            scheduler_config=SchedulerConfig(
                max_num_seqs=num_requests,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                is_encoder_decoder=False,
                # vLLM does not take drafts of n-grams along asynchronously; its scheduler can.
                async_scheduling=not num_draft_tokens,
            ),
        )
    if drafts:
        # Only here, as vLLM wants a model on disk for most methods.
        drafts.method = draft_method
    # Only here too: the ranks need not be there.
    config.parallel_config.decode_context_parallel_size = dcp
    # Configuring a model without state layers, or for a CPU, may have changed these.
    config.scheduler_config.async_scheduling = issubclass(scheduler_cls, AsyncScheduler)
    cache.block_size = min(block_sizes)
    cache.mamba_cache_mode = "align" if has_aligned_states else "none"
    cache.num_gpu_blocks = kv_cache_config.num_blocks
    if configure is not None:
        configure(config)
    return weightless.make_scheduler(
        scheduler_cls,
        config,
        kv_cache_config,
        block_size=lcm(*(resolve_dcp_kv_block_size(spec, dcp) for spec in specs)),
        hash_block_size=hash_block_size,
    )


def make_hasher(
    block_size: int = HASH_BLOCK_SIZE, *lookahead: int
) -> Callable[[Request], list[BlockHash]]:
    """Return what hashes a new request's blocks, as the engine makes it at the level that runs.

    ``lookahead`` are the tokens after a block that its hash covers; vLLM 0.32 knows of none.
    """
    # By its name in vLLM: the plugin changes what vLLM's modules name, and none of this package's.
    return kv_cache_utils.get_request_block_hasher(block_size, sha256, *lookahead)
