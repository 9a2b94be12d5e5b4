"""The command replays traces and workloads, and refuses options that say nothing."""

import gzip
import json
import re
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from command import answer, as_json, failure, refusal, run

NAMES = {
    *("requests", "prompt_tokens", "hit_tokens", "hit_rate", "peak_running", "preemptions"),
    *("steps", "manager_us_per_step_p50", "manager_us_per_step_p99", "blocks_total"),
    "virtual_seconds",
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twenty requests of 600 tokens that share 512."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 500 * i, "input_length": 600, "output_length": 4, "hash_ids": [0, 1 + i]}
        for i in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


replay, refused = partial(answer, "replay"), partial(refusal, "replay")


def figures(*arguments: object) -> Any:
    return as_json("replay", *arguments)


def verdict(*arguments: object) -> list[str]:
    """The lines before the first that does not belong to the verdict."""
    first, *others = replay(*arguments).splitlines()
    head = " " * len("verdict: ")
    return [first, *(line.strip() for line in takewhile(lambda it: it.startswith(head), others))]


def test_a_trace_ends_in_an_answer_and_a_table(trace: Path) -> None:
    output = replay(trace)
    told, ran, _ = verdict(trace)
    share = "in unbounded memory, one request at a time: 81.1 %"
    assert told == f"verdict: 81.1 % of prompt tokens are found; {share}"
    assert ran == "requests running at once: at most 1; preemptions: 0"
    rows = ("requests", "prefix hit rate", "one at a time, unbounded", "peak running")
    rare = ("output tokens", "pool use", "manager a step", "hits ended: window evicted")
    whole = replay(trace, "--model", "Qwen3.5-27B", "--memory", "24GiB", "--all")
    for row in rows:
        assert row in output
    for row in (*rows, *rare):
        assert row in whole
    for row in rare:
        assert row not in output


def test_variants_are_compared_before_the_table(trace: Path) -> None:
    model = ("--model", "Qwen3.5-27B", "--memory", "24GiB")
    told, ran, full = verdict(trace, *model, "--placement", "learned,none")
    found = re.fullmatch(r"verdict: rust learned finds (\S+) % of .* tokens, rust none 0.0 %", told)
    assert found is not None, told
    assert float(found[1]) > 50
    assert ran == "requests running at once: at most 1, there 1; preemptions: 0, there 0"
    assert full.startswith("memory was never full")
    told, _, _ = verdict(trace, *model, "--placement", "learned,learned/finish=true")
    assert told.startswith("verdict: nothing to gain: rust learned finds")


def test_memory_that_was_never_full_is_said_with_a_remedy(trace: Path) -> None:
    model = ("--model", "Granite-4.0-Micro", "--memory")
    never = "memory was never full, so no request waited for it: try "
    assert f"{never}--saturate or less --memory\n" in replay(trace, *model, "1GiB")
    assert f"{never}less --memory\n" in replay(trace, *model, "1GiB", "--saturate")
    seats = ("--saturate", "--max-num-seqs", "2")
    assert f"{never}more --max-num-seqs or less --memory\n" in replay(trace, *model, "1GiB", *seats)
    assert never not in replay(trace, *model, "100MiB", "--saturate")
    assert never not in replay(trace, "--num-blocks", "unbounded")


def test_the_ends_of_hits_stand_beside_the_lost_tokens(trace: Path) -> None:
    asked = (trace, "--model", "Qwen3.5-27B", "--memory", "24GiB")
    output, result = replay(*asked, "--all"), figures(*asked)
    counts = [int(it) for it in re.findall(r"hits ended: [a-z ]+ (\d+) of 20 admissions", output)]
    assert len(counts) == 6
    assert sum(counts) == 20
    lost = round(result["sequential_hit_rate"] * result["prompt_tokens"]) - result["hit_tokens"]
    assert f" points, {lost:,} tokens more\n" in output


def test_a_row_without_a_figure_is_left_out(trace: Path) -> None:
    model = ("--model", "Granite-4.0-Micro", "--memory")
    row = "memory / live bytes of one"
    assert row not in replay(trace, *model, "1GiB", "--all")
    assert row in replay(trace, *model, "100MiB", "--saturate", "--all")


def test_the_figures_have_their_stable_names(trace: Path) -> None:
    result = figures(trace)
    assert set(result) >= NAMES
    assert result["requests"] == 20
    assert result["prompt_tokens"] == 12_000
    assert result["hit_tokens"] == 19 * 512
    assert result["hit_rate"] == pytest.approx(19 * 512 / 12_000)
    assert 0 < result["manager_us_per_step_p50"] <= result["manager_us_per_step_p99"]
    assert result["virtual_seconds"] > 9.5


def test_without_a_trace_a_workload_is_generated_from_the_seed() -> None:
    first = figures("--limit", "50")
    again = figures("--limit", "50")
    other = figures("--limit", "50", "--seed", "7")
    assert first["requests"] == 50
    assert first["virtual_seconds"] == again["virtual_seconds"]
    assert first["prompt_tokens"] != other["prompt_tokens"]


GRANITE, QWEN = "--model Granite-4.0-Micro --memory", "--model Qwen3.5-27B --memory"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--limit 3", {"requests": 3}),
        ("--format mooncake", {"requests": 20}),
        (f"{GRANITE} 1GiB", {"blocks_total": 2**30 // (16 * 81_920) - 1, "block_unit": "block"}),
        (f"{GRANITE} 1GB", {"memory_bytes": 10**9, "block_tokens": 16}),
        (f"{QWEN} 24GiB", {"blocks_total": 663, "block_unit": "slab", "block_bytes": 37 * 2**20}),
        (f"{QWEN} 8GiB", {"block_tokens": None}),
        ("--num-blocks 99", {"blocks_total": 99}),
        ("--num-blocks unbounded", {"blocks_total": 20 * 38}),
        ("--num-blocks unbounded --block-size 300", {"block_size": 300, "hit_tokens": 19 * 300}),
        ("--limit 1 --max-num-batched-tokens 8192", {"steps": 1 + 3}),
        ("--limit 1 --max-num-batched-tokens 20", {"steps": 30 + 3}),
        (
            "--model Qwen3.6-35B-A3B --memory 8GiB --tp 2 --kv-cache-dtype fp8 "
            "--speculative ngram:2 --max-num-seqs 64",
            {"model": "Qwen3.6-35B-A3B", "memory_bytes": 2**33, "tp": 2, "kv_cache_dtype": "fp8"}
            | {"num_speculative_tokens": 2, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
        ),
    ],
)
def test_an_option_changes_the_figures_that_it_names(
    trace: Path, options: str, expected: dict[str, Any]
) -> None:
    found = figures(trace, *options.split())
    assert {name: found[name] for name in expected} == expected


def test_max_num_seqs_bounds_the_batch() -> None:
    assert figures("--limit", "50", "--max-num-seqs", "2")["peak_running"] == 2


@pytest.mark.vllm
def test_both_managers_stand_side_by_side(trace: Path) -> None:
    output = replay(trace, "--manager", "rust", "--manager", "vllm", "--all")
    row = next(line for line in output.splitlines() if line.startswith("pool "))
    assert re.split(r" {2,}", row.strip()) == [
        "pool",
        *["19,659 blocks of 16 tokens, 1.25 MiB"] * 2,
    ]
    rust, vllm = figures(trace, "--manager", "rust", "--manager", "vllm")
    assert (rust["manager"], vllm["manager"]) == ("rust", "vllm")
    assert rust["hit_tokens"] == vllm["hit_tokens"]
    assert rust["steps"] == vllm["steps"]


@pytest.mark.vllm
def test_the_best_of_vllms_settings_stands_beside_its_default(trace: Path) -> None:
    best = ("--manager", "vllm", "--retention", "best")
    cache = ("--model", "Granite-4.0-H-Tiny", "--memory", "8GiB")
    tools = ("--workload", "tools", "--limit", "30", "--max-num-seqs", "2", *best, *cache)
    default, found = figures(*tools)
    assert (default["variant"], found["variant"]) == ("vllm default", "vllm dense by 16")
    assert found["hit_tokens"] > default["hit_tokens"] > 0
    assert "vLLM (dense by 16)" in verdict("--manager", "rust", *tools)[0]
    assert figures(trace, *best)["variant"] == "vllm default"


def test_a_damaged_line_stops_the_replay_unless_it_is_skipped(trace: Path) -> None:
    lines = trace.read_text().splitlines()
    lines[4] = lines[4][:30]
    trace.write_text("\n".join(lines))
    output = refused(trace)
    assert output.startswith(f"error: {trace}:5: ")
    assert output.endswith(". Leave out damaged lines with --on-error skip\n")
    assert "1 skipped: 5\n" in replay(trace, "--on-error", "skip")
    result = figures(trace, "--on-error", "skip")
    assert result["requests"] == 19
    assert (result["damaged_lines"], result["skipped_lines"]) == (1, [5])
    assert result["cut_off_after"] is None


def test_an_archive_cut_off_is_told_from_damaged_lines(trace: Path) -> None:
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    many = [row | {"timestamp": 37 * at % 1009} for at, row in enumerate(rows * 40)]
    content = gzip.compress("".join(json.dumps(row) + "\n" for row in many).encode())
    trace.write_bytes(content[: len(content) // 2])
    output = replay(trace, "--on-error", "skip")
    result = figures(trace, "--on-error", "skip")
    assert (result["damaged_lines"], result["skipped_lines"]) == (0, [])
    assert 0 < result["requests"] == result["cut_off_after"] < 800
    after = f"after line {result['cut_off_after']}: what came behind is missing"
    assert f"the compressed data ends or breaks {after}" in output
    assert "damaged lines" not in output


def test_many_skipped_lines_are_named_in_part(trace: Path) -> None:
    trace.write_text("no\n" * 30 + trace.read_text())
    options = ("--on-error", "skip", "--format", "mooncake")
    assert "30 skipped: 1, 2, 3, " in (output := replay(trace, *options))
    assert ", 20 and 10 more\n" in output
    skipped = figures(trace, *options)["skipped_lines"]
    assert skipped == list(range(1, 31))


def test_a_replay_says_of_which_engine_it_is(trace: Path) -> None:
    options = ("--model", "Qwen3.6-35B-A3B", "--memory", "8GiB", "--tp", "2")
    more = ("--kv-cache-dtype", "fp8", "--speculative", "ngram:2", "--max-num-seqs", "64")
    engine = "\nQwen3.6-35B-A3B, 8 GiB a GPU, tp 2, KV fp8, 2 draft tokens, 64 requests at once at"
    assert engine in replay(trace, *options, *more)


def test_a_model_that_was_not_named_is_warned_of(trace: Path) -> None:
    result = run("replay", trace, "--memory", "2GiB", "--json", "-")
    assert (
        "warning: without --model this replays Granite-4.0-Micro in 2GiB; give --model and --memory"
    ) in result.error
    assert json.loads(result.out)["model"] == "Granite-4.0-Micro"
    for known in (("--num-blocks", "99"), ("--model", "Granite-4.0-Micro")):
        assert "warning" not in run("replay", trace, *known, "--json", "-").error
    assert "\n256 requests at once at most\n" in replay(trace, "--num-blocks", "99")


def test_requests_longer_than_the_model_takes_are_warned_of(trace: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, '
        '"num_attention_heads": 4, "max_position_embeddings": 4096}'
    )
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    rows[3] |= {"output_length": 4000}
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    short = run("replay", trace, "--model", config, "--memory", "1GiB", "--json", "-")
    assert short.error.splitlines()[0] == (
        "warning: 1 of 20 requests of the trace exceed the maximum length of 4,096, the longest "
        "has 4,600 tokens: an engine refuses such a request"
    )
    assert json.loads(short.out)["requests"] == 20
    for engine in (("--model", "Phi-4", "--memory", "8GiB"), ("--num-blocks", "9999")):
        assert "refuses" not in run("replay", trace, *engine).error


def test_a_request_larger_than_the_pool_stops_unless_skipped(trace: Path) -> None:
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    rows[3] |= {"input_length": 400, "hash_ids": [0]}
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "do not fit into 30 blocks of rust" in failure("replay", trace, "--num-blocks", "30")
    result = figures(trace, "--num-blocks", "30", "--on-error", "skip")
    assert (result["requests"], result["rejected_requests"]) == (1, 19)
    assert result["virtual_seconds"] == 9.5


def test_a_replay_that_left_every_request_out_fails(tmp_path: Path, trace: Path) -> None:
    path = tmp_path / "figures.json"
    skipped = ("--num-blocks", "30", "--on-error", "skip", "--json", path)
    output = failure("replay", trace, *skipped).splitlines()
    assert "left out, too large" in " ".join(output)
    error = "every request was left out, nothing was replayed: 20 of 604 tokens: rust holds 480"
    assert output[-1] == f"error: {error}"
    assert json.loads(path.read_bytes())["rejected_requests"] == 20


def test_memory_is_told_in_what_each_manager_hands_out(trace: Path) -> None:
    assert re.search(r"pool +663 slabs of 37 MiB\n", replay(trace, *QWEN.split(), "24GiB", "--all"))
    assert re.search(
        r"pool +99 blocks of 16 tokens\n", replay(trace, "--num-blocks", "99", "--all")
    )
    error = failure("replay", trace, *QWEN.split(), "230MiB")
    assert "do not fit into 5 slabs of rust" in error
    assert f"{trace}:1: expected TIMESTAMP" in refused(trace, "--format", "azure")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("TRACE --workload tools", "--workload beside TRACE"),
        ("TRACE --seed 0", "--seed beside TRACE"),
        ("TRACE --seats 4", "--seats beside TRACE"),
        ("--seats 4", "--seats without --workload seats"),
        ("--format azure", "--format without TRACE"),
        ("--num-blocks 99 --model Phi-4", "--model beside --num-blocks"),
        ("--num-blocks 9 --tp 2 --share 5%", "--tp, --share beside --num-blocks"),
        ("--share 5% --memory 24GiB", "--memory beside --share"),
        ("--share 5% --all", "--all beside --share"),
        ("--share 5% --html page.html", "--html beside --share"),
        ("--host 1GiB --num-blocks 99", "--num-blocks beside --host"),
        ("--host 1GiB --manager vllm", "--host without --manager rust"),
        ("--retention dense", "--retention without --manager vllm"),
        ("--manager vllm --signal 0.8", "--signal without --manager rust"),
        ("--manager rust --manager rust", "--manager names rust twice"),
        (
            "--placement none/format=fp8 --num-blocks 99",
            "--num-blocks beside a placement with a format",
        ),
    ],
)
def test_an_option_that_would_be_ignored_is_refused_before_anything_is_read(
    tmp_path: Path, arguments: str, complaint: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("damaged\n")
    error = refused(*arguments.replace("TRACE", str(path)).split())
    assert error.startswith(f"error: {complaint}")


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--placement", "learned,best", "'best' is no placement"),
        ("--placement", "none/format=int4", "format='int4': use full, bf16, fp8, int8"),
        ("--share", "half", "'half' is no share"),
        ("--host", "much", "--host 'much'"),
        ("--placement", "every:0", "'every:0' is no placement"),
        ("--placement", "every:" + "9" * 5000, "is no placement"),
        ("--placement", "learned,learned", "--placement names learned twice"),
        ("--share", "5%,10%,5%", "--share names 5% twice"),
        ("--block-size", "7", "attention kernels take blocks of 16 tokens or a multiple"),
        ("--signal", "nan", "--signal nan: a finite number is needed"),
        ("--watermark", "nan", "watermark is nan"),
        ("--watermark", "1.5", "watermark is 1.5"),
        ("--memory", "much", "is no size"),
        ("--model", "no-such-model", "neither a file"),
        ("--memory", "900TiB", "a replay keeps track of 67,108,864 at most"),
        ("--tp", "99999999999999999999", "--tp"),
        ("--max-num-seqs", "99999999999999999999", "--max-num-seqs"),
        ("--retention", "9" * 5000, "not a whole number"),
        ("--retention", "all", "neither a number of tokens, dense nor best"),
        ("--json", "/", "--json /: a folder"),
    ],
)
def test_names_are_checked_first(tmp_path: Path, option: str, value: str, complaint: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("damaged\n")
    assert complaint in refused(path, option, value)


@pytest.mark.parametrize(
    ("num_blocks", "told"),
    [("0", "neither a number"), ("67108865", "--num-blocks"), ("9" * 5000, "--num-blocks")],
)
def test_a_pool_that_cannot_be_is_refused(trace: Path, num_blocks: str, told: str) -> None:
    assert told in refused(trace, "--num-blocks", num_blocks)


def test_a_missing_trace_and_too_many_requests_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "none.jsonl")
    assert "at most 1,000,000 requests" in refused("--limit", "2000000")
    assert "is no generated workload" in refused("--workload", "poems")
