"""Traces through vLLM's own scheduler, with both managers behind it.

Where the public traces are not at hand, made ones in their formats stand for them.

``HYBRID_BLOCKS_ORACLE_STEPS=100000`` runs that many scheduler steps instead of a few.
"""

import os
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.tools.profile.loop import Loop
from hybrid_blocks.tools.profile.workload import Settings
from hybrid_blocks.tools.trace import Trace, generate_workload, read_trace
from hybrid_blocks.vllm import install
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from made_traces import MAKERS
from public_data import DATA
from vllm.v1.core.kv_cache_manager import KVCacheManager as VllmKVCacheManager
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.request import RequestStatus

from .twin import Twin
from .twin_manager import TwinManager

TRACES = {
    "mooncake": "mooncake_fast25_conversation_trace.jsonl.gz",
    "coding-agent": "claude_code_agentic_dev.jsonl.gz",
    "sharegpt": "llmservingsim_sharegpt_qwen3_300.jsonl.gz",
    "azure": "azure_llm_2023_conv.csv.gz",
    "generated": None,
}
NUM_STEPS = int(os.environ.get("HYBRID_BLOCKS_ORACLE_STEPS", "2000"))
CASES = len(TRACES) * len(Groups)
NUM_RUNNING = 12
MAX_MODEL_LEN = 16_384
# Few enough that requests preempt each other and cached prefixes are evicted.
NUM_BLOCKS = {Groups.FULL: 4_000, Groups.SWA: 9_000, Groups.HYBRID: 260, Groups.RING: 400}
LOOK_EVERY = 2_000


@cache
def trace_of(name: str) -> Trace:
    file = TRACES[name]
    if file is None:
        return generate_workload("conversations", num_requests=4000)
    path = DATA / "traces" / file
    if path.exists():
        return read_trace(path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.gz")
        MAKERS[name](path)
        return read_trace(path)


def jobs(trace: Trace) -> Iterator[tuple[list[int], int]]:
    """Requests that the engine can serve, in order, again and again."""
    prompts, outputs = trace.prompt_tokens.tolist(), trace.output_tokens.tolist()
    fitting = [
        request
        for request, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
        if 0 < prompt <= MAX_MODEL_LEN - max(1, output)
    ]
    for request in cycle(fitting):
        yield trace.token_ids(request)[: prompts[request]].tolist(), max(1, outputs[request])


def scheduler_of_twins(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Twin]:
    """vLLM's scheduler over vLLM's manager and the native one."""
    twins: list[Twin] = []

    def make(*args: Any, **kwargs: Any) -> TwinManager:
        kwargs |= {"enable_kv_cache_events": True}
        expected = VllmKVCacheManager(*args, **kwargs)
        install.install()
        try:
            actual = NativeKVCacheManager(*args, **kwargs)
        finally:
            install.uninstall()
        twins.append(Twin(expected, actual, look_every=LOOK_EVERY))
        return TwinManager(twins[0])

    monkeypatch.setattr(vllm_scheduler, "KVCacheManager", make)
    scheduler = make_scheduler(
        groups,
        num_requests=NUM_RUNNING,
        num_blocks=NUM_BLOCKS[groups],
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=2_048,
    )
    return scheduler, twins[0]


def disturb(scheduler: Any, twin: Twin, random: Random) -> None:
    """What happens beside the steps: clients hang up, connectors lose blocks, caches are reset."""
    match random.randrange(40):
        case 0 if scheduler.running:
            victim = random.choice(scheduler.running)
            scheduler.finish_requests(victim.request_id, RequestStatus.FINISHED_ABORTED)
        case 1:
            num_blocks = twin.managers[0].block_pool.num_gpu_blocks
            twin.call("evict_blocks", set(random.sample(range(1, num_blocks), 3)))
        case 2:
            twin.call("take_events")
        case 3 if random.random() < 0.05:
            scheduler.reset_prefix_cache(reset_running_requests=True)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("groups", list(Groups))
@pytest.mark.parametrize("name", TRACES)
def test_a_trace_through_vllms_scheduler_gets_the_same_answers_from_both_managers(
    name: str, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = trace_of(name)
    scheduler, twin = scheduler_of_twins(groups, monkeypatch)
    loop = Loop(
        scheduler, jobs(trace), make_hasher(), Settings(level="manager", requests=NUM_RUNNING)
    )
    random = Random(name)
    for _ in range(-(-NUM_STEPS // CASES)):
        loop.step()
        disturb(scheduler, twin, random)
    twin.compare(lambda: "the end", whole=True)
    assert twin.step > NUM_STEPS // CASES * 3
