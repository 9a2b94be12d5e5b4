"""``hybrid-blocks plan`` as a person meets it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.cli import app
from typer.testing import CliRunner

QWEN = ("Qwen3.5-27B", "--memory", "13.61GiB", "--tp", "2", "--max-model-len", "262144")
MTP = ("--num-speculative-tokens", "2", "--max-num-batched-tokens", "8192")


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert not isinstance(result.exception, Exception), result.exception
    return result.exit_code, result.stdout, result.stderr


def _report(*arguments: str) -> dict[str, Any]:
    code, out, _ = _run(*arguments, "--json", "-")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


def test_a_plan_shows_both_geometries_and_what_to_act_on() -> None:
    code, out, _ = _run(*QWEN, *MTP, "--vllm-formula", "old", "--lengths", "512,4k,32k")
    assert code == 0
    assert "104,800" in out
    assert "1.54x" in out
    assert "requests of 32,768" in out
    assert "attention block inflated to 800 tokens: prompts below it never hit" in out
    assert "3 padding layers waste 6.25 %" in out


def test_the_json_file_holds_both_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code, _, _ = _run(*QWEN, *MTP, "--vllm-formula", "old", "--json", str(path))
    assert code == 0
    report = json.loads(path.read_text())
    for side in ("vllm", "natural"):
        for field in (
            "block_tokens",
            "num_blocks",
            "blocks_per_request",
            "tokens",
            "max_concurrency",
            "state_slots",
        ):
            assert report[side][field] > 0
    assert report["vllm"]["block_tokens"] == 800
    assert report["vllm"]["num_blocks"] == 524
    assert report["vllm"]["blocks_per_request"] == 340
    assert report["vllm"]["tokens"] == 104_800
    assert {group["kind"] for group in report["groups"]} == {"state", "full"}
    assert report["warnings"]


def test_every_byte_is_accounted_for() -> None:
    report = _report(*QWEN, "--lengths", "4k")
    for side in ("vllm", "natural"):
        for at_length in report[side]["lengths"]:
            budget = at_length["budget"]
            parts = ("live", "rounding", "padding", "null", "unused", "tail")
            assert sum(budget[part] for part in parts) == report["memory_bytes"]


def test_the_explanation_shows_formulas_with_their_numbers() -> None:
    _, out, _ = _run(*QWEN, *MTP, "--explain")
    assert "conv 5 x 5120 bfloat16 + recurrent 24 x 128 x 128 float32 = 1,624,064 bytes" in out
    assert "blocks = floor(14,613,626,224 / 27,852,800) = 524" in out
    assert "ceil(262,144 / 800) = 340" in out


def test_too_many_sequences_for_the_state_slots_are_warned_of() -> None:
    report = _report("Qwen3.6-27B", "--memory", "29.4GiB", "--max-num-seqs", "1024")
    assert report["vllm"]["state_slots"] == 614
    assert any(
        "max_num_seqs 1024 exceeds the 614 state slots" in line for line in report["warnings"]
    )


def test_memory_in_powers_of_ten_is_planned_as_such() -> None:
    report = _report("Qwen3.5-27B", "--memory", "13GB", "--max-model-len", "8k")
    assert report["memory_bytes"] == 13 * 10**9


def test_unverified_sizes_are_marked() -> None:
    report = _report("PLaMo-2-8B", "--memory", "24GiB", "--max-model-len", "4k")
    assert report["verified"] == "unverified"
    assert any("unverified" in line for line in report["warnings"])


def test_a_request_that_fits_only_without_padding_is_a_warning() -> None:
    report = _report("Qwen3.5-27B", "--memory", "3.95GiB", "--max-model-len", "58k")
    assert report["natural"]["max_length"] == 58 * 1024
    assert report["vllm"]["max_length"] < 58 * 1024
    assert any("max length that fits is" in line for line in report["warnings"])


def test_two_reports_are_compared(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("bf16.json", "fp8.json")]
    for path, kv_dtype in zip(paths, ("auto", "fp8"), strict=True):
        assert _run(*QWEN, "--kv-cache-dtype", kv_dtype, "--json", path)[0] == 0
    code, out, _ = _run("--compare", *paths)
    assert code == 0
    assert "kv_cache_dtype" in out
    assert "natural.tokens" in out
    assert "tp " not in out


def test_a_sweep_prints_one_row_for_each_combination() -> None:
    code, out, _ = _run(
        "Qwen3.5-27B", "--memory", "24GiB", "--max-model-len", "32k", "--sweep", "tp=1,2,3",
        "kv-dtype=bf16,fp8",
    )  # fmt: skip
    assert code == 0
    assert [out.count(f" {block} ") for block in ("784", "1,568")] == [2, 2]
    assert "--tp 3 does not divide" in out


def test_a_trace_gives_the_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-01 10:00:00.0000000,1000,24\n2024-05-01 10:00:01.0000000,3000,48\n"
    )
    report = _report(*QWEN, "--trace", str(path))
    assert report["natural"]["trace"]["length"] == 2036
    assert report["natural"]["trace"]["concurrency"] > report["vllm"]["trace"]["concurrency"]


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "memory.svg"
    assert _run(*QWEN, "--lengths", "4k", "--plot", str(path))[0] == 0
    assert "rounding" in path.read_text() or path.stat().st_size > 10_000


def test_layers_described_by_hand_are_planned(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(
        '{"max_model_len": 4096, "layers": [{"repeat": 4, "pattern": ['
        '{"kind": "short_conv", "width": 512, "conv_kernel": 3}, '
        '{"kind": "full", "kv_heads": 4, "head_dim": 64}]}]}'
    )
    report = _report("--layers", str(path), "--memory", "1GiB")
    assert report["layers"] == {"short_conv": 4, "full": 4}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("no-such-model", "--memory", "1GiB"), "neither a file"),
        (("missing.json", "--memory", "1GiB"), "no such file"),
        (("Qwen3.5-27B",), "--memory is needed"),
        (("--memory", "1GiB"), "name a model"),
        (("Qwen3.5-27B", "--memory", "-1GiB"), "must be positive"),
        (("Qwen3.5-27B", "--memory", "0"), "must be positive"),
        (("Qwen3.5-27B", "--memory", "lots"), "is no size"),
        (("Qwen3.5-27B", "--memory", "3furlongs"), "unknown unit"),
        (("Qwen3.5-27B", "--memory", "1GiB"), "KV of one request does not fit"),
        (("Qwen3.5-27B", "--memory", "1MiB"), "hold no slab"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--tp", "3"), "--tp 3 does not divide"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--tp", "-2"), "--tp must be positive"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--pp", "65"), "exceeds the 64 layers"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--block-size", "0"), "--block-size must be"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--max-model-len", "-4"), "no number of tokens"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--num-speculative-tokens", "-1"), "not be negative"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--kv-cache-dtype", "fp7"), "unknown dtype"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--mamba-cache-mode", "all"), "none or align"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--vllm-formula", "odd"), "old or new"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--lengths", "4q"), "no number of tokens"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--trace", "missing.csv"), "missing.csv"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--sweep", "colour=1"), "is no axis"),
        (("Qwen3.5-27B", "--memory", "24GiB", "--sweep", "tp=one"), "no whole number"),
        (("Qwen3.5-27B", "gpt-oss-20b", "--memory", "24GiB"), "one model at a time"),
        (("--compare", "a.json", "b.json"), "a.json"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: tuple[str, ...], complaint: str
) -> None:
    code, out, error = _run(*arguments)
    assert code == 2
    assert out == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert complaint in error


@pytest.mark.parametrize("text", ["not json", "[]", '{"model_type": 3}', '"text"'])
def test_a_config_that_is_no_config_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    code, _, error = _run(str(tmp_path), "--memory", "1GiB")
    assert code == 2
    assert error.count("\n") == 1


def test_a_plan_waits_for_no_heavy_import() -> None:
    program = (
        "import sys; from hybrid_blocks.cli import app; "
        "app(['plan', 'Qwen3.5-27B', '--memory', '24GiB', '--lengths', '512,4k'], "
        "standalone_mode=False); "
        "heavy = {'numpy', 'torch', 'vllm', 'matplotlib', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=60, stdout=subprocess.DEVNULL
    )
