"""In which unit the model runner zeroes what attention takes."""

from vllm.config import VllmConfig
from vllm.platforms import current_platform


def zeroes_single_blocks(vllm_config: VllmConfig) -> bool:
    """Return whether the engine's workers zero new attention blocks one by one.

    vLLM's first CPU model runner fills ``kv[block_id]`` in each layer of full attention. All other
    runners scale an id by the blocks of a view per id of the configuration, so that an id names a
    slab.
    """
    return current_platform.is_cpu() and not vllm_config.use_v2_model_runner
