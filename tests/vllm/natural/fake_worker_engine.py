"""vLLM's scheduler and a fake worker, in the engine's loop, with random requests."""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from hybrid_blocks.vllm.natural.slab_pool import SlabPool
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from .fake_worker import VOCABULARY, CorruptedError, FakeWorker, Truth

NUM_FAMILIES = 3


class FakeEngine:
    """Steps of a scheduler and a worker; a life draws what arrives, and who hangs up.

    ``tamper`` may change each step's output before the worker sees it. Each of ``num_stages``
    pipeline stages has a batch under way, and asynchronous scheduling is one more ahead.
    """

    def __init__(
        self,
        scheduler: Any,
        worker: FakeWorker,
        hasher: Callable[[Request], Any],
        random: Random,
        *,
        max_model_len: int,
        is_async: bool,
        num_stages: int = 1,
        has_priorities: bool = False,
        tamper: Callable[[SchedulerOutput], object] = lambda _: None,
    ) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self.num_finished = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self._hasher = hasher
        self._tamper = tamper
        self._random = random
        self._max_model_len = max_model_len
        self._has_priorities = has_priorities
        self._is_async = is_async
        self._depth = num_stages - (not is_async)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput, Any]] = deque()
        self._requests: dict[str, Request] = {}
        self._num_added = 0
        self._histories: deque[list[int]] = deque(maxlen=6)

    # --- what happens to the engine -----------------------------------------

    def arrive(self) -> None:
        """A request arrives: of a family with a shared prefix, or the next turn of another."""
        draw = self._random
        limit = self._max_model_len - 8
        if self._histories and draw.random() < 0.4:
            shared = draw.choice(self._histories)
            shared = shared[: draw.choice((len(shared), len(shared), max(1, len(shared) - 3)))]
        else:
            family = Random(draw.randrange(NUM_FAMILIES)).choices(range(VOCABULARY), k=limit)
            shared = family[: draw.choice((0, 1, 15, 16, 17, 33, 48, 64, 90))]
        tail = draw.choices(range(VOCABULARY), k=draw.choice((0, 1, 2, 5, 16, 17, 40)))
        prompt = (shared + tail or [1])[:limit]
        most = self._max_model_len - len(prompt)
        priority = draw.randrange(3) if self._has_priorities else 0
        self.add(prompt, min(most, draw.choice((1, 2, 6, 12, 30, 50))), priority)

    def add(
        self, prompt: list[int], max_tokens: int, priority: int = 0, transfer: Any = None
    ) -> Request:
        """A request arrives that is to generate ``max_tokens``."""
        self._num_added += 1
        id_ = f"request{self._num_added}"
        request = Request(
            request_id=id_,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            pooling_params=None,
            arrival_time=self._num_added,
            block_hasher=self._hasher,
            priority=priority,
        )
        request.kv_transfer_params = transfer
        self._requests[id_] = request
        self.scheduler.add_request(request)
        return request

    def hang_up(self) -> None:
        """A client hangs up."""
        if self._requests:
            id_ = self._random.choice(sorted(self._requests))
            self._requests.pop(id_)
            self.scheduler.finish_requests(id_, RequestStatus.FINISHED_ABORTED)

    def reset(self) -> None:
        """The prefix cache is reset, and running requests with it."""
        self.scheduler.reset_prefix_cache(reset_running_requests=True)

    def live(self, num_steps: int, num_requests: int) -> None:
        """Step on, with up to ``num_requests`` in the engine; then let all finish."""
        for _ in range(num_steps):
            if len(self._requests) < num_requests and self._random.random() < 0.5:
                self.arrive()
            if self._random.random() < 0.02:
                self.hang_up()
            if self._random.random() < 0.002:
                self.reset()
            self.step()
        self.finish()

    def finish(self) -> None:
        """Step on until all requests have finished."""
        for _ in range(20 * self._max_model_len):
            if not self._requests and not self._in_flight:
                return
            self.step()
        raise CorruptedError(f"requests {sorted(self._requests)} do not finish")

    # --- one step -----------------------------------------------------------

    def step(self) -> None:
        """Schedule and execute; take in the outputs, one step later if asynchronous."""
        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.num_cached_tokens += new.num_computed_tokens
        self._tamper(output)
        result, drafts = self.worker.execute(output)
        if output.total_num_scheduled_tokens:
            self._in_flight.append((output, result, drafts))
            if len(self._in_flight) <= self._depth:
                return
        if self._in_flight:
            self._take_in(*self._in_flight.popleft())

    def _take_in(self, output: SchedulerOutput, result: ModelRunnerOutput, drafts: Any) -> None:
        self.scheduler.update_from_output(output, result)
        if not self._is_async:
            self.scheduler.update_draft_token_ids(drafts)
        for id_, request in list(self._requests.items()):
            if request.is_finished():
                self._check_answer(self._requests.pop(id_))

    def _check_answer(self, request: Request) -> None:
        prompt = list(request.prompt_token_ids or ())
        said = list(request.output_token_ids)
        truth = Truth(prompt)
        if [truth[len(prompt) + i] for i in range(len(said))] != said:
            raise CorruptedError(f"request {request.request_id} answered {said}")
        self.num_finished += 1
        self.num_preemptions += request.num_preemptions
        self._histories.append(prompt + said)


def unowned_units(scheduler: Any) -> Callable[[], Iterable[int]]:
    """Return the names of units without an owner to which no key leads."""
    pool: Any = scheduler.kv_cache_manager.block_pool
    if not isinstance(pool, SlabPool):
        return lambda: [
            block.block_id
            for block in pool.free_block_queue.get_all_free_blocks()
            if block.block_hash is None
        ]
    pools: list[Any] = pool.pools
    num_slabs = pools[0].num_slabs + 1

    def empty_slabs() -> Iterable[int]:
        held = {
            number // (len(blocks) // num_slabs)
            for blocks in pools
            for number, block in enumerate(blocks)
            if block.ref_cnt or block.block_hash
        }
        return [slab for slab in range(1, num_slabs) if slab not in held]

    return empty_slabs
