"""A hybrid model, served for real, answers the same with and without the plugin."""

from pathlib import Path

import models
import pytest
import vllm
from scenario import Record, live_through
from server import serve

BUILD = Path(__file__).parents[2] / "build" / "e2e"

# Blocks, so that some of 24 requests of 500 tokens must be preempted; the block sizes differ.
NUM_BLOCKS = 60

full = pytest.mark.full
CASES = [
    pytest.param(("qwen3_next", "manager")),
    pytest.param(("qwen3_next", "natural")),
    pytest.param(("qwen3_next", "batched"), marks=full),
    pytest.param(("qwen3_next", "pool"), marks=full),
    pytest.param(("granitemoehybrid", "manager"), marks=full),
    pytest.param(("granitemoehybrid", "natural"), marks=full),
    pytest.param(("granitemoehybrid", "pool"), marks=full),
    pytest.param(("granitemoehybrid", "batched"), marks=full),
    pytest.param(("gemma3_text", "manager"), marks=full),
    pytest.param(("gemma3_text", "natural"), marks=full),
    pytest.param(("gemma3_text", "pool"), marks=full),
    pytest.param(("gemma3_text", "batched"), marks=full),
]

# The CPU build of vLLM 0.32 cannot export a Mamba2 state from within a chunk; chunks of one block
# never ask it to.
OPTIONS = {"granitemoehybrid": ("--max-num-batched-tokens", "256")}

# Level manager, with the scheduler that decodes in one call.
BATCHED = "batched"

_without: dict[str, Record] = {}


def record(kind: str, level: str) -> Record:
    model = models.build(kind, BUILD)
    log = BUILD / f"{kind}-{level}.log"
    options = ("--num-gpu-blocks-override", str(NUM_BLOCKS), *OPTIONS.get(kind, ()))
    if level == BATCHED:
        level = "manager"
        options += ("--scheduler-cls", "hybrid_blocks.vllm.Scheduler")
    with serve(model, level, log, *options) as server:
        return live_through(server)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def records(request: pytest.FixtureRequest) -> tuple[Record, Record]:
    """The records of one model without the plugin and at a level."""
    kind, level = request.param
    if kind not in _without:
        _without[kind] = record(kind, "off")
    return _without[kind], record(kind, level)


@pytest.mark.parametrize("phase", ["first", "second", "pressed", "crowd"])
def test_greedy_answers_are_the_same_with_the_plugin(
    records: tuple[Record, Record], phase: str
) -> None:
    without, with_plugin = records
    expected = [answer.tokens for answer in getattr(without, phase)]
    assert [answer.tokens for answer in getattr(with_plugin, phase)] == expected


def test_every_answer_is_complete_and_depends_on_its_prompt(
    records: tuple[Record, Record],
) -> None:
    for one in records:
        for phase, length in (("first", 16), ("pressed", 300), ("crowd", 6)):
            assert {len(answer.tokens) for answer in getattr(one, phase)} == {length}
        assert len({answer.tokens for answer in one.first}) == len(one.first)
        assert len({answer.tokens for answer in one.crowd}) > len(one.crowd) // 2


def test_a_second_pass_hits_the_prefix_cache(records: tuple[Record, Record]) -> None:
    without, with_plugin = records
    assert all(answer.cached_tokens > 0 for answer in with_plugin.second)
    cached = [answer.cached_tokens for answer in without.first + without.second]
    assert [a.cached_tokens for a in with_plugin.first + with_plugin.second] == cached


def test_a_hit_changes_no_answer(records: tuple[Record, Record]) -> None:
    for one in records:
        assert [answer.tokens for answer in one.second] == [answer.tokens for answer in one.first]


def test_the_small_cache_preempts_requests(records: tuple[Record, Record]) -> None:
    assert all(one.preemptions > 0 for one in records)


def test_disconnected_clients_leave_no_block_behind(records: tuple[Record, Record]) -> None:
    assert [one.usage_after_hang_ups for one in records] == [0.0, 0.0]


def test_metrics_show_the_usual_gauges(records: tuple[Record, Record]) -> None:
    for one in records:
        assert one.metrics["vllm:prefix_cache_hits_total"] > 0
        assert one.metrics["vllm:request_success_total"] >= 6 + 6 + 24 + 200


def test_metrics_show_the_plugins_blocks(records: tuple[Record, Record]) -> None:
    without, with_plugin = records
    assert "hybrid_blocks_blocks" not in without.metrics
    assert with_plugin.metrics["hybrid_blocks_blocks"] == NUM_BLOCKS - 1


def test_the_log_says_where_requests_are_scheduled_in_one_call(
    records: tuple[Record, Record], request: pytest.FixtureRequest
) -> None:
    is_batched = BATCHED in request.node.callspec.id
    said = "hybrid_blocks: decoding requests are scheduled in one call" in records[1].log
    assert said == is_batched


def test_one_line_of_the_log_says_what_is_active(records: tuple[Record, Record]) -> None:
    without, with_plugin = records
    assert "hybrid_blocks" not in without.log
    lines = [line for line in with_plugin.log.splitlines() if "] hybrid_blocks " in line]
    assert len(lines) == 1
    assert f"in vLLM {vllm.__version__.partition('+')[0]}: level" in lines[0]
