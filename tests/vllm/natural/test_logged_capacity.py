"""Capacity that an engine over slabs shows."""

import pytest
from hybrid_blocks.tools.profile.engine import scheduler_over
from hybrid_blocks.vllm.level import Level
from installed import installed
from vllm.config import VllmConfig

from .test_fake_worker import MAX_MODEL_LEN, MIXES, NATURAL_BLOCK_SIZE

CAPACITY = 4_321


def plan(config: VllmConfig) -> None:
    """Note what vLLM notes once it has planned its memory."""
    config.cache_config.kv_cache_size_tokens = CAPACITY
    config.cache_config.block_size = NATURAL_BLOCK_SIZE


@pytest.mark.parametrize(
    ("level", "num_tokens"),
    [(Level.NATURAL, CAPACITY // NATURAL_BLOCK_SIZE * NATURAL_BLOCK_SIZE), (Level.MANAGER, None)],
)
def test_blocks_times_tokens_are_the_capacity(level: Level, num_tokens: int | None) -> None:
    """So readers of the ready message and of `vllm:cache_config_info` count tokens."""
    config = MIXES["full-state-fine"].config(level)
    with installed(level):
        scheduler = scheduler_over(
            config,
            num_requests=2,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=64,
            hash_block_size=NATURAL_BLOCK_SIZE,
            configure=plan,
        )
    cache = scheduler.cache_config
    shown = (cache.num_gpu_blocks or 0) * cache.block_size
    assert shown == (num_tokens or config.num_blocks * NATURAL_BLOCK_SIZE)
