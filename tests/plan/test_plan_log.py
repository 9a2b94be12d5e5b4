"""``hybrid-blocks plan --log``: the figures of an engine's start, found again by the planner."""

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import pytest
import zstandard
from command import answer, as_json, refusal, run
from hybrid_blocks.model import PlanError, load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.vllm import plan_vllm
from hybrid_blocks.tools.read.log_lines import _COMPILED, PATTERNS, read_lines
from hybrid_blocks.tools.read.log_report import LogReport, report_log
from hybrid_blocks.units import human
from log_writer import write_log
from public_data import DATA

plan = partial(answer, "plan")


HERE = Path(__file__).parent
ROWS = json.loads((HERE / "logged_capacity.json").read_text())
OTHERS = json.loads((HERE / "logged_other.json").read_text())
LOGGED = DATA / "logged_capacity.csv"


def _name(row: dict[str, Any]) -> str:
    return f"{row['model']}-{row.get('tokens')}"


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
        told = {"tokens": row["gpu_kv_cache_tokens"], "gib": row["available_kv_gib_per_gpu"]}
        told |= {"block": row["logged_block_size"], "state_blocks": row["logged_num_gpu_blocks"]}
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
    out = plan("--log", "-", given=log)
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
    assert "natural: groups" in plan("--log", "-", "--all", given=log)
    found = json.loads(plan("--log", "-", "--json", "-", given=log))
    assert (found["version"], found["deployment"]["tp"]) == ("0.25.1", 2)
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
    ran = run("plan", "--log", path)
    assert (ran.code, ran.error) == (0, "")
    assert "all figures of the log are those that the planner expects" in ran.out


def test_a_packed_log_that_was_cut_off_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "serve.log.gz"
    path.write_bytes(gzip.compress("".join(write_log(QWEN)).encode())[:200])
    told = f"error: --log {path}: the compressed data ends or breaks: "
    assert refusal("plan", "--log", path).startswith(told)


def test_standard_input_that_is_no_text_is_one_clear_line() -> None:
    error = refusal("plan", "--log", "-", given=b"\xa6\xff\n")
    assert "none of 1 lines is one that vLLM logs" in error


def test_memory_that_was_given_is_not_called_logged() -> None:
    out = plan("--log", "-", "--memory", "20GiB", given="".join(write_log(QWEN)))
    assert out.startswith(
        "log of vLLM 0.25.1: Qwen3.6-27B, 20.00 GiB as given; the log has 14.68 GiB\n"
    )
    assert "(tokens, concurrency): those of the log are of its 14.68 GiB\n" in out
    same = plan("--log", "-", "--memory", "14.68GiB", given="".join(write_log(QWEN)))
    assert same.startswith("log of vLLM 0.25.1: Qwen3.6-27B, 14.68 GiB as given\n")
    assert "all figures of the log are those" in same


def test_a_note_says_which_requests_at_once_are_assumed() -> None:
    log = "".join(write_log(QWEN)).replace(", 'max_num_seqs': 256", "")
    told = "note: --max-num-seqs {} is assumed, as vLLM does on "
    assert told.format(1024) + "a GPU of 70 to 160 GB (256 and" in plan("--log", "-", given=log)
    assert told.format(256) + "L4\n" in plan("--log", "-", "--gpu", "L4", given=log)
    assert "is assumed" not in plan("--log", "-", "--max-num-seqs", "64", given=log)


def test_a_model_that_is_not_known_says_where_its_name_can_stand() -> None:
    text = "".join(write_log({**QWEN, "model": "/models/mine"}))
    error = refusal("plan", "--log", "-", given=text)
    assert "its config.json or a name can stand before -- or --log" in error


def test_the_log_of_level_natural_is_compared_with_its_own_plan() -> None:
    text = as_json("plan", "Qwen3.6-27B", "--memory", "20GiB")
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
    ran = run("plan", "--log", "-", given="\n".join(lines))
    assert (ran.code, ran.error) == (0, "")
    out = ran.out
    assert "all figures of the log are those that the planner expects" in out
    assert f"slabs {ours['num_slabs']:,} {ours['num_slabs']:,} " in " ".join(out.split())
    other = [line.replace(f"in {ours['num_slabs']:,} ", "in 9 ") for line in lines]
    out = plan("--log", "-", given="\n".join(other))
    assert "the planner expects other figures (tokens, concurrency" in out


def test_an_option_that_the_log_does_not_tell_is_found() -> None:
    lines = [line for line in write_log(QWEN) if "engine" not in line]
    lines.append("model  tensor_parallel_size")
    options = ("--log", "-", "--kv-cache-dtype", "fp8", "--tp", "2")
    assert "they agree with --speculative mtp:2" in plan(*options, given="".join(lines))
    drafting = (*options, "--speculative", "mtp:2")
    assert "all figures of the log are those" in plan(*drafting, given="".join(lines))


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
    out = plan("--log", "-", given="".join(lines))
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
    assert any("262144 tokens" in advice for _, advice in report.troubles)


def test_the_least_memory_of_all_workers_is_taken() -> None:
    lines = write_log({key: value for key, value in QWEN.items() if key != "gib"})
    lines += [f"Available KV cache memory: {gib} GiB" for gib in (14.9, 14.68, 15.1)]
    assert _read(lines).figures.agree


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
def test_a_log_that_says_little_is_refused(arguments: list[str], text: str, complaint: str) -> None:
    assert complaint in refusal("plan", *arguments, given=text)


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
    figures = _read(lines).figures.figures
    return {figure.name: (figure.logged, figure.planned) for figure in figures}


OTHER = write_log(next(row for row in ROWS if row["model"] == "gpt-oss-20b"))
LINES = write_log(QWEN)
ORDERS = {
    "the last of two starts": [*OTHER, "Preemptions: 3", *LINES],
    "two starts, newest first": [*OTHER, *LINES][::-1],
    "a start without memory yet": [
        *LINES,
        *(line for line in OTHER if "non-default" in line or "config:" in line),
    ],
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_start_with_memory_is_read_from_lines_in_any_order(order: str) -> None:
    report = _read(ORDERS[order])
    assert report.model == "Qwen3.6-27B"
    assert report.figures.agree
    assert report.figures == _read(LINES).figures
    assert not any("preempted" in advice for _, advice in report.troubles)
    assert report.num_lines == len(ORDERS[order])


@pytest.mark.parametrize("seed", range(12))
def test_lines_of_one_start_are_read_in_any_order(seed: int) -> None:
    for row in ROWS:
        lines = write_log(row)
        memory = 24 * 2**30 if not {"gib", "blocks", "tokens", "state_blocks"} & set(row) else None
        expected = _read(lines, memory)
        Random(seed).shuffle(lines)
        assert _read(lines, memory) == expected, row


def test_workers_of_one_start_may_log_before_and_behind_its_options() -> None:
    lines = [*_in_two_stages(12.0, 6.0, names=NAMED[::-1]), TOKENS.format(165_529, 2.53)]
    assert _read(lines).figures.agree
    for seed in range(12):
        mixed = [*lines]
        Random(seed).shuffle(mixed)
        assert _read(mixed).figures == _read(lines).figures


def test_the_end_of_an_older_start_is_not_that_of_the_next() -> None:
    end = [line for line in OTHER if "KV cache" in line]
    assert len(end) == 2
    assert _read([*end, *LINES]).figures == _read(LINES).figures
    assert _read([*LINES[::-1], *end[::-1]]).figures == _read(LINES).figures


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
    figures = {figure.name: figure.planned for figure in report.figures.figures}
    assert report.figures.agree
    assert figures["GiB that a request needs"] == needed
    assert figures["longest that fits"] == f"{longest:,}"
    assert report.figures.memory_bytes == pytest.approx(gib * 2**30, rel=0.002)


def test_what_a_start_needed_tells_the_options_that_held() -> None:
    narrow = Deployment(max_model_len=262_144, kv_cache_dtype="fp8")
    plan = plan_vllm(load_model("Qwen3.6-27B"), 6 << 30, narrow)
    needed = (plan.needed_bytes(262_144) - plan.block_bytes) / 2**30
    told = NEEDED.format(262_144, f"{needed:.2f}", "5.95", plan.longest())
    lines = ["Available KV cache memory: 6.0 GiB", told]
    report = _read(_started("Qwen/Qwen3.6-27B", 262_144, *lines))
    assert not report.figures.agree
    assert report.figures.explanation == "--kv-cache-dtype fp8"


@pytest.mark.parametrize(
    ("version", "agrees"),
    [("0.20.1", True), ("0.21.0", True), ("0.22.0", True), ("0.20.1rc1", False), ("0.20.0", False)],
)
def test_releases_since_0_20_1_count_requests(version: str, *, agrees: bool) -> None:
    lines = _started(
        *("Qwen/Qwen3.5-9B", 65_536, "Available KV cache memory: 10.78 GiB"),
        "GPU KV cache size: 342,528 tokens",
        version=version,
    )
    lines[2] = lines[2].replace("enable_prefix_caching=True", "enable_prefix_caching=False")
    figures = _read(lines).figures
    assert figures.agree is agrees
    if not agrees:
        assert figures.explanation == "what vLLM since 0.20.1 logs"


def test_the_format_of_states_explains_a_log() -> None:
    narrow = Deployment(max_model_len=65_536, mamba_ssm_dtype="bfloat16")
    plan = plan_vllm(load_model("Qwen3.8-27B"), 20 << 30, narrow)
    lines = _started(
        *("Qwen/Qwen3.8-27B", 65_536, "Available KV cache memory: 20.0 GiB"),
        f"Setting attention block size to {plan.block_tokens} tokens to ensure that",
        TOKENS.format(plan.tokens, f"{plan.max_concurrency:.2f}"),
    )
    assert _read(lines).figures.explanation == "--mamba-ssm-cache-dtype bfloat16"


def test_a_log_with_one_batch_in_flight_says_so() -> None:
    model = load_model("Gemma-3-27B")
    plan = plan_vllm(model, 40 << 30, Deployment(max_model_len=131_072, in_flight_batches=1))
    lines = _started(
        *("google/gemma-3-27b-it", 131_072, "Available KV cache memory: 40.0 GiB"),
        f"GPU KV cache size: {plan.tokens:,} tokens",
    )
    figures = _read(lines).figures
    assert str(figures.explanation).startswith("--in-flight-batches 1 (1 as without --async-sched")
    lines.append("Asynchronous scheduling is disabled.")
    assert _read(lines).figures.agree


def test_blocks_are_read_from_the_line_of_metrics() -> None:
    line = "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 700"
    assert _planned(_started("Qwen/Qwen3.6-27B", 65_536, line))["blocks"] == ("700", "700")


MTP = "SpeculativeConfig(method='mtp', model='Qwen/Qwen3.5-27B', num_spec_tokens=3)"


def _in_two_stages(*gib: float, names: tuple[str, ...] = ("", ""), drafts: str = MTP) -> list[str]:
    lines = [
        line.replace("pipeline_parallel_size=1", "pipeline_parallel_size=2").replace(
            "speculative_config=None", f"speculative_config={drafts}"
        )
        for line in _started("Qwen/Qwen3.5-27B", 65_536)
    ]
    memory = zip(names, gib, strict=True)
    return [*lines, *(f"{name}Available KV cache memory: {each} GiB" for name, each in memory)]


NAMED = "(Worker_PP0_TP0 pid=7) ", "(Worker_PP1_TP0 pid=8) "
TOKENS = "GPU KV cache size: {:,} tokens, Maximum concurrency for 65,536 tokens per request: {}x"


@pytest.mark.parametrize("names", [("", ""), NAMED], ids=["by order", "by name"])
def test_the_stage_with_the_fewest_blocks_decides(names: tuple[str, str]) -> None:
    figures = _planned(_in_two_stages(6.0, 12.0, names=names))
    found = [figures[name][1] for name in ("blocks", "tokens", "concurrency")]
    assert found == ["245", "165,529", "2.53x"]
    if names == NAMED:
        turned = _planned(_in_two_stages(12.0, 6.0, names=names[::-1]))
        assert turned == figures


def test_stages_without_a_name_may_log_in_any_order() -> None:
    lines = [*_in_two_stages(12.0, 6.0), TOKENS.format(165_529, 2.53)]
    assert _read(lines).figures.agree
    named = [*_in_two_stages(12.0, 6.0, names=NAMED), TOKENS.format(165_529, 2.53)]
    assert not _read(named).figures.agree


def test_memory_that_was_given_is_that_of_all_stages() -> None:
    report = _read(_in_two_stages(6.0, 12.0, names=NAMED), 12 << 30)
    assert {it.name: it.planned for it in report.figures.figures}["blocks"] == "436"


def test_the_layers_of_each_stage_are_those_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("\n".join(_in_two_stages(3.18, 8.9, names=NAMED, drafts="None")))
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "16,48")
    rows = as_json("plan", "--log", log)["figures"]["figures"]
    planned = {row["name"]: row["planned"] for row in rows}
    assert (planned["blocks"], planned["tokens"]) == ("247", "179,859")
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "16,forty")
    assert "VLLM_PP_LAYER_PARTITION=" in refusal("plan", "--log", log)


def test_engines_with_parallel_data_have_figures_of_their_own() -> None:
    model, deployment = load_model("Qwen3.6-27B"), Deployment(max_model_len=65_536)
    lines = _started("Qwen/Qwen3.6-27B", 65_536)
    plans = [plan_vllm(model, int(gib * 2**30), deployment) for gib in (24.0, 23.2)]
    for number, (gib, plan) in enumerate(zip((24.0, 23.2), plans, strict=True)):
        lines += [
            f"(Worker_DP{number} pid=1{number}) INFO Available KV cache memory: {gib} GiB",
            f"(EngineCore_DP{number} pid=2{number}) INFO "
            + TOKENS.format(plan.tokens, f"{plan.max_concurrency:.2f}"),
        ]
    for order in (lines, lines[:3] + lines[3::2] + lines[4::2], lines[::-1]):
        report = _read(order)
        figures = {figure.name: figure for figure in report.figures.figures}
        assert report.figures.agree
        for number, plan in enumerate(plans):
            assert figures[f"tokens, engine {number}"].logged == f"{plan.tokens:,}"
            assert figures[f"blocks, engine {number}"].planned == f"{plan.num_blocks:,}"
        assert report.figures.memory_bytes == pytest.approx(23.2 * 2**30, rel=1e-4)


# Input that is no log


@pytest.mark.parametrize(
    "line",
    [
        "Available KV cache memory: 1.2.3 GiB",
        "Available KV cache memory: . GiB",
        "GPU KV cache size: , tokens",
        "GPU KV cache size: " + "9" * 5_000 + " tokens",
        "Maximum concurrency for 8,192 tokens per request: 1..2x",
        "# GPU blocks: " + "9" * 5_000,
        "Prefix cache hit rate: ..%",
    ],
)
def test_a_number_that_is_none_is_passed_over(line: str) -> None:
    log = read_lines([*write_log(QWEN), line])
    assert log.num_read == read_lines(write_log(QWEN)).num_read
    assert report_log(log, None, {}).figures.agree


def test_a_length_of_400_digits_is_one_clear_line() -> None:
    long = "9" * 400
    refusal("plan", "--log", "-", "--max-model-len", long, given="".join(write_log(QWEN)))
    lines = [line.replace("max_seq_len=262144", f"max_seq_len={long}") for line in write_log(QWEN)]
    assert _read(lines).figures.agree


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


@pytest.mark.parametrize("pattern", [*PATTERNS.values(), *(it for it, _ in _COMPILED)])
def test_no_line_takes_more_than_linear_time(pattern: re.Pattern[str]) -> None:
    assert not _unbounded(_parser.parse(pattern.pattern), is_last=True)
    assert _unbounded(_parser.parse("a(.*)b"), is_last=True)


def test_an_endless_log_is_kept_in_bounded_memory() -> None:
    status = "Running: {} reqs, Waiting: 2 reqs, GPU KV cache usage: 9.5%, Preemptions: 1,"
    exceeds = "max_num_seqs ({}) exceeds available Mamba "
    lines = (it.format(number) for number in range(30_000) for it in (status, exceeds))
    log = read_lines(chain(write_log(QWEN), lines, write_log(QWEN)[5:6] * 5_000))
    assert max(map(len, log.facts.values())) <= 4_096
    assert log.facts["running"] == ["29999"]
    assert log.facts["preemptions"] == ["30000"]
    assert len(log.troubles) <= 64
