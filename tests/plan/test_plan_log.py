"""``hybrid-blocks plan --log``: the figures of an engine's start, found again by the planner."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hybrid_blocks.cli import app
from hybrid_blocks.model import PlanError
from hybrid_blocks.pasted.log_lines import read_lines
from hybrid_blocks.pasted.log_report import LogReport, report_log
from hybrid_blocks.units import human
from log_writer import write_log
from public_data import DATA
from typer.testing import CliRunner

HERE = Path(__file__).parent
ROWS = json.loads((HERE / "logged_capacity.json").read_text())
OTHERS = json.loads((HERE / "logged_other.json").read_text())
LOGGED = DATA / "logged_capacity.csv"


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']}-{row.get('tokens')}"


def _run(*arguments: str, text: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments], input=text)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_a_log_that_the_planner_reproduces_is_told_to_agree(row: dict[str, Any]) -> None:
    report = _report(row)
    figures = {figure.name: figure for figure in report.figures.figures}
    assert report.figures.agree, figures
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
    differing = [figure.name for figure in report.figures.figures if not figure.agrees]
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
    logs = [*ROWS, *OTHERS]
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


def _report(row: dict[str, Any]) -> LogReport:
    log = read_lines(write_log(row))
    is_without = not {"gib", "blocks", "tokens", "state_blocks"} & set(row)
    return report_log(log, None, {}, 24 * 2**30 if is_without else None)


QWEN = next(row for row in ROWS if row["model"] == "Qwen3.6-27B" and "gib" in row)


def test_a_log_is_printed_with_its_verdict_and_the_plan_of_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    path.write_text("".join(write_log(QWEN)))
    code, out, _ = _run("--log", str(path))
    assert code == 0
    assert out.startswith("log of vLLM 0.25.1: Qwen3.6-27B, 14.68 GiB as logged")
    assert "all figures of the log are those that the planner expects" in out
    assert "requests of 262,144" in out
    assert "7 lines were read, 1 say nothing of the cache" in out


def test_the_plan_of_a_log_says_what_level_natural_gains() -> None:
    log = "".join(write_log(QWEN))
    code, out, _ = _run("--log", "-", text=log)
    assert code == 0
    assert "verdict: level natural runs more requests at once than vLLM: +" in out
    assert " of 1k, " in out
    assert "natural: groups" not in out
    assert "natural: groups" in _run("--log", "-", "--all", text=log)[1]


def test_a_log_is_read_from_standard_input_and_written_as_data() -> None:
    code, out, _ = _run("--log", "-", "--json", "-", text="".join(write_log(QWEN)))
    assert code == 0
    found = json.loads(out)
    assert found["version"] == "0.25.1"
    assert found["deployment"]["tp"] == 2
    assert found["report"]["natural"]["num_slabs"] > 0


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "PowerShell's": lambda text: text.decode().encode("utf-16"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "cut characters": lambda text: b"\xa6 cut off\n" + text,
}


@pytest.mark.parametrize("name", PACKED)
def test_a_log_is_read_in_whatever_form_it_was_kept(tmp_path: Path, name: str) -> None:
    path = tmp_path / "serve.log"
    path.write_bytes(PACKED[name]("".join(write_log(QWEN)).encode()))
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
    assert "they agree with --num-speculative-tokens 2" in out
    code, out, _ = _run(
        *("--log", "-", "--kv-cache-dtype", "fp8", "--tp", "2", "--num-speculative-tokens", "2"),
        text="".join(lines),
    )
    assert "all figures of the log are those" in out


def test_an_engine_at_work_is_summed_up() -> None:
    status = (
        "INFO [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation "
        "throughput: 2.0 tokens/s, Running: {} reqs, Waiting: {} reqs,{} GPU KV cache usage: "
        "{}%, Prefix cache hit rate: {}%\n"
    )
    lines = [
        *write_log(QWEN),
        status.format(3, 9, " Preemptions: 2,", 99.5, 10.0),
        status.format(7, 0, " Preemptions: 1,", 50.0, 41.5),
    ]
    code, out, _ = _run("--log", "-", text="".join(lines))
    assert code == 0
    assert "up to 7 requests running and 9 waiting, up to 99.5 % in use" in out
    assert "41.5 % of tokens found at last, 3 preemptions" in out
    assert out.count("requests were preempted") == 1


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "max_num_seqs (1024) exceeds available Mamba cache blocks (614). Each decode",
            "--max-num-seqs 614 or less",
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (131072), "
            "(1.9 GiB KV cache is needed",
            "does not hold one request of 131072 tokens",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "utilization"),
        ("Turning off hybrid kv cache manager because", "kept as full attention"),
        ("Add 3 padding layers, may waste at most 6.25% KV cache memory", "3 empty layers take"),
        ("hybrid_blocks: level manager, as level natural is refused: a KV connector", "connector"),
        ("hybrid_blocks runs at level pool, not manager: an option. HYBRID_BLOCKS=", "an option"),
    ],
)
def test_a_line_that_matters_comes_with_what_to_do(line: str, advice: str) -> None:
    ((words, told),) = read_lines([line]).troubles
    assert advice in told
    assert words in line


def test_values_that_are_no_values_of_an_option_are_left_out() -> None:
    lines = [
        "non-default args: {'model': 'Phi-4', 'tensor_parallel_size': 'two', 'max_num_seqs': True, "
        "'max_model_len': 4096, 'served_model_name': 'x', 'kv_cache_dtype': 8, 'other': 3, "
        "'compilation_config': <CompilationConfig at 0x1>, 'enable_lora': False}",
        "LLM engine (v0.25.1) with config: model='Phi-4', tensor_parallel_size=2-1, dtype=half!",
        "Available KV cache memory: 8.00 GiB",
    ]
    deployment = report_log(read_lines(lines), None, {}).deployment
    assert (deployment.tp, deployment.max_model_len, deployment.kv_cache_dtype) == (1, 4096, "auto")


def test_the_last_of_several_starts_is_read() -> None:
    other = next(row for row in ROWS if row["model"] == "gpt-oss-20b")
    lines = [*write_log(other), "Preemptions: 3", *write_log(QWEN)]
    report = report_log(read_lines(lines), None, {})
    assert report.model == "Qwen3.6-27B"
    assert report.figures.agree
    assert not any("preempted" in advice for _, advice in report.troubles)
    assert report.num_lines == len(lines)


def test_a_start_that_has_no_memory_yet_leaves_the_one_before() -> None:
    other = next(row for row in ROWS if row["model"] == "gpt-oss-20b")
    beginning = [line for line in write_log(other) if "non-default" in line or "config:" in line]
    report = report_log(read_lines([*write_log(QWEN), *beginning]), None, {})
    assert report.model == "Qwen3.6-27B"
    assert report.figures.agree


def test_arguments_that_were_cut_off_are_read_as_far_as_they_go() -> None:
    lines = [
        "non-default args: {'model': 'Qwen/Qwen3.5-9B', 'tensor_parallel_size': 2, "
        "'speculative_config': {'method': 'mtp', 'num_specul",
        "Available KV cache memory: 8.00 GiB",
    ]
    report = report_log(read_lines(lines), None, {})
    assert (report.model, report.deployment.tp) == ("Qwen3.5-9B", 2)
    assert report.deployment.num_speculative_tokens == 0


def test_a_start_that_failed_for_want_of_memory_is_planned() -> None:
    lines = [line for line in write_log(QWEN) if "GiB" not in line and "tokens," not in line]
    lines.append(
        "ValueError: To serve at least one request with the model's max seq len (262144), (4.69 GiB"
        " KV cache is needed, which is larger than the available KV cache memory (3.52 GiB)."
    )
    report = report_log(read_lines(lines), None, {})
    assert report.report is None
    assert "max length that fits is" in str(report.refusal)
    assert any("262144 tokens" in advice for _, advice in report.troubles)


def test_the_least_memory_of_all_workers_is_taken() -> None:
    lines = write_log({key: value for key, value in QWEN.items() if key != "gib"})
    lines += [f"Available KV cache memory: {gib} GiB" for gib in (14.9, 14.68, 15.1)]
    assert report_log(read_lines(lines), None, {}).figures.agree


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
        (
            ["--log", "-", "Phi-4"],
            "ValueError: No available memory for the cache blocks. Try increasing",
            "nothing is left for the cache",
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
