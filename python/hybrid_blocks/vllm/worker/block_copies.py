"""The copies of cache blocks in vLLM's workers: one launch for all layers, each byte moved once."""

from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.worker import utils

from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.worker import prefill_checkpoint
from hybrid_blocks.vllm.worker.copies import split

vllm_copy_kv_cache_blocks_inplace = utils.copy_kv_cache_blocks_inplace


def copy_kv_cache_blocks_inplace(
    kv_caches: Iterable[Any], num_blocks: int, kv_cache_block_copies: Sequence[Any]
) -> None:
    """Copy blocks in all layers, every source as it was before the call.

    vLLM's own function does it where the kernels cannot, and the log says why. Copies to another
    format and back are no copies of blocks: no other copy of the call touches their bytes. Prefill
    checkpoints wait for the forward.
    """
    caches = list(kv_caches)
    if not kv_cache_block_copies or not caches:
        return
    from hybrid_blocks.vllm.worker import kernel_copies  # noqa: PLC0415 - for workers only

    kv_cache_block_copies, converting, checkpoints = split(kv_cache_block_copies)
    if converting:
        kernel_copies.convert(caches, converting)
    if checkpoints:
        prefill_checkpoint.register(caches, checkpoints)
    if not kv_cache_block_copies:
        return
    if why := kernel_copies.copy(caches, num_blocks, kv_cache_block_copies):
        logger.warning_once("hybrid_blocks: vLLM's own function copies cache blocks: %s", why)
        vllm_copy_kv_cache_blocks_inplace(caches, num_blocks, kv_cache_block_copies)


REPLACEMENTS = ((vllm_copy_kv_cache_blocks_inplace, copy_kv_cache_blocks_inplace),)
"""vLLM's function and this package's."""
