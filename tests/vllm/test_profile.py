"""The profile runs vLLM's real scheduler, and its figures add up."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from command import run
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.tools.profile.engine import Groups, make_hasher, make_scheduler
from hybrid_blocks.tools.profile.loop import Floor, Loop
from hybrid_blocks.tools.profile.process import LevelProcess, ProfileError, check_agreement, profile
from hybrid_blocks.tools.profile.report import make_table
from hybrid_blocks.tools.profile.result import PARTS, Findings, Span, Step, summarize
from hybrid_blocks.tools.profile.workload import FLOOR, Recorded, Settings, steady
from hybrid_blocks.tools.trace import generate_workload, read_trace
from hybrid_blocks.vllm.manager.hasher import RequestHasher
from installed import installed
from rich.console import Console
from vllm.v1.outputs import LogprobsLists

LEVELS = ["off", "pool", "manager", "batched", "natural", "natural-batched"]
COLUMNS = [*LEVELS, FLOOR]

STEP = Step(
    begin=0, admitted=10_000, scheduled=50_000, resumed=60_000, updated=90_000,
    num_running=4, num_finished=1, only_decodes=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the output and the files of one small run of the command."""
    folder = tmp_path_factory.mktemp("profile")
    files = {name: folder / name for name in ("figures.json",)}
    small = ["--requests", "12", "--prompt-tokens", "1100", "--output-tokens", "20"]
    short = ["--warmup-steps", "20", "--steps", "30", "--levels", ",".join(COLUMNS)]
    outputs = ["--json", files["figures.json"]]
    ran = run("profile", *small, *short, *outputs)
    assert ran.code == 0, ran.output
    return {"output": ran.output, **{name: file.read_text() for name, file in files.items()}}


def test_steps_of_decodes_alone_have_a_median_of_their_own() -> None:
    short = replace(STEP, scheduled=20_000, updated=70_000, only_decodes=True)
    result = summarize([STEP, STEP, short], [STEP], [])
    assert (result.step_us_p50, result.decode_us_p50) == (70.0, 20.0)
    assert summarize([STEP], [STEP], []).decode_us_p50 == 0.0


def test_a_step_in_which_a_request_begins_or_ends_is_none_of_decodes_alone() -> None:
    settings = Settings(level="off", groups="full", requests=3, prompt_tokens=64, shared_tokens=16)
    jobs = iter([([1] * 64, 10), ([2] * 64, 14), ([3] * 64, 14), *[([4] * 64, 40)] * 3])
    scheduler = make_scheduler(
        Groups.FULL, num_requests=3, num_blocks=64, max_model_len=128, max_num_batched_tokens=256
    )
    steps = Loop(scheduler, jobs, make_hasher(16), settings).run(24)
    decodes = [step.only_decodes for step in steps]
    assert decodes[0] is decodes[1] is False
    assert all(decodes[3:9])
    for at, step in enumerate(steps):
        if step.num_finished:
            assert not any(decodes[at : at + 2])
    assert sum(step.num_finished for step in steps) == 3


def test_every_level_has_every_figure(written: dict[str, Any]) -> None:
    levels = json.loads(written["figures.json"])["levels"]
    assert list(levels) == COLUMNS
    for level in LEVELS:
        figures = levels[level]
        for name in ("step_us_p50", "schedule_us_p50", "allocate_us_p50", "update_us_p50"):
            assert figures[name] > 0
        assert figures["step_us_p99"] >= figures["step_us_p50"] >= figures["schedule_us_p50"]
        assert figures["requests_per_second"] > 0
        assert figures["running"] == pytest.approx(12, abs=2)
        assert all(figures["parts_us"][part] > 0 for part in PARTS)


def test_every_level_is_compared_with_vllms_own_and_with_the_floor() -> None:
    fast = replace(STEP, scheduled=14_000, updated=63_000)
    result = summarize([STEP], [STEP], [])
    results = {"off": result, "batched": summarize([fast], [fast], []), FLOOR: result}
    results[FLOOR] = msgspec.structs.replace(result, step_us_p50=3.5)
    console = Console(width=120, record=True)
    console.print(make_table(results, 10))
    lines = [line.split() for line in console.export_text().replace("│", " ").splitlines()]
    assert ["faster", "than", "off", "1.0x", "10.0x", "20.0x"] in lines
    assert ["times", "the", "floor", "20.0x", "2.0x", "1.0x"] in lines


def test_the_floor_makes_what_a_step_of_decodes_hands_out() -> None:
    floor = Floor(Settings(level=FLOOR, requests=3, prompt_tokens=5, num_drafts=2, logprobs=1))
    drafts = {id_: [-1, -1] for id_ in floor.ids}
    scheduled = floor.schedule()
    assert scheduled.num_scheduled_tokens == dict.fromkeys(floor.ids, 3)
    assert scheduled.scheduled_spec_decode_tokens == drafts
    assert scheduled.total_num_scheduled_tokens == 9
    sampled = [[7], [7, 8], [7, 8, 9]]
    logprobs = LogprobsLists(np.zeros((6, 2)), np.zeros((6, 2)), np.zeros(6), [0, 1, 3, 6])
    told = floor.update(sampled, logprobs)[0].outputs
    found = [(one.request_id, one.new_token_ids) for one in told]
    assert found == list(zip(floor.ids, sampled, strict=True))
    assert [len(one.new_logprobs.logprobs) for one in told if one.new_logprobs] == [1, 2, 3]
    following = floor.schedule().scheduled_cached_reqs
    assert following.req_ids == floor.ids
    assert following.new_block_ids == [None] * 3
    assert following.num_computed_tokens == [6, 7, 8]
    assert following.num_output_tokens == [1, 2, 3]
    assert [tokens[5:] for tokens in floor.tokens] == sampled


def test_the_table_names_every_level(written: dict[str, Any]) -> None:
    for level in COLUMNS:
        assert level in written["output"]


def test_a_profiled_engine_hashes_as_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS", "manager")
    assert not isinstance(make_hasher(), RequestHasher)
    with installed():
        assert isinstance(make_hasher(), RequestHasher)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({"connector": True, "groups": "ring"}),
        pytest.param({"connector": True}, marks=pytest.mark.full),
        pytest.param({"groups": "ring"}, marks=pytest.mark.full),
        pytest.param({"groups": "full", "dcp": 2}, marks=pytest.mark.full),
        pytest.param({"dcp": 2}, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_levels_take_turns_and_agree_on_engines_with_more(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    take_turn = LevelProcess.take_turn

    def noted(process: LevelProcess) -> bool:
        turns.append(process._level)
        return take_turn(process)

    monkeypatch.setattr(LevelProcess, "take_turn", noted)
    settings = Settings(level="", requests=4, output_tokens=8, warmup_steps=2, steps=60)
    settings = msgspec.structs.replace(settings, **engine)
    off, batched = profile(settings, ["off", "batched"]).values()
    assert off.decisions == batched.decisions
    # Each level runs 60 steps without probes and 60 with them, 25 a turn: all meet the same noise.
    assert turns == ["off", "batched"] * 6


@pytest.mark.full
def test_a_worker_that_is_gone_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    with LevelProcess(Settings(level="off", warmup_steps=0, steps=50), tmp_path) as process:
        assert process.wait()
        process._process.kill()
        process._process.wait()
        with pytest.raises(ProfileError, match="level off: "):
            process.take_turn()


def test_a_level_that_is_not_there_is_an_error_with_the_reason() -> None:
    with pytest.raises(InvalidArgumentError, match=r"'poll' names no level; use off, .*floor"):
        profile(Settings(level=""), ["poll"])


def test_levels_that_decide_differently_are_an_error() -> None:
    result = summarize([STEP], [STEP], [Span("allocate", 20_000, 8_000)])
    one, other = (Findings(result=result, decisions=digest, outputs="o") for digest in ("a", "b"))
    check_agreement({"off": one, "pool": one, FLOOR: other})
    with pytest.raises(ProfileError, match="the decisions of levels off and pool differ"):
        check_agreement({"off": one, "pool": other})
    # Another layout of the memory leads to other decisions.
    check_agreement({"off": one, "natural": other, "natural-batched": other})
    with pytest.raises(ProfileError, match="of levels natural and natural-batched differ"):
        check_agreement({"off": one, "natural": one, "natural-batched": other})


def test_an_allocation_for_many_counts_as_one_each() -> None:
    spans = [Span("allocate", 20_000, 8_000, requests=16), Span("allocate", 30_000, 3_000)]
    assert summarize([STEP], [STEP], spans).allocate_us_p50 == 0.5


def test_parts_are_what_the_spans_say_and_the_rest() -> None:
    spans = [
        Span("hashing", 1_000, 4_000),
        Span("match", 11_000, 2_000),
        Span("allocate", 20_000, 8_000),
        Span("hashing", 61_000, 1_000),
        Span("copies", 30_000, 1_000),
        Span("free", 70_000, 5_000),
    ]
    result = summarize([STEP], [STEP], spans)
    parts = {"hashing": 5.0, "match": 2.0, "allocate": 8.0, "free": 5.0, "copies": 1.0}
    assert result.parts_us == parts | {"rest of schedule": 29.0, "rest of update": 24.0}
    assert (result.schedule_us_p50, result.update_us_p50, result.step_us_p50) == (40, 30, 70)
    assert result.requests_per_second == pytest.approx(1 / 80e-6)
    assert result.hidden_share(0.035) == 0.5
    assert result.hidden_share(10) == 1.0


def test_four_requests_in_a_row_share_their_first_tokens() -> None:
    prompts = [prompt for prompt, _ in islice(steady(100, 40, 8, seed=1), 8)]
    assert all(len(prompt) == 100 for prompt in prompts)
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 2
    assert len({tuple(prompt) for prompt in prompts}) == 8


def test_a_traces_requests_come_in_order_and_again() -> None:
    trace = generate_workload("conversations", num_requests=5)
    trace = replace(trace, follows=np.full_like(trace.follows, -1))
    recorded = Recorded(trace)
    jobs = list(islice(recorded, len(trace) + 1))
    assert jobs[len(trace)] == jobs[0]
    for request, (prompt, num_output_tokens) in enumerate(jobs[:-1]):
        tokens = trace.token_ids(request).tolist()
        assert prompt == tokens[: trace.prompt_tokens[request]]
        assert num_output_tokens == trace.output_tokens[request]
        assert list(islice(recorded.answer(request), num_output_tokens)) == tokens[len(prompt) :]


def test_a_turn_begins_when_the_one_before_it_has_ended() -> None:
    trace = generate_workload("conversations", num_requests=6)
    trace = replace(trace, follows=np.array([-1, 0, 0, -1, 1, 4], dtype=np.int32))
    recorded = Recorded(trace)

    lengths: list[int] = trace.prompt_tokens.tolist()
    assert len(set(lengths)) == len(lengths)

    def begun() -> int:
        prompt, _ = next(recorded)
        return lengths.index(len(prompt))

    assert [begun(), begun()] == [0, 3]
    recorded.end(1)
    assert begun() == 0
    recorded.end(0)
    assert [begun(), begun()] == [1, 2]
    recorded.end(3)
    assert begun() == 4
    recorded.end(5)
    assert [begun(), begun()] == [5, 3]


def test_a_profile_of_conversations_finds_answers_in_the_cache(tmp_path: Path) -> None:
    turns = [
        {"t": 0, "type": "n", "in": 256, "out": 64, "keep": 0, "new": [[0, 3]]},
        {"t": 1, "type": "n", "in": 384, "out": 16, "keep": 4, "new": [[4, 5]]},
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"id": "a", "block_size": 64, "requests": turns}))
    settings = Settings(level="off", groups="full", requests=1)
    scheduler = make_scheduler(Groups.FULL, num_requests=1, num_blocks=64, max_model_len=512)
    loop = Loop(scheduler, Recorded(read_trace(file)), make_hasher(), settings)
    hits: list[int] = []
    while len(hits) < 3:
        loop.step()
        assert loop._in_flight is not None
        scheduled, _ = loop._in_flight
        hits += [one.num_computed_tokens for one in scheduled.scheduled_new_reqs]
    # Whole blocks. The last token of an answer was not computed, that of a prompt has to be.
    assert hits == [0, 304, 240]
