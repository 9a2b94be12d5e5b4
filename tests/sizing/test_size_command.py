"""``hybrid-blocks size``: a verdict in its first line, and a table that says why."""

import json
from pathlib import Path

import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.replay import EngineConfig, StepTime
from recordings import poisson, record
from typer.testing import CliRunner

CLOCK = StepTime(fixed=30e-3, per_prefill_token=0.2e-3)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("size") / "traffic.jsonl"
    return record(poisson(60, 4.0), path, EngineConfig(step_time=CLOCK))


def size(recording: Path, *more: str) -> tuple[int, list[str], str]:
    arguments = ["size", "--trace", str(recording), "--model", "Granite-4.0-H-Tiny", *more]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout.splitlines(), result.stderr


def test_the_first_line_names_the_cheapest_cards(recording: Path) -> None:
    code, lines, _ = size(
        recording,
        *("--slo", "ttft_p95<300ms", "--tp", "1,2"),
        *("--price", "T4=0.3", "--price", "L40S=0.9", "--price", "H100-80GB=2.5"),
    )
    assert code == 0
    assert lines[0].startswith(
        "2xT4 is the cheapest that serves traffic.jsonl with ttft_p95<300 ms"
    )
    assert "cost 0.6 an hour by --price; compute binds; estimate" in lines[0]
    assert any(line.startswith("1xT4 ") and "does not fit" in line for line in lines)
    assert any(line.startswith("1xT4: --gpu T4: nothing is left") for line in lines)
    assert "4 dearer deployments are not tried" in lines


def test_replicas_are_tried(recording: Path) -> None:
    code, lines, _ = size(
        recording,
        *("--slo", "tpot_p50<1ms", "--gpu", "L40S", "--tp", "1", "--replicas", "1,2"),
    )
    assert code == 1
    assert any(line.startswith("2 replicas of 1xL40S ") for line in lines)


def test_no_cards_that_serve_are_exit_code_1(recording: Path) -> None:
    code, lines, _ = size(recording, "--slo", "tpot_p50<1ms", "--gpu", "L4,H200", "--tp", "1")
    assert code == 1
    assert lines[0].startswith("none of 2 deployments serves traffic.jsonl with tpot_p50<1 ms")
    assert sum("misses tpot_p50" in line for line in lines) == 2


def test_a_fitted_clock_prints_its_error(recording: Path) -> None:
    fitted = ("--fit", str(recording), "--slo", "ttft_p95<60s", "--gpu", "L40S", "--tp", "1")
    code, lines, _ = size(recording, *fitted)
    assert code == 0
    assert "fitted; ttft off by" in lines[0]
    assert any(line.startswith("fitted to 60 requests: fixed ") for line in lines)
    assert any(line.startswith("ttft: a request is off by") for line in lines)
    assert any(line.startswith("e2e: a request is off by") for line in lines)


def test_drafts_have_room_and_are_not_accepted(recording: Path) -> None:
    asked = ("--slo", "ttft_p95<60s", "--gpu", "L40S", "--tp", "1")
    by_method, by_number = (
        size(recording, *asked, *drafts)
        for drafts in (("--speculative", "ngram:2"), ("--num-speculative-tokens", "2"))
    )
    assert by_method == by_number
    assert any(line.startswith("2 draft tokens have room in each step") for line in by_method[1])
    assert not any("draft" in line for line in size(recording, *asked)[1])


def test_the_rows_are_written_as_json(recording: Path) -> None:
    code, lines, _ = size(
        recording, *("--slo", "ttft_p95<60s", "--gpu", "L40S", "--tp", "1", "--json", "-")
    )
    told = json.loads("\n".join(lines))
    assert code == 0
    assert told["serves"] == "1xL40S"
    assert told["rows"][0]["binds"] == "compute"
    assert told["rows"][0]["measured"]["ttft_p95"] > 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (("--slo", "fast"), "--slo 'fast' is no target; write for example ttft_p95<2s"),
        (("--gpu", "2xL4"), "--gpu 2xL4: name one kind of card"),
        (("--gpu", "48GiB"), "--gpu 48GiB: name one kind of card"),
        (("--price", "L4"), "write a card and its price"),
        (("--fitted-on", "1xL4"), "without --fit"),
        (("--fit", "TRACE"), "--fitted-on 1xH100-80GB says which cards"),
        (("--tp", "0"), "--tp 0: a number from 1 to 64"),
        (("--replicas", "0"), "--replicas 0: a number from 1 to 64"),
    ],
)
def test_a_wrong_input_is_one_line(recording: Path, more: tuple[str, ...], error: str) -> None:
    words = [str(recording) if word == "TRACE" else word for word in more]
    code, _, told = size(recording, "--slo", "ttft_p95<2s", *words)
    assert code == 2
    assert error in told.splitlines()[-1]


def test_lines_that_were_not_read_are_named(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.jsonl"
    whole = recording.read_text().splitlines()
    path.write_text("\n".join([*whole[:2], "{", *whole[2:]]))
    asked = ("--slo", "ttft_p95<60s", "--gpu", "L40S", "--tp", "1")
    for trace, fit in ((path, recording), (recording, path)):
        code, _, told = size(trace, "--fit", str(fit), *asked)
        assert code == 2
        assert "damaged.jsonl:3: " in told
        assert told.endswith("Leave out damaged lines with --on-error skip\n")
        code, _, told = size(trace, "--fit", str(fit), *asked, "--on-error", "skip")
        assert code == 0
        assert told.count(f"warning: {path}: damaged lines: 1 skipped: 3") == 1
    path.write_text(whole[0][:40] + "\n" + "{\n")
    code, _, told = size(recording, "--fit", str(path), *asked, "--on-error", "skip")
    assert code == 2
    assert "no other line holds a request" in told


def test_answers_of_unknown_length_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "why?"}]}\n')
    _, _, told = size(path, "--slo", "ttft_p95<60s", "--gpu", "L40S", "--tp", "1")
    assert "warning: 1 line does not tell the length of the answer" in told
