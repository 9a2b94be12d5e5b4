"""Figures of level ``natural``, counted on few requests."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import _served_chunks
import _served_first_token
import _served_hits
import _served_model
import _served_prompts
import _served_running
import numpy as np
import pytest
import serving
from _record import Record
from _served_model import Case, OtherLevelError, Side
from _served_rows import Chosen, deployment
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import plan_natural
from hybrid_blocks.tools.replay import EngineConfig, ManagerName, VllmOptions, model_cache
from hybrid_blocks.tools.replay import replay as run_replay
from hybrid_blocks.tools.trace import Trace, generate_workload
from hybrid_blocks.tools.trace.builder import TraceBuilder
from msgspec import structs
from vllm.v1.core.sched.output import SchedulerOutput

GIB = 2**30


def test_the_plan_holds_requests_as_long_as_their_slabs_fit() -> None:
    plan = plan_natural(load_model("Qwen3.5-27B"), 8 * GIB, deployment())
    lengths = [100, 5000, 16, 17, 2000] * 40
    planned = _served_running.num_planned(plan, lengths)

    def slabs(count: int) -> int:
        tokens = sum(-(-length // 16) for length in lengths[:count])
        states = sum(group.kind == "state" for group in plan.groups)
        (attention,) = (group for group in plan.groups if group.kind == "full")
        return -(-tokens // plan.pools[attention.pool]) + states * count

    assert 0 < planned < len(lengths)
    assert slabs(planned) <= plan.usable_slabs < slabs(planned + 1)


def test_more_requests_run_than_in_stock_vllm_and_more_of_their_memory_is_live() -> None:
    model, deployed = load_model("Qwen3.5-27B"), deployment()
    case = Case(model, 4 * GIB, deployed, num_requests=64)
    plan = plan_natural(model, case.memory_bytes, deployed)
    builder = TraceBuilder("equal")
    for _ in range(40):
        builder.add([builder.fresh(1000)], arrival=0, prompt_tokens=900, output_tokens=100)
    trace, measure = builder.build(), _served_running.measure
    rows: dict[Side, Any] = {side: measure(side, case, plan, trace) for side in Side}
    assert rows[Side.NATURAL]["running"] > rows[Side.STOCK]["running"]
    assert 0.9 < rows[Side.NATURAL]["live_over_reserved"] <= 1
    assert rows[Side.STOCK]["live_over_reserved"] < rows[Side.NATURAL]["live_over_reserved"]


def test_a_turn_waits_for_the_one_before_and_hits_what_it_left() -> None:
    builder = TraceBuilder("turns")
    first = builder.fresh(1000)
    builder.add([first], arrival=0, prompt_tokens=900, output_tokens=100)
    builder.add([first, builder.fresh(200)], arrival=0, prompt_tokens=1100, output_tokens=10,
                follows=0)  # fmt: skip
    case = Case(load_model("Qwen3.5-27B"), 4 * GIB, deployment(), num_requests=4)
    row = _served_hits.measure(Side.NATURAL, case, builder.build())
    assert row["prompt_tokens"] == 2000
    # Had the second turn not waited, nothing would have been found.
    assert 700 < row["hit_tokens"] <= 992
    assert row["hit_tokens"] % 16 == 0


def test_where_requests_fill_the_memory_they_leave_each_other_room_for_checkpoints() -> None:
    trace = generate_workload("tools", num_requests=120)
    longest = int(trace.total_tokens.max()) + 1
    case = Case(load_model("Qwen3.5-27B"), 8 * GIB, deployment(longest), num_requests=16)
    rows = {side: _served_hits.measure(side, case, trace) for side in Side}
    stock, natural = rows[Side.STOCK], rows[Side.NATURAL]
    assert natural["hit_rate"] > 0.6 > 2 * stock["hit_rate"]
    assert natural["computed_tokens"] < 0.5 * stock["computed_tokens"]
    assert natural["steps"] <= stock["steps"], "fewer run at once, and not for longer"
    assert natural["preemptions"] <= 1 < stock["preemptions"]


@pytest.mark.parametrize(
    ("model", "workload"), [("Qwen3.5-27B", "tools"), ("Nemotron-H-8B", "agents")]
)
def test_vllm_finds_as_much_in_the_replay_with_each_setting(model: str, workload: str) -> None:
    trace = generate_workload(workload, num_requests=50)
    alone = np.full_like(trace.follows, -1)
    trace = replace(trace, arrival=np.zeros_like(trace.arrival), follows=alone)
    deployed = deployment(int(trace.total_tokens.max()) + 1)
    case = Case(load_model(model), 8 * GIB, deployed, num_requests=8, inside=True)
    config = EngineConfig(max_num_seqs=8, watermark=0.0)
    cache = model_cache(model, case.memory_bytes, deployed)
    found = set()
    for setting in case.settings():
        stock = _served_hits.measure(Side.STOCK, setting, trace)
        assert _served_hits.measure(Side.STOCK, replace(setting, fast=True), trace) == stock
        options = VllmOptions(retention=setting.retention, match_unit=setting.match_unit)
        asked: Any = {"cache": cache, "config": config, "vllm": options}
        replayed, _ = run_replay(trace, manager_name=ManagerName.VLLM, **asked)
        assert replayed.hit_tokens == stock["hit_tokens"]
        assert replayed.steps == stock["steps"]
        found.add(stock["hit_tokens"])
    assert len(found) > 3, "settings change what is found"


def test_a_later_first_token_than_with_the_best_setting_of_vllm_is_named() -> None:
    times = ((Side.STOCK, 100, 900), (Side.STOCK, 120, 300), (Side.NATURAL, 110, 800))
    rows = [
        {"load": "l", "model": "M", "running": 8, "share": "5%", "side": side}
        | {"mean_ms": mean, "p95_ms": late}
        for side, mean, late in times
    ]
    assert list(_served_first_token.check(rows)) == ["l, M, 8, 5%: mean_ms 110, stock vLLM 100"]


def test_all_pairs_of_memory_and_requests_at_a_time_are_cells_of_a_load_and_model() -> None:
    chosen = Chosen(Path(), ("Nemotron-H-8B",), ("code",), (Side.NATURAL,), cells=20)
    cells = {(key["running"], key["share"]) for key, _ in _served_first_token.cases(chosen)}
    assert len(cells) == 20


def drafting(model: str, num_drafts: int, num_requests: int = 60) -> tuple[Case, Trace]:
    trace = generate_workload("agents", num_requests=num_requests)
    deployed = deployment(int(trace.total_tokens.max()) + 1)
    deployed = structs.replace(deployed, num_speculative_tokens=num_drafts)
    return Case(load_model(model), 16 * GIB, deployed, num_requests=16, inside=True), trace


@pytest.mark.parametrize(("model", "num_drafts"), [("Qwen3.5-27B", 2), ("Nemotron-H-8B", 4)])
@pytest.mark.parametrize("side", Side)
def test_drafts_that_are_right_are_taken_and_change_no_answer(
    side: Side, model: str, num_drafts: int
) -> None:
    case, trace = drafting(model, num_drafts, 16)
    with _served_model.serving(side, case) as served:
        drafted = accepted = 0
        requests: dict[str, Any] = {}

        def count(scheduled: SchedulerOutput) -> None:
            nonlocal drafted, accepted
            for id_, drafts in scheduled.scheduled_spec_decode_tokens.items():
                requests[id_] = served.scheduler.requests[id_]
                right = served._sampled(id_, drafts)
                drafted += len(drafts)
                accepted += len(right) - 1

        _served_hits.serve(served, trace, case.num_requests, count)
    for id_, request in requests.items():
        assert list(request.all_token_ids) == trace.token_ids(int(id_)).tolist()
    assert len(requests) == len(trace)
    share = _served_model.ACCEPTANCE
    expected = sum(share**count for count in range(1, num_drafts + 1)) / num_drafts
    assert accepted / drafted == pytest.approx(expected, rel=0.1)


def test_states_at_junctions_are_a_setting_beside_the_drafts_of_a_head() -> None:
    case, trace = drafting("Qwen3.5-27B", 2)
    settings = list(case.settings())
    with_junctions = [it for it in settings if it.junctions]
    assert {(it.match_unit, it.retention) for it in with_junctions} == {
        (unit, retention) for unit in (64, 16) for retention in (0, None)
    }
    found = [
        _served_hits.measure(Side.STOCK, replace(with_junctions[0], junctions=so), trace)
        for so in (False, True)
    ]
    assert found[0]["hit_tokens"] != found[1]["hit_tokens"]
    assert not any(it.junctions for it in drafting("Nemotron-H-8B", 4)[0].settings())
    assert not any(it.junctions for it in drafting("Qwen3.5-27B", 0)[0].settings())


def test_cells_whose_requests_draft_have_a_table_of_their_own() -> None:
    chosen = Chosen(Path(), ("Nemotron-H-8B",), ("seats",))
    keys = [key for key, _ in _served_first_token.cases(chosen)]
    assert {key.get("drafts") for key in keys} == {None, "ngram:4"}
    times = {"mean_ms": 10.0, "p95_ms": 20.0, "hit_rate": 0.5, "chunks": 60}
    tables = list(_served_first_token.tables([key | times for key in keys]))
    assert [line for line in tables if line.startswith(("with", "no later"))] == [
        "without drafts:",
        "no later in 2 and 2 of 2 cells: 1.00; 1.00",
        "with drafts:",
        "no later in 1 and 1 of 1 cells: 1.00; 1.00",
    ]


def test_a_prompt_that_a_step_holds_takes_one_chunk_where_its_states_leave_the_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_served_chunks, "REQUESTS", 40)
    cases = _served_chunks.cases(Chosen(Path(), loads=("seats",)))
    ended, inside = [about | measure() for about, measure in cases]
    assert (ended["inside"], inside["inside"]) == (False, True)
    assert inside["chunks"] == inside["prompts"] == 40 < ended["chunks"]
    assert inside["hit_rate"] == pytest.approx(ended["hit_rate"], rel=0.01)
    assert not list(_served_chunks.check([ended, inside]))
    inside["chunks_a_prompt"] = 1.2
    assert list(_served_chunks.check([ended, inside])) == [
        "seats, Qwen3.5-27B: 1.20 chunks a prompt"
    ]


@pytest.mark.parametrize("side", Side)
def test_a_short_prompt_returns(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_served_prompts, "SHORT", range(15, 50))
    case = Case(load_model("Qwen3.5-27B"), 4 * GIB, deployment(), num_requests=4, inside=True)
    row = _served_prompts.measure(side, case)
    is_natural = side is Side.NATURAL
    # A prompt of 17 tokens may leave its state before its first whole block.
    assert row["hits"] in ((32, 33) if is_natural else (0,))
    assert row["hash_block_tokens"] == (16 if is_natural else 832)


def test_a_row_of_the_record_is_not_measured_again(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> dict[str, Any]:
        measured.append(name)
        return {}

    def cases() -> Iterator[tuple[dict[str, Any], Any]]:
        for name in ("Phi-4", "Qwen3.5-27B"):
            yield {"model": name, "side": Side.STOCK}, partial(measure, name)

    for _ in range(2):
        record = Record(tmp_path / "rows.jsonl")
        rows = list(serving.rows("running", cases(), record, []))
        assert [row["model"] for row in rows] == ["Phi-4", "Qwen3.5-27B"]
    assert measured == ["Phi-4", "Qwen3.5-27B"]
    on_card = [row["code"].endswith(" on H100-80GB") for row in rows]
    assert on_card == [False, True]  # the first one's kernels are the same on all cards


def test_a_model_that_is_refused_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(name: str, side: Side) -> dict[str, Any]:
        if (name, side) == ("Qwen3.5-27B", Side.NATURAL):
            raise OtherLevelError("the natural side runs at level manager")
        return {"running": 64 + (side is Side.NATURAL), "live_over_reserved": 1.0}

    def cases(chosen: Any) -> Iterator[tuple[dict[str, Any], Any]]:
        for name in chosen.models or ["Phi-4", "Qwen3.5-27B"]:
            for side in Side:
                yield {"model": name, "side": side}, partial(measure, name, side)

    monkeypatch.setattr(_served_running, "cases", cases)
    for number, (models, status) in enumerate(
        [([], 0), (["Phi-4"], 0), (["Qwen3.5-27B"], 1), (["Phi-4", "Qwen3.5-27B"], 1)]
    ):
        record = tmp_path / str(number)
        record.mkdir()
        named = ["--models", *models] if models else []
        monkeypatch.setattr("sys.argv", ["serving.py", "running", "--record", str(record), *named])
        with pytest.raises(SystemExit) as exit_:
            serving.main()
        assert exit_.value.code == status
        said = capsys.readouterr().out
        assert ("left out: Qwen3.5-27B: the natural side runs at level manager\n" in said) is (
            models != ["Phi-4"]
        )
        assert ("MISSED running: left out: Qwen3.5-27B" in said) is bool(status)


def test_what_falls_short_is_named() -> None:
    def rows(running: int, stock: int, live: float) -> list[dict[str, Any]]:
        row = {"model": "M", "live_over_reserved": live}
        return [
            {**row, "side": Side.STOCK, "running": stock},
            {**row, "side": Side.NATURAL, "running": running},
        ]

    assert list(_served_running.check(rows(63, 62, 0.97))) == []
    assert list(_served_running.check(rows(62, 62, 0.96))) == [
        "M: 62 run, 64 are planned",
        "M: 62 run, 62 in stock vLLM",
        "M: 0.9600 of reserved bytes are live, not 0.97",
    ]
    hits = [
        {"load": "l", "model": "M", "gib": 24, "side": side, "hit_rate": rate}
        for side, rate in ((Side.STOCK, 0.1), (Side.STOCK, 0.3), (Side.NATURAL, 0.2))
    ]
    assert list(_served_hits.check(hits)) == ["l, M, 24 GiB: hits 20.00%, stock vLLM 30.00%"]
