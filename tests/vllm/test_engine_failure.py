"""A panic in the core, seen from vLLM's engine: reported, with the request's name, and survived."""

from collections.abc import Iterator
from concurrent.futures import Future
from queue import Queue
from threading import Thread
from typing import Any

import pytest
from hybrid_blocks.errors import IntegrityError
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from installed import installed
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.engine import core
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    # vLLM's core dresses the process up as one of its own.
    for dressing in ("decorate_logs", "set_process_title", "maybe_init_worker_tracer"):
        monkeypatch.setattr(core, dressing, lambda *_: None)
    with installed():
        yield


class Executor:
    """Computes one token a request."""

    def execute_model(self, scheduled: Any, **_: Any) -> Future[ModelRunnerOutput]:
        ids = list(scheduled.num_scheduled_tokens)
        places = {id_: index for index, id_ in enumerate(ids)}
        output = ModelRunnerOutput(ids, places, sampled_token_ids=[[7] for _ in ids])
        future: Future[ModelRunnerOutput] = Future()
        future.set_result(output)
        return future


class Engine(core.EngineCoreProc):
    """vLLM's engine loop without a model, workers or sockets."""

    def __init__(self, scheduler: Any) -> None:
        self.vllm_config = scheduler.vllm_config
        self.scheduler = scheduler
        self.model_executor = Executor()
        self.input_queue = Queue()
        self.output_queue = Queue()
        self.aborts_queue = Queue()
        self.output_thread = Thread(target=lambda: None)
        self.output_thread.start()
        self.step_fn = self.step
        self.batch_queue = None
        self.log_stats = False
        self.publish_dp_lb_stats = False
        self.check_for_draft_tokens = False
        self.async_scheduling = True
        self.engines_running = False
        self.process_input_queue_block = True
        self.shutdown_state = core.EngineShutdownState.RUNNING
        self._weight_version = "default"
        self._idle_state_callbacks = []
        self.enable_fault_tolerance = False
        self.was_shut_down = False

    def shutdown(self) -> None:
        self.was_shut_down = True


def request(name: str) -> Request:
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    return Request(name, list(range(100)), sampling, None, block_hasher=make_hasher())


def doom(manager: Any, request_id: str) -> None:
    """Give the request a hit without a list for each group, which the core cannot survive."""
    look_up = manager.get_computed_blocks

    def look_up_wrongly(request: Request, *args: Any) -> tuple[Any, int, int]:
        if request.request_id != request_id:
            return look_up(request, *args)  # type: ignore[no-any-return]
        return KVCacheBlocks(()), 16, 0

    manager.get_computed_blocks = look_up_wrongly


def test_a_panic_names_its_request_and_the_process_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = make_scheduler(Groups.SWA, num_requests=4, num_blocks=1_000, max_model_len=1_024)
    manager: Any = scheduler.kv_cache_manager
    assert isinstance(manager, NativeKVCacheManager)
    engine = Engine(scheduler)
    run = core.EngineCoreProc.run_engine_core
    monkeypatch.setattr(core, "EngineCoreProc", lambda *_args, **_kwargs: engine)
    monkeypatch.setattr(core.EngineCoreProc, "ENGINE_CORE_DEAD", b"dead", raising=False)
    scheduler.add_request(request("fine"))
    scheduler.add_request(request("doomed"))
    doom(manager, "doomed")
    with pytest.raises(IntegrityError, match='panicked at request "doomed": index out of bounds'):
        run(vllm_config=engine.vllm_config)
    assert engine.output_queue.get_nowait() == b"dead"
    assert engine.was_shut_down
    with pytest.raises(IntegrityError, match="an earlier call panicked"):
        manager.get_blocks("fine")
