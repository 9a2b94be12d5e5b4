"""The page of a rollout says what `plan` plans of a command, and what the board asks."""

import json
import re
from typing import Any

import pytest
from board import board
from bokeh.document import Document
from hybrid_blocks.cli import app
from hybrid_blocks.model import PlanError
from hybrid_blocks.view.rollout import Rollout, make_rollout, with_variables
from hybrid_blocks.view.rollout_page import RolloutControls, answer
from typer.testing import CliRunner

QWEN = "vllm serve Qwen/Qwen3.5-27B-FP8 --max-model-len 32768"


def rollout(command: str = QWEN, length: int = 8192, users: int = 200) -> Rollout:
    return make_rollout(command, "24GiB", None, length, users)


def planned(command: str) -> dict[str, Any]:
    arguments = ["plan", "--memory", "24GiB", "--lengths", "8k", "--json", "-", "--", command]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_replicas_follow_from_the_requests_that_a_plan_holds() -> None:
    found, report = rollout(), planned(QWEN)
    before, after = found.fleets
    for fleet, side in ((before, "vllm"), (after, "natural")):
        (full,) = (one for one in report[side]["lengths"] if one["length"] == 8192)
        assert fleet.running == int(full["running"])
        assert (fleet.replicas - 1) * fleet.running < 200 <= fleet.replicas * fleet.running
    short = rollout(length=1024, users=1000).fleets
    assert short[1].replicas < short[0].replicas
    split = rollout(f"{QWEN} --tensor-parallel-size 2").fleets[0]
    assert split.gpus == 2 * split.replicas


def test_the_level_and_its_reason_are_those_of_plan() -> None:
    assert (rollout().level, rollout().reason) == ("natural", None)
    refused = rollout(f"{QWEN} --kv-cache-metrics")
    assert (refused.level, refused.reason) == ("manager", "KV-cache residency metrics")
    assert refused.fleets[0].running == refused.fleets[1].running
    assert "level manager (KV-cache residency metrics); groups: 3 Mamba, 1 FullAttention" in (
        refused.log_line
    )
    offload = rollout(f"{QWEN} --kv-offloading-size 8")
    assert offload.level == "natural"
    assert offload.variables == ("HYBRID_BLOCKS=natural", "HYBRID_BLOCKS_OFFLOAD=1")


def test_the_line_of_the_log_has_the_pool_of_the_plan() -> None:
    slabs = planned(QWEN)["natural"]["num_slabs"]
    assert rollout().log_line.endswith(
        f"level natural; groups: 4 Mamba, 1 FullAttention; pool: {slabs:,} slabs"
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("vllm serve M", "HYBRID_BLOCKS=natural vllm serve M"),
        ("cd /x && vllm serve M", "cd /x && HYBRID_BLOCKS=natural vllm serve M"),
        ("HYBRID_BLOCKS=off vllm serve M", "HYBRID_BLOCKS=natural vllm serve M"),
        ("docker run --gpus all IMAGE M", "docker run -e HYBRID_BLOCKS=natural --gpus all IMAGE M"),
        ("- --model=M", None),
    ],
)
def test_variables_are_set_where_the_command_starts_its_engine(
    command: str, told: str | None
) -> None:
    assert with_variables(command, ["HYBRID_BLOCKS=natural"]) == told


@pytest.mark.parametrize("command", [QWEN, f"{QWEN} --kv-cache-metrics"])
def test_every_query_is_one_of_the_board(command: str) -> None:
    on_board = json.dumps(board()).replace('\\"', '"')
    plain = re.sub(r"\{[^{}]*\$[^{}]*\}", "", on_board).replace("$__rate_interval", "5m")
    for query in rollout(command).queries:
        assert query.text in plain, query.shows


def test_the_answer_holds_every_part() -> None:
    words = answer(rollout())
    for heading in ("Level", "Replicas", "Start one replica", "Line of its log", "The way back"):
        assert f"<h2>{heading}</h2>" in words
    assert "HYBRID_BLOCKS=off" in words
    assert "&lt;b&gt;" in answer(rollout(f"{QWEN} --api-key '<b>'"))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(PlanError, match="fit"):
        make_rollout(QWEN, "200MiB", None, 32_768, 10)


@pytest.fixture
def page() -> Document:
    document = Document()
    RolloutControls().show(document)
    return document


def set_value(page: Document, name: str, value: str) -> None:
    control: Any = page.get_model_by_name(name)
    control.value = value


def shown(page: Document, name: str) -> str:
    box: Any = page.get_model_by_name(name)
    return str(box.text)


def test_controls_answer_again_and_a_mistake_keeps_the_last_answer(page: Document) -> None:
    before = shown(page, "answer")
    assert "for 200 requests of 8,192 tokens" in before
    set_value(page, "users", "many")
    assert "many" in shown(page, "error")
    assert shown(page, "answer") == before
    set_value(page, "users", "1000")
    assert shown(page, "error") == ""
    assert "for 1,000 requests of 8,192 tokens" in shown(page, "answer")
    set_value(page, "memory", "")
    assert "how much memory is free" in shown(page, "error")
    set_value(page, "gpu", "H100-80GB")
    assert "for 1,000 requests of 8,192 tokens" in shown(page, "answer")
    set_value(page, "command", f"{QWEN} --kv-cache-metrics")
    assert "KV-cache residency metrics" in shown(page, "answer")
