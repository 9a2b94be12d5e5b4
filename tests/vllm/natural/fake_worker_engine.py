"""vLLM's scheduler and a fake worker, in the engine's loop, with random requests."""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm.natural.manager import SlabPool
from hybrid_blocks.vllm.scheduler import one_call
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from .fake_worker import VOCABULARY, CorruptedError, FakeWorker, Truth

NUM_FAMILIES = 3
SCHEDULERS = (Scheduler, AsyncScheduler), (one_call.Scheduler, one_call.AsyncScheduler)
"""Schedulers of vLLM and of this package, in step and one step ahead."""


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
        self.hasher = hasher
        self._tamper = tamper
        self._random = random
        self._max_model_len = max_model_len
        self._has_priorities = has_priorities
        self._is_async = is_async
        self._depth = num_stages - (not is_async)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput, Any]] = deque()
        self._requests: dict[str, Request] = {}
        self.hits: dict[str, int] = {}
        """Tokens that each request found when it was last admitted."""
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
        self,
        prompt: list[int],
        max_tokens: int,
        priority: int = 0,
        transfer: Any = None,
        *,
        at: Request | None = None,
        sampling: Any = None,
        **about: Any,
    ) -> Request:
        """A request arrives to generate ``max_tokens``, or the next input of the session ``at``."""
        self._num_added += at is None
        id_ = f"request{self._num_added}" if at is None else at.request_id
        request = Request(
            request_id=id_,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, **(sampling or {})
            ),
            pooling_params=None,
            arrival_time=self._num_added,
            block_hasher=self.hasher,
            priority=priority,
            **about,
        )
        request.kv_transfer_params = transfer
        self._requests.setdefault(id_, request)
        self.scheduler.add_request(request)
        return request

    def abort(self, request: Request) -> None:
        """The client of a request hangs up."""
        self._requests.pop(request.request_id, None)
        self.scheduler.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)

    def hang_up(self) -> None:
        """Some client hangs up."""
        if self._requests:
            self.abort(self._requests[self._random.choice(sorted(self._requests))])

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

    def step(self) -> SchedulerOutput:
        """Schedule and execute; take in the outputs, one step later if asynchronous."""
        output = self._schedule()
        self._tamper(output)
        result, drafts = self.worker.execute(output)
        if output.total_num_scheduled_tokens:
            self._in_flight.append((output, result, drafts))
            if len(self._in_flight) <= self._depth:
                return output
        if self._in_flight:
            self._take_in(*self._in_flight.popleft())
        return output

    def _schedule(self) -> SchedulerOutput:
        output: SchedulerOutput = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.num_cached_tokens += new.num_computed_tokens
            self.hits[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for id_, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if id_ in cached.resumed_req_ids:
                self.hits[id_] = start
        return output

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


def make_engine(
    config: KVCacheConfig,
    random: Random,
    engine_cls: type[FakeEngine] = FakeEngine,
    worker_cls: type[FakeWorker] = FakeWorker,
    *,
    scheduler_cls: type[Scheduler],
    max_model_len: int,
    hash_block_size: int,
    of_rank: KVCacheConfig | None = None,
    num_drafts: int = 0,
    share_accepted: float = 0.6,
    engine: Any = None,
    **options: Any,
) -> Any:
    """Return an engine over the blocks of a configuration; ``of_rank`` has those of one rank."""
    options = {"num_requests": 8, "max_num_batched_tokens": 64} | options
    scheduler = scheduler_over(
        config if of_rank is None else of_rank,
        scheduler_cls=scheduler_cls,
        max_model_len=max_model_len,
        hash_block_size=hash_block_size,
        num_draft_tokens=num_drafts,
        **options,
    )
    is_async = issubclass(scheduler_cls, AsyncScheduler)
    lookahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)
    worker = worker_cls(
        config,
        num_drafts=num_drafts,
        share_accepted=share_accepted,
        is_async=is_async,
        zeroes_units=not getattr(config, "zeroes_single_blocks", False),
        looks_ahead=lookahead > 0,
        unowned=unowned_units(scheduler),
        random=random,
    )
    return engine_cls(
        scheduler,
        worker,
        make_hasher(hash_block_size, *filter(None, [lookahead])),
        random,
        max_model_len=max_model_len,
        is_async=is_async,
        **(engine or {}),
    )
