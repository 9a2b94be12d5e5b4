"""The first line of a plan: whether level ``natural`` runs more requests than vLLM."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import answer, as_json
from hybrid_blocks.tools.plan.report.verdict import (
    SCHEDULER_RECORD,
    percent,
    scheduler_of,
    typical_lengths,
)

plan = partial(answer, "plan")


LLAMA = (
    '{"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072}'
)
QWEN = ("Qwen3.5-27B", "--memory", "24GiB")
SPARSE = ("Qwen3.8-Flash-Next", "--memory", "80GiB")


def _verdict(*words: object) -> Any:
    return as_json("plan", *words)["verdict"]


def test_a_plan_begins_with_what_it_gains() -> None:
    first, second, *others = plan(*QWEN).splitlines()
    assert first == (
        "verdict: level natural runs more requests at once than vLLM: +16 % of 1k, +9 % of 4k "
        "tokens, no more of 16k, 256k"
    )
    assert second.strip() == (
        "vLLM rounds and pads 14.0 % of a request of 1k and 0.2 % of one of 256k; the rest is live"
    )
    rows = [" ".join(line.split()) for line in others]
    requests = [row for row in rows if row.startswith("requests of ")]
    assert requests == [
        "requests of 1,024 115.71x 99.40x +16 % 15.00x",
        "requests of 4,096 60.72x 55.22x +9 % 15.00x",
        "requests of 16,384 20.93x 20.71x 0 % 12.67x",
        "requests of 262,144 1.48x 1.47x 0 % 0.79x",
    ]
    assert sum(row.startswith("bytes, full of") for row in rows) == 1


def test_tables_that_few_read_are_asked_for() -> None:
    short, whole = plan(*QWEN), plan(*QWEN, "--all")
    for title in ("natural: groups", "vLLM: groups"):
        assert title not in short
        assert title in whole
    assert whole.count("bytes, full of requests of") == 4
    asked = plan(*QWEN, "--lengths", "2k,8k")
    assert asked.count("bytes, full of requests of") == 2
    assert "bytes, full of requests of 2,048 tokens" in asked


def test_data_has_the_gain_of_each_length() -> None:
    found = as_json("plan", *QWEN, "--lengths", "4k,1k")
    gains = found["verdict"]["gains"]
    assert [gain["length"] for gain in gains] == [262_144, 4096, 1024]
    sides = (found[side]["lengths"] for side in ("natural", "vllm"))
    for gain, ours, theirs in zip(gains, *sides, strict=True):
        assert gain["share"] == int(ours["running"]) / int(theirs["running"]) - 1


def test_fewer_requests_of_a_length_come_first() -> None:
    first, *_ = _verdict("Gemma-3-27B", "--memory", "60GiB")["lines"]
    assert first == (
        "level natural runs fewer requests at once than vLLM: -20 % of 128k tokens; more: +13 % of "
        "1k, +7 % of 4k, +3 % of 16k tokens"
    )


def test_a_trace_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-01 10:00:00.00,1000,24\n")
    verdict = _verdict(*QWEN, "--trace", str(path))
    assert "than vLLM: +16 % of the trace tokens, no more of 256k" in verdict["lines"][0]
    assert percent(verdict["trace"]["share"]) == "+16 %"
    assert verdict["lines"][1] == (
        "vLLM rounds and pads 14.0 % of a request of the trace and 0.2 % of one of 256k; the rest "
        "is live"
    )


def test_a_trace_of_one_length_runs_as_many_as_the_row_of_that_length(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    line = "2024-05-01 10:00:00.00,{},24\n"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + 2 * line.format(1000))
    found = as_json("plan", *QWEN, "--trace", str(path), "--lengths", "1k")
    for side in ("natural", "vllm"):
        (_, length), trace = found[side]["lengths"], found[side]["trace"]
        assert trace["concurrency"] == pytest.approx(length["concurrency"], abs=0.01)


def test_full_attention_has_nothing_to_gain(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(LLAMA)
    verdict = _verdict(str(path), "--memory", "80GiB")
    assert verdict["lines"] == [
        "nothing to gain in memory: both sides run as many requests; level natural saves scheduler "
        "time alone",
        "vLLM rounds and pads 0.0 % of a request; the rest is live; max_num_seqs 256 caps both "
        "sides at 1k",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            SPARSE,
            ["nothing to gain in memory: vLLM runs at level manager (compressed attention), "],
        ),
        (
            (*QWEN, "--max-num-seqs", "4", "--lengths", "1k", "--max-model-len", "16k"),
            [
                "level natural runs no more requests at once: max_num_seqs 4 caps both sides at "
                "1k, 16k; memory holds +16 % of 1k tokens, no more of 16k",
                "hybrid-blocks replay says how many more prompt tokens it finds",
            ],
        ),
        (
            ("gpt-oss-20b", "--memory", "40GiB", "--lengths", "16k"),
            [
                "level natural runs no more requests at once: 0 % of 16k, 128k tokens",
                "hybrid-blocks replay says",
            ],
        ),
        (
            ("Qwen3.5-27B", "--memory", "3.95GiB", "--max-model-len", "58k"),
            [
                "vLLM does not start with a max length of 59,392, level natural does",
                "level natural runs more requests at once than vLLM: +20 % of 1k, ",
                "vLLM rounds and pads ",
            ],
        ),
    ],
    ids=["another level", "few sequences", "windows", "vLLM does not start"],
)
def test_a_verdict_says_what_caps_it(arguments: tuple[str, ...], told: list[str]) -> None:
    lines = _verdict(*arguments)["lines"]
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert line.startswith(words)


def test_a_card_has_the_gain_in_tokens_a_second() -> None:
    verdict = _verdict("Qwen3.5-27B", "--gpu", "H100-80GB", "--lengths", "1k")
    *_, tokens, scheduler = verdict["lines"]
    assert tokens == (
        "tokens a second while all decode: +14 % of 1k tokens, no more of 256k "
        "(measured kernels, bf16, 1.9 % off in the median)"
    )
    longest, short = verdict["gains"]
    assert longest["speed"] == longest["share"] == 0 < short["speed"] < short["share"]
    assert scheduler == (
        "scheduler: nothing to gain, as a step of 79 requests takes the card 32 ms and vLLM's "
        "scheduler 3"
    )
    estimated = _verdict("Qwen3.5-27B", "--gpu", "A100-80GB", "--lengths", "1k")
    assert estimated["lines"][-2].endswith("(estimated from the model's shape)")


def test_lengths_without_a_gain_stand_last() -> None:
    requests, _, tokens, scheduler = _verdict("Qwen3.5-35B-A3B", "--gpu", "B200")["lines"]
    assert requests.endswith("than vLLM: +5 % of 4k, +5 % of 16k tokens, no more of 1k, 128k")
    assert ": +1 % of 4k, +2 % of 16k tokens, no more of 1k, 128k (measured" in tokens
    assert "takes the card 40 ms and vLLM's scheduler 34" in scheduler


def test_short_steps_of_many_requests_gain_by_the_scheduler() -> None:
    *_, scheduler = _verdict("gpt-oss-20b", "--gpu", "B200")["lines"]
    assert scheduler == (
        "scheduler: a step of 1,024 requests takes the card 17 ms, vLLM's scheduler up to 22: "
        "level manager brings up to +24 % (by benches/record/2026-11-30-engine.json)"
    )
    *_, few = _verdict("gpt-oss-20b", "--gpu", "B200", "--max-num-seqs", "256")["lines"]
    assert few.startswith("scheduler: nothing to gain, as a step of 256 requests takes the card 8")


def test_no_scheduler_gain_is_below_the_measured_one() -> None:
    rows = json.loads((Path(__file__).parents[2] / SCHEDULER_RECORD).read_text())["rows"]
    full = [row for row in rows if row["part"] == "clock" and row.get("running") == 1024]
    stock = [row for row in full if row["side"] == "vLLM"]
    assert len(stock) == 6
    for row, ours in zip(stock, (row for row in full if row["side"] == "one call"), strict=True):
        model, card, _ = row["step"].split("/")
        memory = ("--memory", f"{row['gib']}GiB", "--gpu", card, "--max-num-seqs", "1024")
        report = as_json("plan", model, *memory)
        scheduler_ms = row["step_ms"] * row["core_cpu"] / row["ran"]
        assert scheduler_of(len(report["vllm"]["groups"])) == pytest.approx(scheduler_ms, rel=0.13)
        *_, told = report["verdict"]["lines"]
        measured = ours["tokens_s"] / row["tokens_s"] - 1
        if measured > 0.01 and "nothing to gain" not in told:
            assert int(told.partition("up to +")[2].split()[0]) >= 100 * measured


@pytest.mark.parametrize("arguments", [("gpt-oss-20b", "--gpu", "H100-80GB"), QWEN])
def test_tokens_a_second_are_left_out_where_none_are_known(arguments: tuple[str, ...]) -> None:
    assert "tokens a second" not in "".join(_verdict(*arguments)["lines"])


def test_no_gain_is_told_where_no_engine_runs_the_natural_plan() -> None:
    verdict = _verdict(*SPARSE)
    assert {gain["share"] for gain in verdict["gains"]} == {None}
    assert percent(None) == "-"


def test_lengths_that_nobody_can_ask_for_are_left_out() -> None:
    assert typical_lengths(8192) == [1024, 4096]
    assert typical_lengths(1024) == []
    assert "1M" not in _verdict(*QWEN, "--lengths", "1k,1M")["lines"][0]
