"""A replay over host memory finds what vLLM's scheduler finds with `HybridOffloadingSpec`."""

import os
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hybrid_blocks.geometry.step_time import KNOTS, StepTime
from hybrid_blocks.model import load_model
from hybrid_blocks.offload.region import Header, Region
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.tools.replay import Cache, EngineConfig, VirtualEngine, model_cache
from hybrid_blocks.tools.replay.clock import Arrivals
from hybrid_blocks.tools.replay.hosted import HostedManager
from hybrid_blocks.tools.replay.managers.rust import make_rust
from hybrid_blocks.tools.replay.run import Variant
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.vllm.level import VARIABLE, Level
from installed import installed
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from natural.engine import Engine

MIB = 2**20
DEVICES = {"LFM2-1.2B": 200 * MIB, "gpt-oss-20b": 800 * MIB}
"""A few requests each."""
STEP_MS = 5.0
STEPS_OF_ONE_LENGTH = StepTime(ms=(STEP_MS,) * len(KNOTS))
CONFIG = EngineConfig(
    max_num_seqs=2,
    watermark=0,
    step_time=STEPS_OF_ONE_LENGTH,
    prefill_checkpoint_alignment=None,  # Workers say what layers leave, and there is none.
)


class InstantWorker(OffloadingWorker):
    """Every copy is done at once."""

    def __init__(self) -> None:
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, *_: object) -> bool:
        self._finished.append(TransferResult(job_id=job_id, success=True))
        return True

    def submit_load(self, job_id: int, *_: object, expedited: bool = False) -> bool:
        del expedited
        return self.submit_store(job_id)

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        pass

    def shutdown(self) -> None:
        pass


class ServedTrace:
    """vLLM's scheduler at level ``natural`` with the connector that users name, and no model."""

    def __init__(self, trace: Trace, config: Any, transfer: KVTransferConfig) -> None:
        def configure(vllm_config: VllmConfig) -> None:
            vllm_config.scheduler_config.watermark = 0.0
            vllm_config.kv_transfer_config = transfer

        self.trace = trace
        sizes: Any = {"num_requests": CONFIG.max_num_seqs, "hash_block_size": 16}
        sizes |= {"max_model_len": int(trace.total_tokens.max()) + 1, "scheduler_cls": Scheduler}
        sizes["max_num_batched_tokens"] = CONFIG.max_num_batched_tokens
        self.scheduler: Any = scheduler_over(config, configure=configure, **sizes)
        spec: Any = SimpleNamespace(replicated_layout=False)
        self.worker = OffloadingConnectorWorker(spec, self.scheduler.vllm_config, config)
        self.worker.worker = InstantWorker()
        self.outputs: dict[str, list[int]] = {}
        self.found: dict[str, int] = {}
        self.prompt_tokens = 0

    def run(self) -> None:
        arrivals, now = Arrivals(self.trace), 0.0
        connector = self.scheduler.connector
        while True:
            for number in arrivals.pop_until(now):
                self._arrive(number, now)
            busy = self.outputs or self.scheduler.has_requests()
            if not busy and not connector.has_pending_push_work():
                if arrivals.next_time == float("inf"):
                    return
                now = arrivals.next_time
                continue
            now += STEP_MS / 1e3
            for ended in self._step(self.scheduler.schedule()):
                arrivals.finish(ended, now)

    def _arrive(self, number: int, now: float) -> None:
        tokens = self.trace.token_ids(number).tolist()
        length = int(self.trace.prompt_tokens[number])
        self.outputs[str(number)] = tokens[length:]
        sampling = SamplingParams(max_tokens=len(tokens) - length, ignore_eos=True)
        more: Any = {"arrival_time": now, "block_hasher": make_hasher(16)}
        self.scheduler.add_request(Request(str(number), tokens[:length], sampling, None, **more))

    def _step(self, scheduled: SchedulerOutput) -> list[int]:
        """Compute a step; return the requests that ended."""
        metadata: Any = scheduled.kv_connector_metadata
        self.worker.handle_preemptions(metadata)
        self.worker.start_kv_transfers(metadata)
        self.worker.prepare_store_kv(metadata)
        _, received = self.worker.get_finished(scheduled.finished_req_ids)
        ids = list(scheduled.num_scheduled_tokens)
        updates = self.scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={one: at for at, one in enumerate(ids)},
                sampled_token_ids=[self._sampled(one) for one in ids],
                kv_connector_output=KVConnectorOutput(
                    finished_recving=received,
                    kv_connector_worker_meta=self.worker.build_connector_worker_meta(),
                ),
            ),
        )
        ended = []
        for output in (output for one in updates.values() for output in one.outputs):
            if output.prefill_stats is not None:
                self.found[output.request_id] = output.prefill_stats.num_cached_tokens
            if output.finish_reason is not None:
                del self.outputs[output.request_id]
                ended.append(int(output.request_id))
        return ended

    def _sampled(self, request_id: str) -> list[int]:
        request = self.scheduler.requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []
        return [int(self.outputs[request_id][request.num_output_tokens])]


def cache_of(model: str, trace: Trace) -> Cache:
    longest = int(trace.total_tokens.max()) + 1
    deployment = Deployment(max_model_len=longest, in_flight_batches=1, max_num_seqs=2)
    return model_cache(model, DEVICES[model], deployment)


def served_hits(trace: Trace, model: str) -> int:
    cache, host = cache_of(model, trace), 2 * DEVICES[model]
    assert cache.deployment is not None
    with patch.dict(os.environ, {VARIABLE: Level.NATURAL}), installed(Level.NATURAL):
        config = Engine(load_model(model), cache.deployment, DEVICES[model]).scheduler_config()
        groups = config.kv_cache_groups
        sizes = [it.kv_cache_spec.page_size_bytes * len(it.layer_names) for it in groups]
        header = Header(rank_bytes=sizes, layout={}, structures=[])
        transfer = KVTransferConfig(
            kv_connector="HybridOffloadingConnector",
            kv_connector_module_path="hybrid_blocks.offload.connector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "HybridOffloadingSpec",
                "spec_module_path": "hybrid_blocks.offload",
                "host": host,
            },
        )
        assert transfer.engine_id is not None
        region = Region.create(transfer.engine_id, host, 0, header)
        engine = ServedTrace(trace, config, transfer)
        try:
            engine.run()
            return sum(engine.found.values())
        finally:
            engine.scheduler.connector.connector_scheduler.shutdown()
            region.cleanup()


def replayed_hits(trace: Trace, model: str, host_bytes: int) -> int:
    cache = cache_of(model, trace)
    options = Variant(host_bytes=host_bytes).options(trace, cache)
    manager = make_rust(cache, CONFIG, options, HostedManager)
    engine = VirtualEngine(trace, manager, cache, CONFIG)
    engine.run()
    return int(engine.counters.hit_tokens)


@pytest.mark.parametrize("workload", ["conversations", "tools"])
@pytest.mark.parametrize("model", DEVICES)
def test_a_replay_finds_over_host_memory_what_is_served(workload: str, model: str) -> None:
    trace = generate_workload(workload, 0, 60)
    served, replayed = served_hits(trace, model), replayed_hits(trace, model, 2 * DEVICES[model])
    prompts = int(trace.prompt_tokens.sum())
    assert served > 0
    # A served load waits for steps of its own, so other content is evicted meanwhile.
    assert abs(replayed - served) < 0.025 * prompts
    assert replayed > replayed_hits(trace, model, DEVICES[model] // 4)
