"""A clock fitted to recorded times predicts what another setting changes."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import answer
from hybrid_blocks.geometry.step_time import KNOTS, StepTime, record
from hybrid_blocks.tools.replay import (
    EngineConfig,
    ManagerName,
    ReplayError,
    VirtualEngine,
    block_cache,
    make_manager,
)
from hybrid_blocks.tools.replay.fit import LEAST, fit
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.recorded import Record

TRACE = generate_workload("conversations", 0, 200, 1)
TENTH = 0.1


def replayed(clock: StepTime, running: int, trace: Trace) -> tuple[VirtualEngine, list[Record]]:
    """Replay a trace, and record it as an engine would."""
    cache = block_cache(40_000, 16)
    config = EngineConfig(max_num_seqs=running, step_time=clock)
    found: dict[int, int] = {}
    manager = make_manager(ManagerName.RUST, cache, config)
    engine = VirtualEngine(trace, manager, cache, config, on_hit=found.__setitem__)
    engine.run()
    times, timeline = engine.latencies, engine.timeline
    ran = dict(zip(timeline.admitted, timeline.admitted_at, strict=True))
    records = [
        Record(
            number=number,
            arrival=float(times.arrived[number]),
            block_tokens=16,
            prompt_tokens=int(trace.prompt_tokens[number]),
            output_tokens=int(trace.output_tokens[number]),
            blocks="",
            found_tokens=found[number],
            scheduled=ran[number] - float(times.arrived[number]),
            first_token=float(times.first_token[number] - times.arrived[number]),
            finished=float(times.finished[number] - times.arrived[number]),
        )
        for number in range(len(trace))
    ]
    return engine, records


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3.5-27B"])
def test_ratios_of_two_settings_are_those_of_the_recorded_clock(model: str) -> None:
    true = next(it for it in record().rows if (it.model, it.card) == (model, "H100-80GB"))
    fitted = fit(replayed(true, 32, TRACE)[1], 8192)

    def ratios(clock: StepTime) -> list[float]:
        few, many = (replayed(clock, running, TRACE.faster(4))[0] for running in (4, 16))
        tokens = [np.mean(one.latencies.of("tpot")) for one in (many, few)]
        return [few.now / many.now, float(tokens[0] / tokens[1])]

    assert ratios(fitted) == pytest.approx(ratios(true), rel=TENTH)


def test_steps_of_a_linear_clock_are_found_again() -> None:
    true = StepTime(ms=(8.0,) * len(KNOTS), prompt=0.03, decode=0.4, context=2e-5)
    fitted = fit(replayed(true, 32, TRACE)[1], 8192)
    for step in ((0, 1, 1000, 0), (0, 8, 12_000, 0), (0, 16, 24_000, 0), (2000, 4, 6000, 2e6)):
        assert fitted.milliseconds(*step) == pytest.approx(true.milliseconds(*step), rel=0.12)
    assert fitted.source == "fitted to 200 recorded requests"


def test_times_that_scatter_around_their_mean_give_that_mean() -> None:
    true = StepTime(ms=(8.0,) * len(KNOTS), prompt=0.03, decode=0.4, context=2e-5)
    draw = np.random.default_rng(3)

    def scattered(it: Record) -> Record:
        assert it.scheduled is not None
        assert it.first_token is not None
        assert it.finished is not None
        first = it.scheduled + draw.gamma(4, 1 / 4) * (it.first_token - it.scheduled)
        answer = draw.gamma(4, 1 / 4) * (it.finished - it.first_token)
        return msgspec.structs.replace(it, first_token=first, finished=first + answer)

    alone = replayed(true, 32, TRACE.faster(0.02))[1]
    fitted = fit([scattered(it) for it in alone], 8192)
    for step in ((0, 1, 1000, 0), (2000, 0, 0, 2e6)):
        assert fitted.milliseconds(*step) == pytest.approx(true.milliseconds(*step), rel=0.1)


def test_a_record_without_times_is_refused() -> None:
    records = replayed(record().rows[0], 32, TRACE)[1]
    bare = [msgspec.structs.replace(it, first_token=None) for it in records]
    with pytest.raises(ReplayError, match=f"0 requests of the record have times; .* {LEAST}"):
        fit(bare, 8192)


def test_the_command_takes_a_record_for_a_clock(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    encode: Any = msgspec.json.encode
    lines = replayed(record().rows[0], 32, TRACE)[1]
    path.write_bytes(b"\n".join(map(encode, lines)) + b"\n")
    load = ("--model", "Granite-4.0-Micro", "--memory", "8GiB", "--manager", "rust")
    printed = answer("replay", path, *load, "--clock", path)
    assert ", times: fitted to 200 recorded requests" in printed
