"""The workers' part before memory is planned: they size blocks, and mark refused layers."""

from typing import Any

from vllm.config import VllmConfig
from vllm.config.cache import CacheConfig
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheSpec
from vllm.v1.worker import utils

from hybrid_blocks.arithmetic import round_up
from hybrid_blocks.vllm.natural import pipeline_stages, refusal

vllm_customize_attention_spec = utils.customize_attention_spec
vllm_align_hybrid_block_size: Any = Platform.__dict__["_align_hybrid_block_size"]
vllm_find_non_ssm_backends: Any = Platform.__dict__["_find_non_ssm_backends"]


def customize_attention_spec(backend: type[AttentionBackend], spec: AttentionSpec) -> AttentionSpec:
    """Return the backend's spec of a layer, marked where level ``natural`` cannot serve it."""
    return refusal.mark(backend, vllm_customize_attention_spec(backend, spec))


def find_non_ssm_backends(
    cls: type[Platform], vllm_config: VllmConfig
) -> list[type[AttentionBackend]]:
    """Return the attention backends of all pipeline stages, so that all size blocks alike.

    A stage without attention would else size nothing, and leave the others waiting for its specs.
    """
    own = vllm_find_non_ssm_backends.__func__(cls, vllm_config)
    held = pipeline_stages.gathered(vllm_config, own)
    return list(dict.fromkeys(backend for backends in held for backend in backends))


def align_hybrid_block_size(
    cls: type[Platform], vllm_config: VllmConfig, backend_cls: type[AttentionBackend]
) -> None:
    """Size the blocks of a hybrid model; as vLLM does where level ``natural`` is refused."""
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec  # noqa: PLC0415 - for workers only

    cache = vllm_config.cache_config
    before = cache.block_size, cache.mamba_block_size, cache.mamba_page_size_padded
    size_blocks(cls, vllm_config, backend_cls)
    specs: dict[str, KVCacheSpec] = {}
    for held in pipeline_stages.gathered(vllm_config, get_kv_cache_spec(vllm_config)):
        specs |= held
    if refusal.reason(vllm_config, specs) is None:
        return
    cache.block_size, cache.mamba_block_size, cache.mamba_page_size_padded = before
    vllm_align_hybrid_block_size.__func__(cls, vllm_config, backend_cls)


def size_blocks(
    cls: type[Platform], vllm_config: VllmConfig, backend_cls: type[AttentionBackend]
) -> None:
    """Give attention its kernels' block, and states one column for a request's life.

    A Mamba block is longer than any request with its drafts, and a multiple of an attention block's
    tokens on all ranks. States are not padded.
    """
    cache = vllm_config.cache_config
    if not cache.user_specified_block_size:
        backends = cls._find_non_ssm_backends(vllm_config) or [backend_cls]
        cache.block_size = cls._preferred_block_size_for_backends(
            backends, CacheConfig.DEFAULT_BLOCK_SIZE, vllm_config
        )
    if cache.mamba_cache_mode == "align":
        longest = vllm_config.model_config.max_model_len + vllm_config.num_speculative_tokens
        dcp = vllm_config.parallel_config.decode_context_parallel_size
        cache.mamba_block_size = round_up(longest + 1, dcp * cache.block_size)
    cache.mamba_page_size_padded = None
