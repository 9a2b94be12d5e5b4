"""A session whose blocks lie too scattered to continue is admitted again."""

from collections import deque
from typing import Any

import pytest
import torch
from hybrid_blocks.tools.profile import engine as profiled
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

pytestmark = pytest.mark.usefixtures("natural_level")

BLOCK = 16
MAX_LEN = 512
STOP, OTHER = 99_999, 5


class Engine:
    """A scheduler over two pools of attention; a request's output is ``STOP`` if it is to stop."""

    def __init__(self, cls: type[Scheduler], num_slabs: int, cuts: tuple[int, int]) -> None:
        heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
        specs: list[KVCacheSpec] = [
            FullAttentionSpec(block_size=BLOCK, **heads),
            SlidingWindowSpec(block_size=BLOCK, sliding_window=2 * BLOCK, **heads),
        ]
        config = NaturalKVCacheConfig(
            num_blocks=num_slabs,
            kv_cache_tensors=[],
            kv_cache_groups=profiled._groups(specs),
            pools=(0, 1),
            blocks_per_slab=cuts,
        )
        self.scheduler: Any = profiled.scheduler_over(
            config,
            num_requests=16,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=256,
            hash_block_size=BLOCK,
            scheduler_cls=cls,
        )
        self.lag = int(cls is AsyncScheduler)
        self.in_flight: deque[Any] = deque()
        self.hasher = profiled.make_hasher()
        self.to_stop: set[str] = set()

    def add(
        self, id_: str, prompt: list[int], max_tokens: int, *, resumable: bool = False
    ) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP])
        request = Request(
            request_id=id_,
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self.hasher,
            resumable=resumable,
        )
        self.scheduler.add_request(request)
        return request

    def step(self) -> dict[str, int]:
        output = self.scheduler.schedule()
        self.in_flight.append(output)
        while len(self.in_flight) > self.lag:
            self._end(self.in_flight.popleft())
        scheduled: dict[str, int] = output.num_scheduled_tokens
        return scheduled

    def drain(self) -> None:
        while self.in_flight:
            self._end(self.in_flight.popleft())

    def _end(self, output: Any) -> None:
        ids = [*output.num_scheduled_tokens]
        sampled = []
        for id_ in ids:
            request = self.scheduler.requests.get(id_)
            is_known = request and request.num_computed_tokens >= request.num_tokens
            sampled.append([STOP if id_ in self.to_stop else OTHER] if is_known else [])
        places = {id_: place for place, id_ in enumerate(ids)}
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(req_ids=ids, req_id_to_index=places, sampled_token_ids=sampled),
        )


@pytest.mark.parametrize(
    ("cls", "num_slabs", "cuts", "num_blocks"),
    [(Scheduler, 19, (4, 2), 10), (AsyncScheduler, 26, (4, 2), 16)],
)
def test_a_session_that_waits_with_scattered_blocks_goes_on(
    cls: type[Scheduler], num_slabs: int, cuts: tuple[int, int], num_blocks: int
) -> None:
    engine = Engine(cls, num_slabs, cuts)
    session = engine.add("session", [*range(15)], 400, resumable=True)
    # Three others decode in step with it, so that its blocks lie one in a slab. Then they end.
    for number in (1, 2, 3):
        prompt = [1000 * number + token for token in range(15)]
        engine.add(str(number), prompt, BLOCK * num_blocks - 12)
    while session.num_tokens < BLOCK * num_blocks + 3:
        engine.step()
    engine.to_stop.add("session")
    while session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
        engine.step()
    engine.drain()
    assert [*engine.scheduler.requests] == ["session"]
    pools = engine.scheduler.kv_cache_manager.block_pool
    blocks, _ = engine.scheduler.kv_cache_manager.get_block_ids("session")
    assert len({block // cuts[0] for block in blocks}) > num_blocks - 1

    engine.to_stop.clear()
    engine.add("session", [7000 + token for token in range(240)], 20, resumable=True)
    late = engine.add("late", [1, 2, 3], 2)
    steps = [engine.step() for _ in range(60)]
    assert any("session" in scheduled for scheduled in steps[:3])
    assert any("late" in scheduled for scheduled in steps)
    engine.drain()
    assert late.is_finished()
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    assert pools.get_num_free_blocks() == num_slabs - 1
