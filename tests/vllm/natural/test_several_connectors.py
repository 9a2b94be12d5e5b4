"""Two offloads below one engine over slabs: each request reads what its tokens wrote."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hybrid_blocks.offload.multi import connector as multi_connector
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from . import fake_host
from .fake_host import HostConnector, HostWorker, Moving
from .test_fake_worker import MAX_NUM_REQUESTS, MIXES
from .test_slab_offload import offloading

NUM_HOSTS = 2


def attach(config: VllmConfig, host_chunks: int) -> None:
    """Give an engine both; the second has little room."""
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="HybridMultiConnector",
        kv_connector_module_path="hybrid_blocks.offload.multi",
        kv_role="kv_both",
        kv_connector_extra_config={
            "connectors": [
                {
                    "kv_connector": HostConnector.__name__,
                    "kv_connector_module_path": fake_host.__name__,
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"host_chunks": host_chunks // (1 + place)},
                }
                for place in range(NUM_HOSTS)
            ]
        },
    )


class HostsWorker(HostWorker):
    """Copies for both; a job's number is that of its connector and its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._chunks: list[dict[int, Any]] = [{} for _ in range(NUM_HOSTS)]
        self.loaded_from: set[int] = set()

    def execute(self, output: SchedulerOutput) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Execute a step as if one connector had asked for all."""
        told: Any = output.kv_connector_metadata
        parts = list(enumerate(told.metadata))
        merged: Any = SimpleNamespace(
            load_jobs={(at, it): job for at, part in parts for it, job in part.load_jobs.items()},
            store_jobs={(at, it): job for at, part in parts for it, job in part.store_jobs.items()},
            jobs_to_flush={(at, it) for at, part in parts for it in part.jobs_to_flush or ()},
        )
        output.kv_connector_metadata = merged
        result, drafts = super().execute(output)
        output.kv_connector_metadata = told
        if (reported := result.kv_connector_output) is not None:
            done: Any = reported.kv_connector_worker_meta
            reported.kv_connector_worker_meta = MultiKVConnectorWorkerMetadata(
                tuple(
                    OffloadingWorkerMetadata(
                        completed_jobs={
                            number: count
                            for (place, number), count in done.completed_jobs.items()
                            if place == at
                        }
                    )
                    for at in range(NUM_HOSTS)
                )
            )
        return result, drafts

    def _move(self, it: Moving) -> None:
        number: Any = it.number
        place: int = number[0]
        self.host.chunks = self._chunks[place]
        if not it.is_store:
            self.loaded_from.add(place)
        super()._move(it)


@pytest.mark.parametrize("is_one_call", [False, True], ids=["vLLM's calls", "one call"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mix", ["full-state-fine", "full-sliding", "full-state-fine-drafts"])
def test_whichever_is_chosen_every_request_reads_what_its_tokens_wrote(
    mix: str, is_async: bool, is_one_call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = Random(5)
    monkeypatch.setattr(
        multi_connector, "soonest", lambda offers, *_: draw.choice([*offers, *offers, None])
    )
    options: dict[str, Any] = {"attach": attach, "worker_cls": HostsWorker}
    options |= {"is_async": is_async, "is_one_call": is_one_call, "host_chunks": 600}
    with offloading(MIXES[mix], 6, **options) as engine:
        engine.live(200, MAX_NUM_REQUESTS)
        engine.drain()
        worker: Any = engine.worker
        assert worker.loaded_from == {0, 1}
        assert engine.num_finished > 20
        connector: Any = engine.scheduler.connector
        assert not connector._loads
        assert not connector._chosen
        for pool in engine.scheduler.kv_cache_manager.block_pool.pools:
            assert pool.num_live == 0
            pool.check_integrity()
