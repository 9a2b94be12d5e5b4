"""KV-cache events of an engine at level ``natural`` under a load, as vLLM publishes them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.profile.engine import make_hasher, scheduler_over
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.level import EVENTS, Level
from loads import generate
from natural.engine import Engine
from natural.served import Served
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockStored, KVEventBatch
from vllm.v1.core.sched.scheduler import Scheduler

GIB = 2**30
ATTENTION = "full_attention", "mla_attention"


@dataclass(frozen=True)
class Load:
    """The first requests of a generated workload, and the memory that they meet."""

    model: str
    gib: float
    workload: str
    num_requests: int
    seed: int = 0
    at_once: int = 8


@dataclass(frozen=True)
class Prompt:
    """A prompt at its admission: the batches published before, and the tokens found."""

    tokens: list[int]
    num_batches: int
    num_found: int
    is_next: bool
    """Whether the prompt follows another of its session."""


@dataclass
class Published:
    """The batches of an engine's life, encoded, and its prompts."""

    batches: list[bytes] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    block_size: int = 0
    """Tokens of a block of full attention."""

    def publish(self, batch: KVEventBatch) -> None:
        """Stand for vLLM's publisher."""
        batch.data_parallel_rank = 0
        for event in batch.events:
            if isinstance(event, BlockStored) and event.kv_cache_spec_kind in ATTENTION:
                self.block_size = event.block_size
        self.batches.append(msgspec.msgpack.encode(batch))


@contextmanager
def natural(monkeypatch: pytest.MonkeyPatch, mode: str) -> Iterator[None]:
    """Install level ``natural``, which publishes ``all`` or ``usable`` events."""
    monkeypatch.setenv("HYBRID_BLOCKS", Level.NATURAL)
    monkeypatch.setenv(EVENTS, mode)
    install.install(Level.NATURAL)
    try:
        yield
    finally:
        install.uninstall()


def publish_events(config: Any) -> None:
    config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")


def published(load: Load) -> Published:
    """Serve a load, each prompt after the one that it follows; then reset the cache."""
    trace = generate(load.workload, load.seed, load.num_requests)
    model = load_model(load.model)
    longest = int(trace.total_tokens.max()) + 1
    deployment = Deployment(max_model_len=longest, max_num_batched_tokens=8192, in_flight_batches=1)
    config = Engine(model, deployment, int(load.gib * GIB)).scheduler_config()
    scheduler: Any = scheduler_over(
        config,
        num_requests=load.at_once,
        max_model_len=deployment.length(model),
        max_num_batched_tokens=8192,
        hash_block_size=min(group.kv_cache_spec.block_size for group in config.kv_cache_groups),
        scheduler_cls=Scheduler,
        configure=publish_events,
    )
    seen = scheduler.kv_event_publisher = Published()
    size = scheduler.kv_cache_manager.block_pool.hash_block_size
    engine = Served(scheduler, config, make_hasher(size))

    def note(scheduled: Any) -> None:
        for new in scheduled.scheduled_new_reqs:
            leader = int(trace.follows[int(new.req_id)])
            is_next = leader >= 0 and trace.session[leader] == trace.session[int(new.req_id)]
            about = len(seen.batches), new.num_computed_tokens, bool(is_next)
            seen.prompts.append(Prompt(new.prompt_token_ids, *about))

    waiting, finished = list(range(len(trace))), {-1}
    while waiting or scheduler.requests:
        # At most one arrives in a step: a router learns of a step's blocks after the step.
        room = len(scheduler.requests) < load.at_once
        ready = [one for one in waiting if room and int(trace.follows[one]) in finished]
        for number in ready[:1]:
            tokens, num_prompt = trace.token_ids(number).tolist(), int(trace.prompt_tokens[number])
            engine.add(str(number), tokens[:num_prompt], tokens[num_prompt:])
            waiting.remove(number)
        engine.step(note)
        finished |= {
            one for one in range(len(trace)) if one not in waiting and not engine.is_known(str(one))
        }
    scheduler.reset_prefix_cache()
    seen.publish(KVEventBatch(ts=0.0, events=scheduler.kv_cache_manager.take_events()))
    return seen
