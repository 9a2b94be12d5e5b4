"""Profiles one level, in a process of its own: ``python -m hybrid_blocks.tools.profile.worker``."""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from vllm.v1.core.sched.scheduler import Scheduler

from hybrid_blocks.tools.profile import engine
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.tools.profile.loop import Floor, Loop
from hybrid_blocks.tools.profile.result import Findings, Probes, Step, summarize
from hybrid_blocks.tools.profile.workload import (
    BATCHED,
    CHECKED,
    FLOOR,
    NATURAL_BATCHED,
    Job,
    Recorded,
    Settings,
    level_of,
    steady,
)
from hybrid_blocks.tools.trace import read_trace
from hybrid_blocks.vllm import attach
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.scheduler import one_call as schedulers

_STEPS_A_TURN = 25


def run(settings: Settings, wait_for_turn: Callable[[], None]) -> Findings:
    """Run vLLM's scheduler under the settings and time it, some steps a turn."""
    if settings.level == FLOOR:
        return _run_floor(settings, wait_for_turn)
    attach.register()
    if settings.trace:
        trace = read_trace(Path(settings.trace))
        jobs: Iterator[Job] = Recorded(trace)
        longest = int(trace.total_tokens.max())
    else:
        jobs = steady(
            settings.prompt_tokens, settings.shared_tokens, settings.output_tokens, settings.seed
        )
        longest = settings.prompt_tokens + settings.output_tokens
    groups = Groups(settings.groups)
    level = settings.level.removesuffix(CHECKED)
    is_batched = level in (BATCHED, NATURAL_BATCHED)
    scheduler = make_scheduler(
        groups,
        num_requests=settings.requests,
        num_blocks=settings.num_blocks or _enough(groups, settings.requests, longest),
        max_model_len=longest + 1,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        scheduler_cls=schedulers.AsyncScheduler if is_batched else schedulers.VllmAsyncScheduler,
        is_natural=level_of(level) is Level.NATURAL,
        num_draft_tokens=settings.num_drafts,
        dcp=settings.dcp,
        configure=partial(engine.configure, settings=settings),
    )
    engine.equip(scheduler, settings)
    _check_level(scheduler, level)
    hasher = make_hasher(groups.hash_block_size(settings.dcp))
    loop = Loop(scheduler, jobs, hasher, settings)
    _warm_up(loop, settings)
    plain = _in_turns(loop, settings.steps, wait_for_turn)
    _check_running(plain, settings.requests)
    probes = Probes()
    probes.attach(scheduler)
    loop.hasher = probes.timed("hashing", hasher)
    probed = _in_turns(loop, settings.steps, wait_for_turn)
    return Findings(
        result=summarize(plain, probed, probes.spans),
        decisions=loop.decisions.hexdigest(),
        outputs=loop.outputs.hexdigest(),
    )


def _run_floor(settings: Settings, wait_for_turn: Callable[[], None]) -> Findings:
    floor = Floor(settings)
    _warm_up(floor, settings)
    plain = _in_turns(floor, settings.steps, wait_for_turn)
    probed = _in_turns(floor, settings.steps, wait_for_turn)
    result = summarize(plain, probed, [])
    return Findings(result=result, decisions="", outputs="")


def _warm_up(loop: Loop | Floor, settings: Settings) -> None:
    loop.run(settings.warmup_steps)
    gc.collect()
    gc.freeze()  # as the engine does once it is up


def _in_turns(loop: Loop | Floor, num_steps: int, wait_for_turn: Callable[[], None]) -> list[Step]:
    steps: list[Step] = []
    while len(steps) < num_steps:
        wait_for_turn()
        steps += loop.run(min(_STEPS_A_TURN, num_steps - len(steps)))
    return steps


def _enough(groups: Groups, requests: int, longest: int) -> int:
    """Return a number of blocks with which nothing is preempted and little is evicted."""
    per_request = (longest // groups.block_size + 4) * len(groups.specs())
    return 2 * requests * per_request


_SHARE_RUNNING = 0.95


def _check_running(steps: list[Step], asked: int) -> None:
    running = sum(step.num_running for step in steps) / len(steps)
    if running < _SHARE_RUNNING * asked:
        raise RuntimeError(
            f"{running:.0f} requests ran on average, of {asked} that were asked for: give a larger "
            "--num-blocks (0 is enough for all), more --warmup-steps, or fewer --requests"
        )


def _check_level(scheduler: Scheduler, level: str) -> None:
    active: str = getattr(scheduler.kv_cache_manager, "hybrid_blocks_level", Level.OFF)
    if getattr(scheduler, "_decodes", None) is not None:
        active = BATCHED if active == Level.MANAGER else NATURAL_BATCHED
    if active != level:
        raise RuntimeError(f"level {level} was asked for and the engine runs at level {active}")


def main(settings_file: str, findings_file: str, signal: str) -> None:
    """Read settings from one file and write findings to the other.

    A byte written to file descriptor ``signal`` says that this waits for a line of its input.
    """

    def wait_for_turn() -> None:
        os.write(int(signal), b".")
        if not sys.stdin.buffer.readline():
            raise SystemExit("nobody waits for the findings any more")

    settings = msgspec.json.decode(Path(settings_file).read_bytes(), type=Settings)
    findings = run(settings, wait_for_turn)
    Path(findings_file).write_bytes(msgspec.json.encode(findings))


if __name__ == "__main__":
    main(*sys.argv[1:])
