"""A session whose blocks lie too scattered to continue is admitted again."""

from random import Random
from typing import Any

import pytest
import torch
from hybrid_blocks.tools.profile import engine as profiled
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec

from .fake_worker_engine import FakeEngine, make_engine
from .test_manager import end_turn

pytestmark = pytest.mark.usefixtures("natural_level")

BLOCK = 16


def engine_over(cls: type[Scheduler], num_slabs: int, cuts: tuple[int, int]) -> FakeEngine:
    """Return an engine over two pools of attention."""
    heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    window = SlidingWindowSpec(block_size=BLOCK, sliding_window=2 * BLOCK, **heads)
    specs: list[KVCacheSpec] = [FullAttentionSpec(block_size=BLOCK, **heads), window]
    groups = profiled._groups(specs)
    config = NaturalKVCacheConfig(num_slabs, [], groups, pools=(0, 1), blocks_per_slab=cuts)
    sizes: Any = {"num_requests": 16, "max_model_len": 512, "max_num_batched_tokens": 256}
    sizes |= {"hash_block_size": BLOCK, "scheduler_cls": cls}
    engine: FakeEngine = make_engine(config, Random(0), **sizes)
    return engine


@pytest.mark.parametrize(
    ("cls", "num_slabs", "cuts", "num_blocks"),
    [(Scheduler, 19, (4, 2), 10), (AsyncScheduler, 26, (4, 2), 16)],
)
def test_a_session_that_waits_with_scattered_blocks_goes_on(
    cls: type[Scheduler], num_slabs: int, cuts: tuple[int, int], num_blocks: int
) -> None:
    engine = engine_over(cls, num_slabs, cuts)
    session = engine.add([*range(15)], 400, resumable=True)
    # Three others decode in step with it, so that its blocks lie one in a slab. Then they end.
    for number in (1, 2, 3):
        engine.add([1000 * number + token for token in range(15)], BLOCK * num_blocks - 12)
    end_turn(engine, session, BLOCK * num_blocks - 12)
    manager = engine.scheduler.kv_cache_manager
    blocks, _ = manager.get_block_ids(session.request_id)
    assert len({block // cuts[0] for block in blocks}) > num_blocks - 1

    engine.add([7000 + token for token in range(240)], 20, resumable=True, at=session)
    late = engine.add([1, 2, 3], 2)
    steps = [engine.step().num_scheduled_tokens for _ in range(60)]
    assert any(session.request_id in scheduled for scheduled in steps[:3])
    assert late.is_finished()
    engine.abort(session)
    engine.finish()
    assert manager.block_pool.get_num_free_blocks() == num_slabs - 1
