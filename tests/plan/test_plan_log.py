"""``hybrid-blocks plan --log``: the figures of an engine's start, found again by the planner."""

import csv
import gzip
import json
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import msgspec
import pytest
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import PlanError, load_model
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.vllm import plan_vllm
from hybrid_blocks.tools.read.log_lines import PATTERNS, read_lines
from hybrid_blocks.tools.read.log_report import LogReport, report_log
from hybrid_blocks.units import human
from hypothesis import given
from hypothesis import strategies as st
from log_writer import write_log
from public_data import DATA
from typer.testing import CliRunner

HERE = Path(__file__).parent
FILES = [json.loads((HERE / f"logged_{name}.json").read_text()) for name in ("capacity", "other")]
ROWS, OTHERS = ([row for row in rows if row.get("counts") != "blocks"] for rows in FILES)
"""Releases up to 0.20.0 counted another capacity, which `test_plan_logged_capacity` has."""
LOGGED = DATA / "logged_capacity.csv"


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']}-{row.get('tokens')}"


def _run(*arguments: str, text: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments], input=text)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_a_log_that_the_planner_reproduces_is_told_to_agree(row: dict[str, Any]) -> None:
    report = _report(row)
    figures = {figure.name: figure for figure in report.figures}
    assert report.agree, figures
    logged = {name: figure.logged for name, figure in figures.items()}
    if "tokens" in row:
        assert logged["tokens"] == figures["tokens"].planned == f"{row['tokens']:,}"
    if "concurrency" in row:
        assert logged["concurrency"] == f"{row['concurrency']:.2f}x"
    if row.get("block", 16) > 16:
        assert logged["attention block"] == figures["attention block"].planned
    assert report.report is not None
    assert report.report.vllm is not None
    assert report.report.natural.tokens >= 0.99 * report.report.vllm.tokens
    assert report.num_lines - report.num_read == 1


@pytest.mark.parametrize("row", OTHERS, ids=_name)
def test_a_log_that_it_does_not_reproduce_says_why(row: dict[str, Any]) -> None:
    if "refused" in row:
        with pytest.raises(PlanError) as raised:
            _report(row)
        assert row["refused"] in str(raised.value)
        return
    report = _report(row)
    differing = [figure.name for figure in report.figures if not figure.agrees]
    if "unfit" in row:
        assert report.report is None
        assert row["unfit"] in str(report.refusal)
    elif row["differs"] is None:
        assert differing == []
    else:
        assert row["differs"] in differing


@pytest.mark.skipif(not LOGGED.exists(), reason="the public rows are not at hand")
def test_every_public_row_has_its_log() -> None:
    """By its tokens, or by what it logs instead."""
    logs = [*chain(*FILES)]
    with LOGGED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 30
    for row in rows:
        told = {
            "tokens": row["gpu_kv_cache_tokens"],
            "gib": row["available_kv_gib_per_gpu"],
            "block": row["logged_block_size"],
            "state_blocks": row["logged_num_gpu_blocks"],
        }
        name, value = next((name, float(value)) for name, value in told.items() if value)
        assert any(log.get(name) == value for log in logs), row


def _read(lines: Iterable[str], memory: int | None = None) -> LogReport:
    return report_log(read_lines(lines), None, {}, memory)


def _report(row: dict[str, Any]) -> LogReport:
    is_without = not {"gib", "blocks", "tokens", "state_blocks"} & set(row)
    return _read(write_log(row), 24 * 2**30 if is_without else None)


QWEN = next(row for row in ROWS if row["model"] == "Qwen3.6-27B" and "gib" in row)


def test_a_log_is_printed_with_its_verdict_and_the_plan_of_the_same_bytes() -> None:
    log = "".join(write_log(QWEN))
    code, out, _ = _run("--log", "-", text=log)
    assert code == 0
    assert out.startswith("log of vLLM 0.25.1: Qwen3.6-27B, 14.68 GiB as logged")
    for words in (
        "all figures of the log are those that the planner expects",
        "requests of 262,144",
        "7 lines were read, 1 say nothing of the cache",
        "verdict: level natural runs more requests at once than vLLM: +",
        " of 1k, ",
    ):
        assert words in out
    assert "natural: groups" not in out
    assert "natural: groups" in _run("--log", "-", "--all", text=log)[1]
    found = json.loads(_run("--log", "-", "--json", "-", text=log)[1])
    assert (found["version"], found["deployment"]["tp"]) == ("0.25.1", 2)
    assert found["report"]["natural"]["num_slabs"] > 0


def test_a_log_is_read_in_whatever_form_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf\xa6\r\n" + "".join(write_log(QWEN)).encode()))
    code, out, error = _run("--log", str(path))
    assert (code, error) == (0, "")
    assert "all figures of the log are those that the planner expects" in out


def test_a_packed_log_that_was_cut_off_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "serve.log.gz"
    path.write_bytes(gzip.compress("".join(write_log(QWEN)).encode())[:200])
    code, _, error = _run("--log", str(path))
    assert code == 2
    assert error.startswith(f"error: --log {path}: the compressed data ends or breaks: ")


def test_standard_input_that_is_no_text_is_one_clear_line() -> None:
    result = CliRunner().invoke(app, ["plan", "--log", "-"], input=b"\xa6\xff\n")
    assert result.exit_code == 2
    assert "none of 1 lines is one that vLLM logs" in result.stderr


def test_memory_that_was_given_is_not_called_logged() -> None:
    out = _run("--log", "-", "--memory", "20GiB", text="".join(write_log(QWEN)))[1]
    assert out.startswith("log of vLLM 0.25.1: Qwen3.6-27B, 20.00 GiB as given\n")


def test_a_model_that_is_not_known_says_where_its_name_can_stand() -> None:
    text = "".join(write_log({**QWEN, "model": "/models/mine"}))
    code, _, error = _run("--log", "-", text=text)
    assert code == 2
    assert "its config.json or a name can stand before -- or --log" in error


def test_the_log_of_level_natural_is_compared_with_its_own_plan() -> None:
    text = json.loads(_run("Qwen3.6-27B", "--memory", "20GiB", "--json", "-")[1])
    ours, theirs, length = text["natural"], text["vllm"], text["max_model_len"]
    slab = human(ours["slab_bytes"])
    lines = [
        "Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3.6-27B', "
        f"max_seq_len={length}, tensor_parallel_size=1, kv_cache_dtype=auto",
        "Available KV cache memory: 20.00 GiB",
        f"hybrid_blocks: 20 GiB hold {ours['max_concurrency']:.2f}x requests of {length:,} tokens "
        f"in {ours['num_slabs']:,} slabs of {slab}; vLLM would log "
        f"{theirs['logged_concurrency']:.2f}x in {theirs['num_blocks']:,} blocks",
        f"GPU KV cache size: {ours['tokens']:,} tokens, Maximum concurrency for {length:,} tokens "
        f"per request: {ours['max_concurrency']:.2f}x",
    ]
    code, out, error = _run("--log", "-", text="\n".join(lines))
    assert (code, error) == (0, "")
    assert "all figures of the log are those that the planner expects" in out
    assert f"slabs {ours['num_slabs']:,} {ours['num_slabs']:,} " in " ".join(out.split())
    other = [line.replace(f"in {ours['num_slabs']:,} ", "in 9 ") for line in lines]
    out = _run("--log", "-", text="\n".join(other))[1]
    assert "the planner expects other figures (tokens, concurrency" in out


def test_an_option_that_the_log_does_not_tell_is_found() -> None:
    lines = [line for line in write_log(QWEN) if "engine" not in line]
    lines.append("model  tensor_parallel_size")
    code, out, _ = _run("--log", "-", "--kv-cache-dtype", "fp8", "--tp", "2", text="".join(lines))
    assert code == 0
    assert "they agree with --speculative mtp:2" in out
    code, out, _ = _run(
        *("--log", "-", "--kv-cache-dtype", "fp8", "--tp", "2", "--speculative", "mtp:2"),
        text="".join(lines),
    )
    assert "all figures of the log are those" in out


def test_values_that_are_no_values_of_an_option_are_left_out() -> None:
    lines = [
        "non-default args: {'model': 'Phi-4', 'tensor_parallel_size': 'two', 'max_num_seqs': True, "
        "'max_model_len': 4096, 'served_model_name': 'x', 'kv_cache_dtype': 8, 'other': 3, "
        "'compilation_config': <CompilationConfig at 0x1>, 'enable_lora': False}",
        "LLM engine (v0.25.1) with config: model='Phi-4', tensor_parallel_size=2-1, dtype=half!",
        "Available KV cache memory: 8.00 GiB",
    ]
    deployment = _read(lines).deployment
    assert (deployment.tp, deployment.max_model_len, deployment.kv_cache_dtype) == (1, 4096, "auto")


def test_arguments_that_were_cut_off_are_read_as_far_as_they_go() -> None:
    lines = [
        "non-default args: {'model': 'Qwen/Qwen3.5-9B', 'tensor_parallel_size': 2, "
        "'speculative_config': {'method': 'mtp', 'num_specul",
        "Available KV cache memory: 8.00 GiB",
    ]
    report = _read(lines)
    assert (report.model, report.deployment.tp) == ("Qwen3.5-9B", 2)
    assert report.deployment.num_speculative_tokens == 0


def test_a_start_that_failed_for_want_of_memory_is_planned() -> None:
    lines = [line for line in write_log(QWEN) if "GiB" not in line and "tokens," not in line]
    lines.append(
        "ValueError: To serve at least one request with the model's max seq len (262144), (4.69 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (3.52 GiB)."
    )
    report = _read(lines)
    assert report.report is None
    assert "max length that fits is" in str(report.refusal)


def test_the_least_memory_of_all_workers_is_taken() -> None:
    lines = write_log({key: value for key, value in QWEN.items() if key != "gib"})
    lines += [f"Available KV cache memory: {gib} GiB" for gib in (14.9, 14.68, 15.1)]
    assert _read(lines).agree


@pytest.mark.parametrize(
    ("arguments", "text", "complaint"),
    [
        (["--log", "-"], "", "the log is empty"),
        (["--log", "-"], "hello\n\nworld\n", "none of 2 lines"),
        (["--log", "-"], "Available KV cache memory: 3 GiB", "does not name its model"),
        (
            ["--log", "-", "Phi-4"],
            "Chunked prefill is enabled with max_num_batched_tokens=1",
            "how",
        ),
        (["--log", "missing.log"], "", "missing.log"),
        (["--log", "-", "--lengths", "4k"], "", "--lengths beside --log"),
        (["--log", "-", "--", "vllm", "serve", "Phi-4"], "", "a pasted command beside --log"),
    ],
)
def test_a_log_that_says_too_little_is_one_clear_line(
    arguments: list[str], text: str, complaint: str
) -> None:
    code, out, error = _run(*arguments, text=text)
    assert code == 2
    assert out == ""
    assert complaint in error
    assert error.count("\n") == 1


def _started(model: str, length: int, *lines: str, version: str = "0.33.0") -> list[str]:
    config = (
        f"model='{model}', speculative_config=None, dtype=torch.bfloat16, max_seq_len={length}, "
        "tensor_parallel_size=1, pipeline_parallel_size=1, kv_cache_dtype=auto, "
        "enable_prefix_caching=True, enable_chunked_prefill=True"
    )
    return [
        f"vLLM API server version {version}",
        f"non-default args: {{'model_tag': '{model}'}}",
        f"Initializing a V1 LLM engine (v{version}) with config: {config}",
        *lines,
    ]


def _planned(lines: list[str]) -> dict[str, tuple[str | None, str | None]]:
    figures = _read(lines).figures
    return {figure.name: (figure.logged, figure.planned) for figure in figures}


OTHER = write_log(next(row for row in ROWS if row["model"] != QWEN["model"]))
LINES = write_log(QWEN)
ORDERS = {
    "the last of two starts": [*OTHER, *LINES],
    "a start without memory yet": [
        *LINES,
        *(line for line in OTHER if "non-default" in line or "config:" in line),
    ],
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_start_with_memory_is_read(order: str) -> None:
    report = _read(ORDERS[order])
    assert report.model == "Qwen3.6-27B"
    assert report.agree
    assert report.figures == _read(LINES).figures
    assert report.num_lines == len(ORDERS[order])


NEEDED = (
    "ValueError: To serve at least one request with the model's max seq len ({}), ({} GiB KV cache "
    "is needed, which is larger than the available KV cache memory ({} GiB). Based on the "
    "available memory, the estimated maximum model length is {}. Try increasing `gpu_memory_utiliz"
)


@pytest.mark.parametrize("is_logged", [True, False], ids=["logged", "beside the null block"])
@pytest.mark.parametrize(
    ("model", "gib", "usable", "needed", "longest"),
    [
        ("Qwen/Qwen3.6-27B", 12.0, 11.95, "16.32", 190_512),
        ("nvidia/Nemotron-H-8B-Base-8K", 3.0, 2.98, "4.21", 183_040),
    ],
)
def test_a_start_that_failed_for_memory_says_what_it_needed(
    *, model: str, gib: float, usable: float, needed: str, longest: int, is_logged: bool
) -> None:
    lines = [f"Available KV cache memory: {gib} GiB"] * is_logged
    lines.append(NEEDED.format(262_144, needed, usable, longest))
    report = _read(_started(model, 262_144, *lines))
    figures = {figure.name: figure.planned for figure in report.figures}
    assert report.agree
    assert figures["GiB that a request needs"] == needed
    assert figures["longest that fits"] == f"{longest:,}"
    assert report.memory_bytes == pytest.approx(gib * 2**30, rel=0.002)


def test_what_a_start_needed_tells_the_options_that_held() -> None:
    plan = plan_vllm(
        load_model("Qwen3.6-27B"), 6 << 30, Deployment(max_model_len=262_144, kv_cache_dtype="fp8")
    )
    needed = (plan.needed_bytes(262_144) - plan.block_bytes) / 2**30
    lines = [
        "Available KV cache memory: 6.0 GiB",
        NEEDED.format(262_144, f"{needed:.2f}", "5.95", plan.longest()),
    ]
    report = _read(_started("Qwen/Qwen3.6-27B", 262_144, *lines))
    assert not report.agree
    assert report.explanation == "--kv-cache-dtype fp8"


def test_the_format_of_states_explains_a_log() -> None:
    narrow = Deployment(max_model_len=65_536, mamba_ssm_dtype="bfloat16")
    plan = plan_vllm(load_model("Qwen3.8-27B"), 20 << 30, narrow)
    lines = _started(
        *("Qwen/Qwen3.8-27B", 65_536, "Available KV cache memory: 20.0 GiB"),
        f"Setting attention block size to {plan.block_tokens} tokens to ensure that",
        TOKENS.format(plan.tokens, f"{plan.max_concurrency:.2f}"),
    )
    assert _read(lines).explanation == "--mamba-ssm-cache-dtype bfloat16"


def test_a_log_with_one_batch_in_flight_says_so() -> None:
    model = load_model("Gemma-3-27B")
    plan = plan_vllm(model, 40 << 30, Deployment(max_model_len=131_072, in_flight_batches=1))
    lines = _started(
        *("google/gemma-3-27b-it", 131_072, "Available KV cache memory: 40.0 GiB"),
        f"GPU KV cache size: {plan.tokens:,} tokens",
    )
    assert _read(lines).explanation == "--in-flight-batches 1"
    lines.append("Asynchronous scheduling is disabled.")
    assert _read(lines).agree


def test_blocks_are_read_from_the_line_of_metrics() -> None:
    line = "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 700"
    assert _planned(_started("Qwen/Qwen3.6-27B", 65_536, line))["blocks"] == ("700", "700")


TOKENS = "GPU KV cache size: {:,} tokens, Maximum concurrency for 65,536 tokens per request: {}x"


def test_the_tokens_of_uneven_stages_tell_their_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engine.log"
    memory = [
        f"(Worker_PP{at}) Available KV cache memory: {gib} GiB" for at, gib in ((0, 3), (1, 9))
    ]
    lines = _started("Qwen/Qwen3.5-27B", 65_536, *memory, TOKENS.format(179_859, 2.74))
    log.write_text("\n".join(lines).replace("pipeline_parallel_size=1", "pipeline_parallel_size=2"))
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "16,48")
    code, out, error = _run("--log", str(log))
    assert (code, error) == (0, "")
    assert "all figures of the log are those that the planner expects" in out
    assert "blocks - 247" in " ".join(out.split())
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "16,forty")
    code, _, error = _run("--log", str(log))
    assert code == 2
    assert "VLLM_PP_LAYER_PARTITION=" in error


# Input that is no log


def test_a_number_that_is_none_is_passed_over() -> None:
    lines = [
        *("KV cache memory: 1.2.3 GiB", "KV cache size: , tokens", "# GPU blocks: " + "9" * 5_000),
        *("KV cache size: " + "9" * 5_000 + " tokens", "for 8,192 tokens per request: 1..2x"),
    ]
    log = read_lines([*write_log(QWEN), *lines])
    assert log.num_read == read_lines(write_log(QWEN)).num_read
    assert report_log(log, None, {}).agree


def test_a_length_of_400_digits_is_one_clear_line() -> None:
    long = "9" * 400
    code, _, error = _run("--log", "-", "--max-model-len", long, text="".join(write_log(QWEN)))
    assert code == 2
    assert error.startswith("error: ")
    lines = [line.replace("max_seq_len=262144", f"max_seq_len={long}") for line in write_log(QWEN)]
    assert _read(lines).agree


NUMBERS = st.sampled_from(
    [
        "",
        ".",
        ",",
        "-1",
        "0",
        "0.0",
        "1e9",
        "1.2.3",
        "nan",
        "\u0661",
        "9" * 12,
        "9" * 400,
        "9" * 5_000,
    ]
)
CHANGES = st.one_of(
    st.tuples(st.just("number"), st.integers(0, 400), NUMBERS),
    st.tuples(st.just("text"), st.integers(0, 4_000), st.text(max_size=5)),
    st.tuples(st.just("cut"), st.integers(0, 4_000), st.just("")),
    st.tuples(st.just("turn"), st.integers(0, 40), st.just("")),
)


def _changed(text: str, change: tuple[str, int, str]) -> str:
    kind, place, new = change
    if kind == "number":
        found = list(re.finditer(r"\d[\d,.]*", text))
        if not found:
            return text
        match = found[place % len(found)]
        return text[: match.start()] + new + text[match.end() :]
    if kind == "turn":
        lines = text.splitlines(keepends=True)
        place %= len(lines) + 1
        return "".join(lines[place:] + lines[:place])
    place %= len(text) + 1
    return text[:place] + new + text[place + (kind == "cut") * 40 :]


@given(st.sampled_from(ROWS), st.lists(CHANGES, min_size=1, max_size=4))
def test_any_log_is_a_report_or_one_clear_error(
    row: dict[str, Any], changes: list[tuple[str, int, str]]
) -> None:
    text = "".join(write_log(row))
    for change in changes:
        text = _changed(text, change)
    try:
        report = _read(text.splitlines(keepends=True))
    except HybridBlocksError:
        return
    assert msgspec.json.encode(report)
    assert all(figure.planned != "" for figure in report.figures)


def _unbounded(pattern: Any, *, is_last: bool) -> bool:
    """Whether something that repeats without a bound is followed by something else."""
    items = list(pattern)
    for place, (kind, found) in enumerate(items):
        ends = is_last and place == len(items) - 1
        if kind in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
            if found[1] == _constants.MAXREPEAT and not ends:
                return True
            if _unbounded(found[2], is_last=False):
                return True
        elif (kind is _constants.SUBPATTERN and _unbounded(found[3], is_last=ends)) or (
            kind is _constants.BRANCH
            and any(_unbounded(branch, is_last=ends) for branch in found[1])
        ):
            return True
    return False


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_line_takes_more_than_linear_time(pattern: re.Pattern[str]) -> None:
    assert not _unbounded(_parser.parse(pattern.pattern), is_last=True)
    assert _unbounded(_parser.parse("a(.*)b"), is_last=True)


def test_an_endless_log_is_kept_in_bounded_memory() -> None:
    memory = (f"Available KV cache memory: {number} GiB" for number in range(5_000))
    log = read_lines(chain(write_log(QWEN), memory))
    assert max(map(len, log.facts.values())) <= 4_096
    assert log.last("memory") == "4999"
