"""A KV connector whose other end has every prompt, and the worker that it loads into.

Loads end in the step that began them or later, and some fail halfway. The load of an aborted
request goes on to its end: its blocks are not others' before.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hybrid_blocks.tools.profile.engine import NothingToLoad
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput

from .fake_worker import CorruptedError, FakeWorker, Truth
from .fake_worker_engine import FakeEngine
from .fake_worker_memory import STALE, Ids


@dataclass
class Load:
    """Tokens ``first`` to ``last`` of a request, for the blocks that it holds."""

    id_: str
    prompt: list[int]
    tables: tuple[list[int], ...]
    first: int
    last: int
    steps: int = 0
    """Steps until it ends."""
    fails: bool = False


@dataclass
class Begun(KVConnectorMetadata):
    """The loads that a step begins."""

    loads: list[Load] = field(default_factory=list)


@dataclass
class Plan:
    """Answers of a connector, and how its loads go."""

    random: Random
    unit: int
    """Tokens of a unit; the connector has whole units alone."""
    is_async: bool = True
    share_failing: float = 0.0
    most_steps: int = 4
    reach: int | None = None
    """Tokens that it has of each prompt; None, to draw them."""


class FakeConnector(NothingToLoad):
    """Has a part of each prompt. ``plan`` is set once the scheduler is there."""

    plan: Plan

    def __init__(self, config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(config, role, kv_cache_config)
        self.shown: list[tuple[str, int]] = []
        self.num_loads = 0
        self._reach: dict[tuple[str, int], int] = {}
        self._begun: list[Load] = []

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        plan = self.plan
        self.shown.append((request.request_id, num_computed_tokens))
        if plan.reach is None and plan.random.random() < 0.05:
            return None, False
        most = (request.num_tokens - 1) // plan.unit
        key = request.request_id, request.num_preemptions
        if key not in self._reach:
            units = plan.random.randint(0, most) if plan.reach is None else plan.reach // plan.unit
            self._reach[key] = plan.unit * min(units, most)
        more = max(0, self._reach[key] - num_computed_tokens)
        return more, plan.is_async and more > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        last = self._reach[request.request_id, request.num_preemptions]
        prompt, ids = list(request.prompt_token_ids), tuple(map(list, blocks.get_block_ids()))
        load = Load(request.request_id, prompt, ids, last - num_external_tokens, last)
        if self.plan.is_async:
            load.steps = self.plan.random.randrange(self.plan.most_steps)
            load.fails = self.plan.random.random() < self.plan.share_failing
        self.num_loads += 1
        self._begun.append(load)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ARG002
        begun, self._begun = self._begun, []
        return Begun(begun)


def attach(config: VllmConfig, policy: str = "fail") -> None:
    """Give an engine the connector."""
    config.kv_transfer_config = KVTransferConfig(
        kv_connector=FakeConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy=policy,  # type: ignore[arg-type]
    )


class LoadingWorker(FakeWorker):
    """Writes what is loaded after the copies of a step, and before its forward pass."""

    is_async_load = True

    def execute(self, output: SchedulerOutput) -> tuple[ModelRunnerOutput, DraftTokenIds]:
        """Execute a step; say which loads ended with it, and which of those failed."""
        begun: Any = output.kv_connector_metadata
        self.loading.extend(begun.loads)
        self._ended: list[Load] = []
        result, drafts = super().execute(output)
        if self._ended and self.is_async_load:
            result.kv_connector_output = KVConnectorOutput(
                finished_recving={load.id_ for load in self._ended},
                failed_recving={load.id_ for load in self._ended if load.fails},
            )
        return result, drafts

    @property
    def loading(self) -> list[Load]:
        """Loads that go on."""
        return self.__dict__.setdefault("_loading", [])  # type: ignore[no-any-return]

    def _copy(self, copies: Ids) -> None:
        super()._copy(copies)
        for load in list(self.loading):
            if load.steps:
                load.steps -= 1
                continue
            self._write(load)
            self.loading.remove(load)
            self._ended.append(load)

    def units_of(self, load: Load) -> set[int]:
        """Return the units that a load writes."""
        units = set[int]()
        for group, spec in enumerate(self.specs):
            table, size = np.array(load.tables[group], dtype=np.int64), spec.block_size
            first = (load.last - 1 if group in self.states else load.first) // size
            written = table[first : -(-load.last // size)]
            units.update((written // self.memory.layouts[group].per_unit).tolist())
        return units - {0}

    def _write(self, load: Load) -> None:
        truth = Truth(load.prompt)
        for group in self.attention:
            size = self.specs[group].block_size
            ahead = self._ahead[group]
            positions = np.arange(load.first, load.last)
            ids = np.array(load.tables[group], dtype=np.int64)[positions // size]
            hashes = truth.after(load.first + 1 + ahead, load.last + ahead).copy()
            if load.fails:
                hashes[len(hashes) // 2 :] = STALE
            # A window's blocks before it are not there.
            there = ids > 0
            self.memory.write_tokens(group, ids[there], positions[there] % size, hashes[there])
        for group in self.states:
            value = STALE if load.fails else truth.after(load.last, load.last)[0]
            slot = load.tables[group][(load.last - 1) // self.specs[group].block_size]
            self.memory.window(group, slot)[0] = value
            self.memory.state(group, slot)[:] = value


class LoadingEngine(FakeEngine):
    """An engine whose requests wait for loads. Every step is carried out, whatever it computes."""

    @property
    def may_reset(self) -> bool:
        """Whether no load would be lost, and no block is freed later: vLLM refuses a reset then."""
        requests = self.scheduler.requests.values()
        is_loading = any("REMOTE" in it.status.name or it.is_finished() for it in requests)
        return not (self._depth or is_loading)

    def reset(self) -> None:
        """The prefix cache is reset, if it may be."""
        if self.may_reset:
            super().reset()

    def finish(self) -> None:
        """Step on until all requests have finished, those that are gone and still loaded too."""
        for _ in range(20 * self._max_model_len):
            if not self.scheduler.requests:
                break
            self.step()
        else:
            raise AssertionError(f"requests {sorted(self.scheduler.requests)} do not finish")
        while self._in_flight:
            self._take_in(*self._in_flight.popleft())

    def step(self) -> SchedulerOutput:
        """Schedule and execute; take in the outputs, one step later if asynchronous."""
        output = self._schedule()
        self._check_fence(output)
        self._in_flight.append((output, *self.worker.execute(output)))
        while len(self._in_flight) > self._depth:
            self._take_in(*self._in_flight.popleft())
        return output

    def _check_fence(self, output: SchedulerOutput) -> None:
        """No order holds between loads and steps under way, so these share no unit."""
        begun: Any = output.kv_connector_metadata
        worker: Any = self.worker
        loads = getattr(begun, "loads", ())
        units = {unit for load in loads for unit in worker.units_of(load)}
        for earlier, _, _ in self._in_flight:
            ends = {end for copy in earlier.kv_cache_block_copies or () for end in ends_of(copy)}
            if both := ends & units:
                raise CorruptedError(f"a load may overtake a step that copies units {both}")


def ends_of(copy: Any) -> tuple[int, int]:
    """Return the units of a state that a copy, or a prefill checkpoint, reads and writes."""
    return tuple(copy) if len(copy) == 2 else (copy.src_block, copy.dst_block)
