"""``HybridNixlConnector`` over slabs, alone and beside offload: a read that fails, ends or is left.

vLLM's scheduler and this connector's side of it are real. The worker reads what the other engine
would have computed, and writes half of it where a read fails.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from examples import SEEDED, examples
from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.offload.nixl.params import _FIELDS, NO_ENGINE
from hybrid_blocks.offload.nixl.stalled import StalledReads
from hybrid_blocks.offload.nixl.worker import SlabNixlWorker
from hybrid_blocks.tools.profile.engine import Groups
from hybrid_blocks.vllm.level import Level
from hypothesis import given, settings
from hypothesis import strategies as st
from installed import installed
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorWorkerMetadata,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from . import fake_host
from .fake_connector import Load, LoadingWorker
from .fake_host import Host, HostConnector, HostWorker
from .fake_worker_engine import make_engine
from .fake_worker_memory import Ids
from .test_slab_offload import HostEngine

MAX_MODEL_LEN = 700
PROMPT = [(31 + at * at) % 97 for at in range(200)]
OTHER = "another engine"
PULLS: dict[str, Any] = {
    "kv_connector": "HybridNixlConnector",
    "kv_connector_module_path": "hybrid_blocks.offload.nixl",
    "kv_role": "kv_both",
}
OFFLOADS = {
    "kv_connector": HostConnector.__name__,
    "kv_connector_module_path": fake_host.__name__,
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"host_chunks": 4_000},
}
NO_OFFLOAD: Any = SimpleNamespace(load_jobs={}, store_jobs={}, jobs_to_flush=None)
TO_BE_READ = {"do_remote_decode": True, "do_remote_prefill": False}


def read_of(prompt: list[int]) -> dict[str, Any]:
    """Return a router's transfer parameters for a prompt that another engine has computed."""
    attention = list(range(1, 1 + ceil_div(len(prompt) - 1, 16)))
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": OTHER,
        "remote_host": "localhost",
        "remote_port": 1,
        "tp_size": 1,
        "remote_block_ids": [attention, [1], [2], [3]],
        "remote_request_id": f"{OTHER}'s request",
    }


class PullWorker(HostWorker):
    """Reads for NIXL and copies for offload."""

    scheduler: Any
    checks: Any = None
    """A worker of NIXL, which refuses what cannot be read."""
    is_failing = False
    is_stalling = False
    read_steps = 1

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.loading: list[Load] = []
        self.stalled: list[Load] = []
        self.num_reads = 0
        self.refusals: list[str] = []
        self.given_back: set[str] = set()
        self._to_send: set[str] = set()

    def execute(self, output: SchedulerOutput) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Execute a step; say which reads ended with it, and which prompts were read."""
        told: Any = output.kv_connector_metadata
        pulls, output.kv_connector_metadata = getattr(told, "metadata", (told, NO_OFFLOAD))
        for id_, meta in pulls.reqs_to_recv.items():
            if any(meta.local_block_ids):
                self.loading.append(self._read(id_, meta))
                self.num_reads += 1
            else:
                self.given_back.add(id_)
        self._to_send |= pulls.reqs_to_send.keys()
        self._ended: list[Load] = []
        self._reads = StalledReads()
        result, drafts = super().execute(output)
        output.kv_connector_metadata = told
        result.kv_connector_output = self._report(result, is_listed=told is not pulls)
        return result, drafts

    def _read(self, id_: str, meta: Any) -> Load:
        new, is_refused = meta.local_block_ids, meta.remote.engine_id == NO_ENGINE
        if self.checks is not None and not is_refused:
            try:
                self.checks._check_read(meta)
            except HybridBlocksError as error:
                is_refused = True
                self.refusals.append(str(error))
        request = self.scheduler.requests[id_]
        tables = self.scheduler.kv_cache_manager.get_block_ids(id_)
        group = self.attention[0]
        first = (len(tables[group]) - len(new[group])) * self.specs[group].block_size
        last = request.num_computed_tokens
        ids = tuple(list(table) for table in tables)
        steps = 0 if is_refused else self.read_steps
        return Load(id_, request.prompt_token_ids, ids, first, last, steps, is_refused)

    def _copy(self, copies: Ids) -> None:
        super()._copy(copies)
        if not self.is_stalling:
            for load in self.stalled:  # which writes, long after its request went on
                LoadingWorker._write(self, load)  # type: ignore[arg-type]
            self._reads = StalledReads(ended=tuple(load.id_ for load in self.stalled))
            self.stalled = []
        for load in list(self.loading):
            if load.steps:
                load.steps -= 1
                continue
            if self.is_stalling:
                self.loading.remove(load)
                self.stalled.append(replace(load))
                load.fails = True
                self._reads = self._reads.aggregate(StalledReads(given_up=(load.id_,)))
                self._ended.append(load)
                continue
            load.fails = load.fails or self.is_failing
            LoadingWorker._write(self, load)  # type: ignore[arg-type]
            self.loading.remove(load)
            self._ended.append(load)

    def _report(self, result: ModelRunnerOutput, *, is_listed: bool) -> KVConnectorOutput:
        found = result.kv_connector_output or KVConnectorOutput()
        ended = {load.id_ for load in self._ended}
        found.finished_recving = (found.finished_recving or set()) | ended
        found.failed_recving = {load.id_ for load in self._ended if load.fails}
        found.finished_sending, self._to_send = self._to_send, set()
        own, reads = found.kv_connector_worker_meta, self._reads
        told = reads if reads.given_up or reads.ended else None
        if is_listed and (own is not None or told is not None):
            found.kv_connector_worker_meta = MultiKVConnectorWorkerMetadata((told, own))
        elif not is_listed:
            found.kv_connector_worker_meta = told
        return found


class PullEngine(HostEngine):
    """An engine that reads prompts of another one."""

    worker: PullWorker

    def ask(self, prompt: list[int], max_tokens: int = 4, transfer: Any = None) -> Any:
        """A request arrives whose prompt another engine has computed, or will read."""
        return self.add(list(prompt), max_tokens, transfer=transfer or read_of(prompt))

    @property
    def num_free(self) -> int:
        """Slabs that hold nothing that a request or a transfer needs."""
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free


@contextmanager
def pulling(
    groups: Groups = Groups.HYBRID,
    num_slabs: int = 40,
    max_model_len: int = MAX_MODEL_LEN,
    *,
    weights: list[float] | None = None,
    policy: str = "fail",
) -> Iterator[PullEngine]:
    """Start an engine; with ``weights`` offload is below it too, in one list."""
    config = groups.natural_config(num_slabs, max_model_len)
    several = {
        "kv_connector": "HybridMultiConnector",
        "kv_connector_module_path": "hybrid_blocks.offload.multi",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [PULLS, OFFLOADS], "weights": weights},
    }

    def attach(vllm: VllmConfig) -> None:
        transfer: Any = PULLS if weights is None else several
        vllm.kv_transfer_config = KVTransferConfig(
            **transfer,
            kv_buffer_device="cpu",
            kv_load_failure_policy=policy,  # type: ignore[arg-type]
        )

    random = Random(1)
    with installed(Level.NATURAL):
        sizes: Any = {"num_requests": 4, "max_model_len": max_model_len, "hash_block_size": 16}
        sizes |= {"scheduler_cls": Scheduler, "configure": attach}
        engine = make_engine(config, random, PullEngine, PullWorker, **sizes)
        engine.worker.scheduler = engine.scheduler
        engine.worker.host = Host(random)
        yield engine


LISTS = pytest.mark.parametrize("weights", [None, [1, 1]], ids=["alone", "beside offload"])


@LISTS
def test_a_prompt_of_another_engine_is_read_and_not_computed(weights: list[float] | None) -> None:
    with pulling(weights=weights) as engine:
        free = engine.num_free
        engine.ask(PROMPT)
        engine.finish()
        engine.drain()
        assert engine.worker.num_reads == 1
        assert engine.num_cached_tokens == len(PROMPT) - 1
        assert engine.num_free == free


@LISTS
def test_a_read_that_fails_half_way_is_computed_by_policy(weights: list[float] | None) -> None:
    with pulling(weights=weights, policy="recompute") as engine:
        free = engine.num_free
        engine.worker.is_failing = True
        engine.ask(PROMPT)
        engine.finish()  # which compares the answer
        engine.drain()
        assert engine.worker.num_reads == 1
        assert engine.num_finished == 1
        assert engine.num_free == free
        found = engine.num_cached_tokens
        engine.add(PROMPT, 4)
        engine.finish()
        assert engine.num_cached_tokens - found > 100


@LISTS
def test_a_read_that_fails_ends_its_request_and_leaves_no_key(weights: list[float] | None) -> None:
    with pulling(weights=weights) as engine:
        free = engine.num_free
        engine.worker.is_failing = True
        request = engine.ask(PROMPT)
        engine.finish()
        assert request.status is RequestStatus.FINISHED_ERROR
        assert engine.num_free == free
        found = engine.num_cached_tokens
        engine.add(PROMPT, 4)
        engine.finish()
        assert engine.num_cached_tokens == found
        engine.drain()
        assert engine.num_free == free


@LISTS
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_read_that_does_not_end_in_time_writes_to_no_other_request(
    policy: str, weights: list[float] | None
) -> None:
    with pulling(weights=weights, policy=policy) as engine:
        free = engine.num_free
        engine.worker.is_stalling = True
        request = engine.ask(PROMPT)
        if policy == "fail":
            engine.finish()
            assert request.status is RequestStatus.FINISHED_ERROR
        else:
            engine.finish()  # which compares the answer
            assert engine.num_finished == 1
        engine.drain()
        side = engine.scheduler.connector
        pulls = (side if weights is None else side._connectors[0]).connector_scheduler
        stalled, given_up = (sample.value for sample in pulls.samples()[-2:])
        assert given_up == 1
        assert 0 < stalled <= free - engine.num_free
        for number in range(3):  # in all of the memory but the blocks that are kept
            engine.add([number, *PROMPT, *range(90)], 4)
        engine.finish()
        assert not engine.scheduler.reset_prefix_cache()
        engine.worker.is_stalling = False
        engine.add(PROMPT, 4)
        engine.finish()
        engine.drain()
        assert engine.num_free == free
        assert [sample.value for sample in pulls.samples()[-2:]] == [0, 1]
        assert engine.scheduler.reset_prefix_cache()


@LISTS
def test_blocks_of_a_read_that_is_given_up_stay_until_it_ends(weights: list[float] | None) -> None:
    with pulling(weights=weights) as engine:
        free = engine.num_free
        engine.worker.read_steps = 5
        request = engine.ask(PROMPT)
        engine.step()
        assert request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        engine.abort(request)
        held = free - engine.num_free
        for _ in range(4):
            engine.step()
            assert free - engine.num_free == held > 0
        for _ in range(3):
            engine.step()
        assert engine.num_free == free


@LISTS
def test_a_prompt_is_held_until_its_reader_has_it(weights: list[float] | None) -> None:
    with pulling(weights=weights) as engine:
        free = engine.num_free
        side = engine.scheduler.connector
        pulls = side if weights is None else side._connectors[0]
        engine.ask(PROMPT, 1, TO_BE_READ)
        while engine._requests:
            engine.step()
        held = pulls.connector_scheduler._held
        assert held.num_slabs > 0
        assert engine.num_free < free
        for _ in range(3):
            engine.step()
        assert held.num_slabs == 0
        engine.drain()
        assert engine.num_free == free


def test_the_engine_that_computes_prompts_finds_them_below_the_device_and_hands_them_over() -> None:
    with pulling(weights=[1, 1]) as engine:
        free = engine.num_free
        engine.ask(PROMPT, 1, TO_BE_READ)
        engine.finish()
        engine.drain()
        assert engine.scheduler.reset_prefix_cache()
        engine.ask([*PROMPT, *range(30)], 1, TO_BE_READ)
        while engine._requests:
            engine.step()
        assert engine.worker.host.num_loaded > 0
        assert engine.num_cached_tokens > 100
        assert engine.scheduler.connector._connectors[0].connector_scheduler._held.num_slabs > 0
        for _ in range(3):
            engine.step()
        engine.drain()
        assert engine.num_free == free


def test_a_weight_of_0_reads_nothing_and_the_other_engine_is_told() -> None:
    with pulling(weights=[0, 1]) as engine:
        request = engine.ask(PROMPT)
        engine.finish()
        assert engine.worker.num_reads == 0
        assert engine.worker.given_back == {request.request_id}
        assert engine.num_cached_tokens == 0


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 66), 1 << 66)
    | st.floats()
    | st.text(st.characters(), max_size=4)
    | st.sampled_from([-1, 36, 40, 1 << 31, "", "\ud800"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
NAMES = [*read_of(PROMPT), *_FIELDS, "_p_side_truncated", "_remote_blocks_processed"]
TRANSFERS = (
    st.dictionaries(st.sampled_from(NAMES), ANYTHING, min_size=1, max_size=3).map(
        lambda changes: read_of([0, *PROMPT]) | changes
    )
    | st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6)
    | ANYTHING
)


def checks_of(reader: PullEngine, other: PullEngine) -> Any:
    """Return the checks of an engine's worker once it knows another engine of the same groups."""
    blocks, others = (it.scheduler.kv_cache_manager.kv_cache_config for it in (reader, other))
    worker: Any = SlabNixlWorker.__new__(SlabNixlWorker)
    groups = range(len(blocks.kv_cache_groups))
    sizes = [others.num_blocks * others.blocks_per_slab_of(group) for group in groups]
    worker.kv_cache_config = blocks
    worker.region_group_ids = list(groups)
    worker._remote_agents = worker.dst_region_num_blocks = {OTHER: sizes}
    worker._engine_clock_offset, worker._renewals = {OTHER: 0.0}, {}
    worker._lease_extension = 20
    return worker


@pytest.mark.parametrize(
    ("groups", "longest"), [(Groups.HYBRID, 640), (Groups.SWA, 2000), (Groups.FULL, 640)]
)
def test_an_engine_names_as_many_blocks_as_the_other_takes(groups: Groups, longest: int) -> None:
    random = Random(3)
    families = [[random.randrange(97) for _ in range(longest)] for _ in range(3)]
    slabs = (2_000, 1_800) if groups is Groups.SWA else (200, 150)
    engines = [pulling(groups, num_slabs, longest + 60) for num_slabs in slabs]
    with engines[0] as other, engines[1] as reader:
        reader.worker.checks = checks_of(reader, other)
        side = other.scheduler.connector.connector_scheduler
        finish, told = side.request_finished, []

        def noted(*arguments: Any) -> Any:
            told.append(finish(*arguments))
            return told[-1]

        side.request_finished = noted
        for _ in range(40):
            length = random.choice((1, 2, 15, 16, 17, 32, 33, 200, random.randrange(1, longest)))
            prompt = random.choice(families)[:length]
            prompt += [random.randrange(97) for _ in range(random.choice((0, 0, 1, 20)))]
            other.ask(list(prompt), 1, TO_BE_READ)
            while other._requests:
                other.step()
            is_held, params = told[-1]
            assert is_held
            reader.ask(prompt, 3, params | {"remote_engine_id": OTHER})
            reader.finish()
            for _ in range(3):
                other.step()
        assert reader.worker.num_reads > 20
        assert reader.worker.refusals == []
        assert reader.num_finished == 40


@settings(max_examples=examples(25), phases=SEEDED)
@given(st.lists(TRANSFERS, min_size=1, max_size=5), st.sampled_from(["fail", "recompute"]))
def test_no_client_stops_the_engine(transfers: list[Any], policy: str) -> None:
    with pulling(policy=policy) as engine:
        engine.worker.checks = checks_of(engine, engine)
        free = engine.num_free
        for number, transfer in enumerate(transfers):
            engine.ask([number, *PROMPT], 3, transfer)
            engine.step()
        engine.finish()  # which compares the answers
        assert engine.num_finished <= len(transfers)
        if policy == "recompute":
            assert engine.num_finished == len(transfers)
        for _ in range(3):
            engine.step()
        engine.add(PROMPT, 4)
        engine.finish()
        engine.drain()
        assert engine.num_free == free


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([[1], [1], [1], [1]], "1 blocks of group 0, and the prompt has 13"),
        ([[*range(1, 15)], [1], [1], [1]], "14 blocks of group 0, and the prompt has 13"),
        ([[*range(1, 14)], [1, 2], [1], [1]], "2 blocks of group 1, and the prompt has 1"),
        ([[*range(1, 14)], [], [1], [1]], "0 blocks of group 1, and the prompt has 1"),
        ([[*range(1, 14)], [40], [1], [1]], "block 40 of group 1, whose layers have 40 blocks"),
        ([[*range(13)], [1], [1], [1]], "block 0 of group 0, which holds nothing"),
    ],
)
def test_blocks_that_the_other_engine_cannot_mean_are_not_read(
    ids: list[list[int]], why: str, policy: str
) -> None:
    with pulling(policy=policy) as engine:
        engine.worker.checks = checks_of(engine, engine)
        request = engine.ask(PROMPT, 4, read_of(PROMPT) | {"remote_block_ids": ids})
        engine.finish()
        capped, failed = RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ERROR
        assert request.status is (failed if policy == "fail" else capped)
        (refusal,) = engine.worker.refusals
        assert refusal.startswith(why)
