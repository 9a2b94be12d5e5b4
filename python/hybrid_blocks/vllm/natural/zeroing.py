"""In which unit the model runner zeroes what attention takes."""

from vllm import envs
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON


def zeroes_single_blocks() -> bool:
    """Return whether new attention blocks are zeroed one by one.

    vLLM's first CPU model runner fills ``kv[block_id]``. All others scale an id by the blocks of a
    view per id of the configuration, so that an id names a slab.
    """
    if not current_platform.is_cpu():
        return False
    uses_second_runner = envs.VLLM_USE_V2_MODEL_RUNNER
    return not (HAS_TRITON if uses_second_runner is None else uses_second_runner)
