"""Profiles one level, in a process of its own: ``python -m hybrid_blocks.vllm.profile.worker``."""

import gc
import sys
from pathlib import Path

import msgspec
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from hybrid_blocks.trace import read_trace
from hybrid_blocks.vllm import plugin
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.profile.engine import make_hasher, make_scheduler
from hybrid_blocks.vllm.profile.groups import Groups
from hybrid_blocks.vllm.profile.loop import Loop
from hybrid_blocks.vllm.profile.probes import Probes
from hybrid_blocks.vllm.profile.result import Findings, summarize
from hybrid_blocks.vllm.profile.settings import BATCHED, Settings
from hybrid_blocks.vllm.profile.workload import of_trace, steady
from hybrid_blocks.vllm.scheduler import AsyncScheduler as BatchedScheduler


def run(settings: Settings) -> Findings:
    """Run vLLM's scheduler under the settings and time it."""
    plugin.register()
    if settings.trace:
        trace = read_trace(Path(settings.trace))
        jobs = of_trace(trace)
        longest = int(trace.total_tokens.max())
    else:
        jobs = steady(
            settings.prompt_tokens, settings.shared_tokens, settings.output_tokens, settings.seed
        )
        longest = settings.prompt_tokens + settings.output_tokens
    groups = Groups(settings.groups)
    scheduler = make_scheduler(
        groups,
        num_requests=settings.requests,
        num_blocks=settings.num_blocks or _enough(groups, settings.requests, longest),
        max_model_len=longest + 1,
        scheduler_cls=BatchedScheduler if settings.level == BATCHED else AsyncScheduler,
    )
    _check_level(scheduler, settings.level)
    hasher = make_hasher()
    loop = Loop(scheduler, jobs, hasher, settings.requests)
    loop.run(settings.warmup_steps)
    gc.collect()
    gc.freeze()  # as the engine does once it is up
    plain = loop.run(settings.steps)
    probes = Probes()
    probes.attach(scheduler)
    loop.hasher = probes.timed("hashing", hasher)
    probed = loop.run(settings.steps)
    return Findings(
        result=summarize(plain, probed, probes.spans),
        decisions=loop.decisions.hexdigest(),
        outputs=loop.outputs.hexdigest(),
        steps=probed,
        spans=probes.spans,
    )


def _enough(groups: Groups, requests: int, longest: int) -> int:
    """Return a number of blocks with which nothing is preempted and little is evicted."""
    per_request = (longest // groups.block_size + 4) * len(groups.specs())
    return 2 * requests * per_request


def _check_level(scheduler: Scheduler, level: str) -> None:
    active: str = getattr(scheduler.kv_cache_manager, "hybrid_blocks_level", Level.OFF)
    if getattr(scheduler, "_decodes", None) is not None:
        active = BATCHED
    if active != level:
        raise RuntimeError(f"level {level} was asked for and the engine runs at level {active}")


def main(settings_file: str, findings_file: str) -> None:
    """Read settings from one file and write findings to the other."""
    settings = msgspec.json.decode(Path(settings_file).read_bytes(), type=Settings)
    Path(findings_file).write_bytes(msgspec.json.encode(run(settings)))


if __name__ == "__main__":
    main(*sys.argv[1:])
