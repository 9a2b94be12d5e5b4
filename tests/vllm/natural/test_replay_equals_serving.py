"""The replay does what level ``natural`` does in vLLM's scheduler: step by step, block by block."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hybrid_blocks import BlockManager
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.tools.replay import Cache, EngineConfig, RustOptions, model_cache
from hybrid_blocks.tools.replay.engine import VirtualEngine as ReplayEngine
from hybrid_blocks.tools.replay.manager import Counts, Handles
from hybrid_blocks.tools.replay.managers.rust import RustManager, make_rust
from hybrid_blocks.tools.trace import Trace
from hybrid_blocks.vllm.level import Level
from installed import installed
from loads import generate
from vllm.v1.core.sched.scheduler import Scheduler

from natural.engine import Engine
from natural.served import Served

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """``num_requests`` of a generated workload at once, ``at_once`` of them in the batch."""

    model: str
    gib: float
    workload: str
    num_requests: int
    at_once: int
    seed: int = 0
    budget: int = 8192
    alignment: int | None = None
    """Multiple of tokens after a chunk's start at which workers keep states inside it."""
    drafts: int = 0
    """Drafts that have room; none is accepted."""

    def trace(self) -> Trace:
        trace = generate(self.workload, self.seed, self.num_requests)
        alone = np.full_like(trace.follows, -1)
        return replace(trace, arrival=np.zeros_like(trace.arrival), follows=alone)

    def deployment(self, trace: Trace) -> Deployment:
        return Deployment(
            max_model_len=int(trace.total_tokens.max()) + 1,
            max_num_batched_tokens=self.budget,
            num_speculative_tokens=self.drafts,
            in_flight_batches=1,
        )


@dataclass(frozen=True)
class Step:
    """The requests of a step, and the memory once its copies are handed over."""

    num_tokens: dict[str, int]
    preempted: list[str]
    free_slabs: int
    live_blocks: tuple[int, ...]
    reserved: dict[str, int]


@dataclass
class Run:
    steps: list[Step] = field(default_factory=list)
    num_hit_tokens: dict[str, int] = field(default_factory=dict)


class Recorder(RustManager):
    """Notes the steps of a replay."""

    def __init__(self, core: BlockManager, cache: Cache, options: RustOptions) -> None:
        super().__init__(core, cache, options)
        self.steps: list[Step] = []
        self._preempted: list[str] = []
        self._ids: dict[int, str] = {}

    def add_request(self, request_id: str, tokens: Any) -> int:
        handle = super().add_request(request_id, tokens)
        self._ids[handle] = request_id
        return handle

    def preempt(self, handles: Handles) -> None:
        self._preempted += [self._ids[handle] for handle in handles.tolist()]
        super().preempt(handles)

    def advance(self, handles: Handles, num_tokens: Counts) -> None:
        ids = [self._ids[handle] for handle in handles.tolist()]
        self.core.take_copies()
        super().advance(handles, num_tokens)
        self.steps.append(
            Step(
                dict(zip(ids, num_tokens.tolist(), strict=True)),
                sorted(self._preempted),
                self.num_free_blocks,
                self.num_live_blocks,
                self.reserved_bytes(),
            )
        )
        self._preempted = []


def replayed(case: Case) -> Run:
    trace = case.trace()
    limits: Any = {"max_num_seqs": case.at_once, "max_num_batched_tokens": case.budget}
    limits |= {"watermark": 0.0, "prefill_checkpoint_alignment": case.alignment}
    config = EngineConfig(**limits)
    cache = model_cache(case.model, int(case.gib * GIB), case.deployment(trace))
    recorder = make_rust(cache, config, RustOptions(), Recorder)
    run = Run(recorder.steps)

    def on_hit(request: int, num_tokens: int) -> None:
        run.num_hit_tokens[str(request)] = num_tokens

    ReplayEngine(trace, recorder, cache, config, on_hit=on_hit).run()
    return run


def served(case: Case) -> Run:
    trace = case.trace()
    deployment, model = case.deployment(trace), load_model(case.model)
    planned = Engine(model, deployment, int(case.gib * GIB)).scheduler_config()
    config: Any = replace(planned, prefill_checkpoint_alignment=case.alignment)  # type: ignore[call-arg]
    scheduler = scheduler_over(
        config,
        num_requests=case.at_once,
        max_model_len=deployment.length(model),
        max_num_batched_tokens=case.budget,
        hash_block_size=min(group.kv_cache_spec.block_size for group in config.kv_cache_groups),
        scheduler_cls=Scheduler,
        num_draft_tokens=case.drafts,
        draft_method="eagle",
    )
    manager: Any = scheduler.kv_cache_manager
    pool = manager.block_pool
    engine = Served(scheduler, config, make_hasher(pool.hash_block_size))
    run = Run(num_hit_tokens=engine.num_hit_tokens)

    def note(scheduled: Any) -> None:
        run.steps.append(
            Step(
                dict(scheduled.num_scheduled_tokens),
                sorted(scheduled.preempted_req_ids or ()),
                pool.get_num_free_blocks(),
                tuple(one.num_live for one in pool.pools),
                {it.labels["part"]: it.value for it in manager._samples() if "part" in it.labels},
            )
        )

    for number in range(len(trace)):
        tokens, num_prompt = trace.token_ids(number).tolist(), int(trace.prompt_tokens[number])
        engine.add(str(number), tokens[:num_prompt], tokens[num_prompt:])
    while scheduler.requests:
        engine.step(note)
    return run


@pytest.fixture(autouse=True)
def natural(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HYBRID_BLOCKS", Level.NATURAL)
    with installed(Level.NATURAL):
        yield


CASES = (
    Case("Qwen3.5-27B", 5, "tools", 30, 16, budget=512),
    # Two requests are preempted. Those that waited for their checkpoints do not wait again.
    Case("Qwen3.5-27B", 6, "conversations", 60, 64),
    Case("gpt-oss-20b", 0.7, "conversations", 30, 64),
    Case("Gemma-3-27B", 6, "conversations", 40, 32, seed=2, budget=2048),
    Case("Llama-4-Scout-17B-16E", 6, "tools", 30, 16),
    Case("LFM2-1.2B", 0.4, "agents", 15, 8),
    Case("Qwen3.5-27B", 5, "tools", 30, 16, budget=2048, alignment=1),
    Case("Qwen3.5-27B", 6, "conversations", 60, 64, alignment=1),
    Case("Nemotron-H-8B", 2, "documents", 30, 8, alignment=64),
    # Keys that a step's first requests leave shorten those that wait behind a long prompt.
    Case("Qwen3.5-27B", 12, "agents", 30, 32, seed=3),
    Case("Qwen3.5-27B", 12, "tools", 40, 32, seed=1, alignment=1),
    Case("Qwen3.5-27B", 6, "tools", 30, 16, budget=2048, alignment=1, drafts=2),
    Case("Granite-4.0-H-Small", 6, "conversations", 40, 32, alignment=1, drafts=2),
)
MORE = tuple(
    Case(model, gib, workload, 120, at_once, seed, alignment=alignment)
    for alignment in (None, 1)
    for model, gib in (
        ("Qwen3.5-27B", 12),
        ("Nemotron-H-8B", 4),
        ("Kimi-Linear-48B-A3B", 20),
        ("gpt-oss-20b", 2),
        ("Gemma-4-31B", 12),
        ("Granite-4.0-H-Small", 6),
    )
    # No worker leaves states where there are none.
    if alignment is None or load_model(model).is_hybrid
    for workload in ("tools", "agents", "documents", "conversations", "changing")
    for seed, at_once in enumerate((8, 16, 32, 64))
)


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in MORE)],
    ids=lambda case: "-".join(map(str, vars(case).values())),
)
def test_a_replay_takes_every_step_that_level_natural_takes(case: Case) -> None:
    expected, found = served(case), replayed(case)
    for number, (theirs, ours) in enumerate(zip(expected.steps, found.steps, strict=False)):
        assert ours == theirs, f"step {number}"
    assert len(found.steps) == len(expected.steps)
    assert found.num_hit_tokens == expected.num_hit_tokens
    assert len({len(step.num_tokens) for step in expected.steps}) > 1
