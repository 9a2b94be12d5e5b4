"""The format of checkpoints that an engine runs with: the user's, where it can be served."""

from collections.abc import Mapping

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheSpec, MambaSpec

from hybrid_blocks.model.layer import StateFormat
from hybrid_blocks.vllm.grant import worker_grant
from hybrid_blocks.vllm.level import CHECKPOINTS, Level, checkpoint_format
from hybrid_blocks.vllm.natural.recurrent import kept_bytes

logger = init_logger("vllm.hybrid_blocks")


def served(vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec]) -> StateFormat:
    """Return the format to plan for. Where it is not the user's, the log says why.

    The engine core alone asks. Workers get it with the configuration.
    """
    asked = checkpoint_format()
    if asked == "full":
        return asked
    if why := _reason(vllm_config, specs, asked):
        logger.warning_once(
            "hybrid_blocks: %s has format=%s, but checkpoints stay as running states are: %s",
            CHECKPOINTS,
            asked,
            why,
        )
        return "full"
    return asked


def _reason(
    vllm_config: VllmConfig, specs: Mapping[str, KVCacheSpec], asked: StateFormat
) -> str | None:
    if not vllm_config.cache_config.enable_prefix_caching:
        return "there is no prefix cache"
    states = [spec for spec in specs.values() if isinstance(spec, MambaSpec)]
    if all(kept_bytes(spec, asked) == spec.page_size_bytes for spec in states):
        return "no recurrent state has float32 numbers that it makes smaller"
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return "each pipeline stage holds states of its own"
    if vllm_config.kv_transfer_config is not None:
        return "a KV connector moves states as they are"
    if why := worker_grant(Level.NATURAL).reason:
        return f"workers copy by vLLM's own function ({why})"
    return None
