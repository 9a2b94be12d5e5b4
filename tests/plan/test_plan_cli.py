"""``hybrid-blocks plan`` as a person meets it."""

import json
import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import answer, as_json, refusal
from process import printed_by_python

plan, plan_refusal = partial(answer, "plan"), partial(refusal, "plan")
plan_report = partial(as_json, "plan")

QWEN = ("Qwen3.5-27B", "--memory", "13.61GiB", "--tp", "2", "--max-model-len", "262144")
MTP = ("--speculative", "mtp:2", "--max-num-batched-tokens", "8192")
FULL: dict[str, object] = {"kind": "full", "kv_heads": 4, "head_dim": 64}


def described(
    path: Path, *pattern: dict[str, object], repeat: int = 1, **more: object
) -> list[Any]:
    """Write a description of layers; return the words that name it."""
    path.write_text(json.dumps({"layers": [{"repeat": repeat, "pattern": pattern}], **more}))
    return ["--layers", path, "--memory", "8GiB"]


def test_a_plan_shows_both_geometries_and_what_to_act_on() -> None:
    out = plan(*QWEN, *MTP, "--lengths", "512,4k,32k")
    assert "404,010 tokens" in out
    assert "1.54x" in out
    assert "requests of 32,768" in out
    assert "attention block inflated to 800 tokens: prompts below it hit only with a finer" in out
    assert "3 padding layers waste 6.25 %" in out


def test_the_json_file_holds_both_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan(*QWEN, *MTP, "--json", str(path))
    report = json.loads(path.read_text())
    fields = ("block_tokens", "num_blocks", "blocks_per_request", "tokens", "max_concurrency")
    for side in ("vllm", "natural"):
        assert all(report[side][field] > 0 for field in (*fields, "state_slots"))
    assert report["vllm"]["block_tokens"] == 800
    assert report["vllm"]["num_blocks"] == 524
    assert report["vllm"]["logged_blocks_per_request"] == 340
    assert report["vllm"]["logged_tokens"] == int(524 / 340 * 262_144)
    assert report["natural"]["logged_tokens"] is None
    assert {group["kind"] for group in report["groups"]} == {"state", "full"}
    assert report["warnings"]


def test_every_byte_is_accounted_for() -> None:
    report = plan_report(*QWEN, "--lengths", "4k")
    for side in ("vllm", "natural"):
        for at_length in report[side]["lengths"]:
            budget = at_length["budget"]
            parts = ("live", "rounding", "padding", "null", "unused", "tail")
            assert sum(budget[part] for part in parts) == report["memory_bytes"]


def test_fields_of_one_name_mean_the_same_in_both_plans() -> None:
    """vLLM logs less than a third of the requests it runs: it counts the batch for each of them."""
    report = plan_report("Gemma-3-27B", "--memory", "24GiB", "--max-model-len", "8k")
    for side in ("vllm", "natural"):
        plan = report[side]
        full = plan["lengths"][0]
        assert plan["max_concurrency"] == full["concurrency"]
        assert plan["tokens"] == full["tokens"] == int(full["concurrency"] * 8192)
        assert int(plan["max_concurrency"]) == full["budget"]["requests"]
        held = sum(group["blocks_per_request"] for group in plan["groups"])
        assert plan["blocks_per_request"] == held
    vllm = report["vllm"]
    assert (vllm["logged_tokens"], round(vllm["logged_concurrency"], 2)) == (44_862, 5.48)
    assert round(vllm["max_concurrency"], 2) == 18.82
    assert round(report["natural"]["max_concurrency"], 2) == 19.90


def test_more_sequences_than_vllm_captures_graphs_for_are_warned_of() -> None:
    """vLLM compares with the pool's blocks: slabs at level natural, the null one included."""
    report = plan_report("Qwen3.6-27B", "--memory", "29.4GiB", "--max-num-seqs", "1024")
    vllm, natural = report["vllm"], report["natural"]
    assert vllm["cuda_graph_batch"] == vllm["num_blocks"] == 614
    assert natural["cuda_graph_batch"] == natural["num_slabs"] == 813
    assert vllm["state_slots"] == 613 // 3
    for warning in (
        "vLLM: max_num_seqs 1024 exceeds the 614 blocks: CUDA graph capture fails; use "
        "--max-num-seqs 614",
        "natural: max_num_seqs 1024 exceeds the 813 slabs: CUDA graph capture fails; use "
        "--max-num-seqs 813",
    ):
        assert warning in report["warnings"]
    fewer = plan_report("Qwen3.6-27B", "--memory", "29.4GiB", "--max-num-seqs", "813")
    assert not any(line.startswith("natural:") and "CUDA" in line for line in fewer["warnings"])


def test_a_model_without_states_has_no_bound_by_cuda_graphs() -> None:
    report = plan_report("Gemma-3-27B", "--memory", "24GiB", "--max-model-len", "8k")
    assert report["natural"]["cuda_graph_batch"] is None
    assert report["vllm"]["cuda_graph_batch"] is None


def test_all_blocks_of_the_shortest_request_are_named() -> None:
    report = plan_report("Qwen3.5-27B", "--memory", "24GiB")
    assert report["vllm"]["num_blocks"] == 501
    (note,) = (line for line in report["notes"] if "however short" in line)
    assert "3 state blocks and at least 1 attention block, so at most 125 of" in note


def test_what_calls_for_nothing_is_a_note() -> None:
    report = plan_report("Qwen3.5-27B", "--memory", "24GiB")
    for words in (
        "natural: max_num_seqs 256 exceeds the 165 sequences whose states fit",
        "vLLM: pages of mamba layers padded by 0.13 % to 3,211,264 bytes",
    ):
        assert words in report["notes"]
    assert not any("sequences" in line or "padded" in line for line in report["warnings"])
    padded = plan_report("Kimi-Linear-48B-A3B", "--memory", "24GiB", "--kv-cache-dtype", "fp8")
    assert [line for line in padded["warnings"] if "padded by" in line]


def test_bytes_fill_the_memory_whatever_max_num_seqs_is() -> None:
    options = ("Qwen3.5-27B", "--memory", "24GiB", "--lengths", "1k", "--max-num-seqs", "8")
    out = plan(*options)
    assert re.search(r"requests of 1,024 +8\.00x \(max_num_seqs\)", out)
    assert re.search(r"memory holds +115 +99", out)


@pytest.mark.parametrize(("pp", "batches"), [("1", "2"), ("2", "3")])
def test_windows_hold_the_batches_that_are_in_flight_on_a_gpu(pp: str, batches: str) -> None:
    options = ("gpt-oss-20b", "--memory", "24GiB", "--pp", pp)
    default, given = plan_report(*options), plan_report(*options, "--in-flight-batches", batches)
    assert default["vllm"] == given["vllm"]
    assert default["natural"] == given["natural"]
    assert default["warnings"] == given["warnings"]
    on_a_cpu = plan_report(*options, "--in-flight-batches", pp)
    assert on_a_cpu["vllm"]["logged_tokens"] > default["vllm"]["logged_tokens"]


def test_the_batches_that_vllms_figure_counts_are_named(tmp_path: Path) -> None:
    """vLLM logged 242,335 tokens for one batch in flight, without asynchronous scheduling."""
    gemma = {"model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48}
    gemma |= {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256}
    config = tmp_path / "config.json"
    gemma |= {"sliding_window": 1024}
    config.write_text(json.dumps({"model_type": "gemma3", "text_config": gemma}))
    options = (str(config), "--memory", "20GiB", "--max-model-len", "131072")
    report = plan_report(*options)
    assert report["vllm"]["logged_tokens"] == 196_843
    (note,) = (line for line in report["notes"] if "in flight" in line)
    assert note == (
        "vLLM logs 196,843 tokens with 2 batches in flight, whose tokens windows hold, as with "
        "asynchronous scheduling, its default; without it, 242,335 (--in-flight-batches 1)"
    )
    of_one = plan_report(*options, "--in-flight-batches", "1")
    assert of_one["vllm"]["logged_tokens"] == 242_335
    assert not any("in flight" in line for line in of_one["notes"])
    qwen = plan_report("Qwen3.5-27B", "--memory", "24GiB")
    assert not any("in flight" in line for line in qwen["notes"])


def test_unverified_sizes_are_marked() -> None:
    report = plan_report("PLaMo-2-8B", "--memory", "24GiB", "--max-model-len", "4k")
    assert report["verified"] == "unverified"
    assert any("unverified" in line for line in report["warnings"])


def test_a_request_that_fits_only_without_padding_is_a_warning() -> None:
    options = ("Qwen3.5-27B", "--memory", "3.95GiB", "--max-model-len", "58k")
    report = plan_report(*options)
    assert report["natural"]["max_length"] == 58 * 1024
    assert report["vllm"]["max_length"] == 58_800
    (warning,) = (line for line in report["warnings"] if "does not fit" in line)
    assert warning == (
        "vLLM: KV of one request does not fit: 59,392 tokens need 3.97 GiB, 3.95 GiB are there; "
        "max length that fits is 58,800"
    )
    assert all(report["vllm"][f"logged_{it}"] is None for it in ("tokens", "concurrency"))
    assert re.search(r"vLLM logs for 59,392 +does not start", plan(*options))


def test_a_length_that_fits_in_neither_plan_names_both_limits_and_both_needs() -> None:
    assert plan_refusal("Qwen3.5-27B", "--memory", "3.95GiB", "--max-model-len", "262144") == (
        "error: KV of one request does not fit: 262,144 tokens of Qwen3.5-27B need 16.19 GiB at "
        "level natural and 16.37 GiB in vLLM's blocks, 3.95 GiB are there; max length that fits is "
        "61,568 at level natural and 58,800 in vLLM's blocks\n"
    )


@pytest.mark.parametrize("size", ["16", "48"])
def test_blocks_that_kernels_take_are_planned(size: str) -> None:
    report = plan_report("gpt-oss-20b", "--memory", "24GiB", "--block-size", size)
    assert report["natural"]["block_tokens"] == int(size)


def test_text_of_a_user_is_printed_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / ":x: [bold].json"
    assert f"{path}: 1 full" in plan(*described(path, FULL))


def test_more_layers_than_any_model_has_are_refused_at_once(tmp_path: Path) -> None:
    error = plan_refusal(*described(tmp_path / "spec.json", FULL, FULL, repeat=99999999))
    assert "199,999,998 layers are described, 10,000 at most" in error


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        ({**FULL, "kv_heads": 0}, "kv_heads of a full layer is 0"),
        ({**FULL, "head_dim": -64}, "head_dim of a full layer is -64"),
        (
            {**FULL, "kind": "sliding_window", "window": -1},
            "window of a sliding_window layer is -1",
        ),
        (
            {"kind": "short_conv", "width": -8, "conv_kernel": 3},
            "width of a short_conv layer is -8",
        ),
    ],
)
@pytest.mark.parametrize("place", ["pattern", "draft"])
def test_a_size_that_no_layer_has_is_refused(
    tmp_path: Path, layer: dict[str, object], complaint: str, place: str
) -> None:
    pattern, draft = (layer, FULL) if place == "pattern" else (FULL, layer)
    error = plan_refusal(*described(tmp_path / "spec.json", pattern, draft=[draft]))
    assert f"{complaint}; it is 1 to 2,147,483,647" in error


def test_a_trace_gives_the_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-01 10:00:00.0000000,1000,24\n2024-05-01 10:00:01.0000000,3000,48\n"
    )
    report = plan_report(*QWEN, "--trace", str(path))
    assert report["natural"]["trace"]["length"] == 2036
    assert report["natural"]["trace"]["concurrency"] > report["vllm"]["trace"]["concurrency"]
    short = plan_report(*QWEN, "--trace", str(path), "--max-model-len", "2k")
    assert [it for it in short["warnings"] if "refuses" in it] == [
        "1 of 2 requests of the trace exceed the maximum length of 2,048, the longest has 3,048 "
        "tokens: an engine refuses such a request"
    ]


def test_layers_described_by_hand_are_planned(tmp_path: Path) -> None:
    short = {"kind": "short_conv", "width": 512, "conv_kernel": 3}
    words = described(tmp_path / "spec.json", short, FULL, repeat=4, max_model_len=4096)
    assert plan_report(*words)["layers"] == {"short_conv": 4, "full": 4}


@pytest.mark.parametrize(
    ("layer", "options", "is_told"),
    [
        ({}, (), True),
        ({"ssm_dtype": "float32"}, (), False),
        ({"ssm_dtype": "bfloat16"}, (), False),
        ({}, ("--mamba-ssm-dtype", "float32"), False),
    ],
    ids=str,
)
def test_a_state_described_without_its_format_is_told(
    tmp_path: Path, layer: dict[str, object], options: tuple[str, ...], *, is_told: bool
) -> None:
    sizes = {"inner_dim": 8192, "groups": 8, "heads": 128, "head_dim": 64, "state_dim": 128}
    mamba = {"kind": "mamba2", **sizes, "conv_kernel": 4, **layer}
    words = described(tmp_path / "spec.json", mamba, FULL, repeat=8)
    report = plan_report(*words, "--max-model-len", "4k", *options)
    told = (
        "8 mamba2 layers name no ssm_dtype: their states are planned in bfloat16, the model's "
        "own format; vLLM's models often keep float32 (--mamba-ssm-dtype)"
    )
    assert [line for line in report["warnings"] if "ssm_dtype" in line] == [told] * is_told


PLANNED = "Qwen3.5-27B --memory 24GiB"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("no-such-model --memory 1GiB", "neither a file"),
        ("Qwen3.5-27B", "--memory is needed"),
        ("--memory 1GiB", "name a model"),
        ("Qwen3.5-27B --memory -1GiB", "must be positive"),
        ("Qwen3.5-27B --memory 0", "must be positive"),
        ("Qwen3.5-27B --memory lots", "is no size"),
        ("Qwen3.5-27B --memory 3furlongs", "unknown unit"),
        ("Qwen3.5-27B --memory 24", "24 has no unit and would be 24 B; did you mean 24GiB?"),
        ("Qwen3.5-27B --memory 34Gi", "did you mean 34GiB?"),
        ("Qwen3.5-27B --memory 9999TiB", "more than the 1024 TiB"),
        ("Qwen3.5-27B --memory 1GiB", "KV of one request does not fit"),
        ("Qwen3.5-27B --memory 1MiB", "hold no slab"),
        ("Qwen3.5-27B gpt-oss-20b --memory 24GiB", "too many words: 1"),
        ("'' --memory 1GiB", "a model has a name"),
        (f"{PLANNED} --tp 3", "--tp 3 does not divide"),
        (f"{PLANNED} --tp -2", "--tp must be positive"),
        (f"{PLANNED} --pp 65", "exceeds the 64 layers"),
        (f"{PLANNED} --block-size 0", "--block-size must be"),
        (f"{PLANNED} --block-size 7", "a multiple; give 16"),
        (f"{PLANNED} --block-size 40", "a multiple; give 48"),
        (f"{PLANNED} --max-model-len -4", "no number of tokens"),
        (f"{PLANNED} --max-model-len 4096M", "at most 2,147,483,647"),
        (f"{PLANNED} --max-num-seqs {'9' * 20}", "at most 2,147,483,647"),
        (
            f"{PLANNED} --speculative ngram:100000",
            "--speculative ngram:100000: vLLM verifies at most 128",
        ),
        (f"{PLANNED} --kv-cache-dtype fp7", "unknown dtype"),
        (f"{PLANNED} --mamba-cache-mode all", "none or align"),
        (f"{PLANNED} --in-flight-batches 0", "must be positive"),
        (f"{PLANNED} --lengths 4q", "no number of tokens"),
        (f"{PLANNED} --lengths 4k,512,4k", "--lengths names 4096 twice"),
        (f"{PLANNED} --lengths ''", "is no number of tokens"),
        (f"{PLANNED} --layers a.json", "both describe the model"),
        (f"{PLANNED} --json - --all", "--all beside --json"),
        (f"{PLANNED} --json /", "--json /: a folder"),
        (f"{PLANNED} --json x.html --html ./x.html", "--json and --html name the same file"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(arguments: str, complaint: str) -> None:
    assert complaint in plan_refusal(*shlex.split(arguments))


def test_a_plan_waits_for_no_heavy_import() -> None:
    program = (
        "import sys; from hybrid_blocks.tools.cli import app; "
        "app(['plan', 'Qwen3.5-27B', '--memory', '24GiB', '--lengths', '512,4k'], "
        "standalone_mode=False); "
        "heavy = {'numpy', 'torch', 'vllm', 'matplotlib', 'transformers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    printed_by_python("-c", program, timeout=300)


def test_max_num_seqs_caps_what_runs_and_a_warning_says_so() -> None:
    options = ("Qwen3.6-35B-A3B", "--tp", "2", "--kv-cache-dtype", "fp8", "--memory", "34GiB")
    report = plan_report(*options, "--speculative", "mtp:2", "--lengths", "512,32k")
    for side, held in (("natural", 361.27), ("vllm", 304.50)):
        short, long = report[side]["lengths"][1:]
        assert (round(short["concurrency"], 2), short["running"]) == (held, 256)
        assert long["running"] == long["concurrency"] < 256
    (warning,) = (line for line in report["warnings"] if "caps" in line)
    assert warning == (
        "max_num_seqs 256 caps requests of 512; memory holds 361.27x (natural), 304.50x (vLLM): "
        "raise --max-num-seqs to run more"
    )
    few = plan_report("Qwen3.5-27B", "--memory", "24GiB", "--max-num-seqs", "8")
    (warning,) = (line for line in few["warnings"] if "caps" in line)
    assert warning == (
        "max_num_seqs 8 caps requests of 1,024, 4,096, 16,384; memory holds 115.71x (natural), "
        "99.40x (vLLM) of 1,024: raise --max-num-seqs to run more"
    )
    out = plan(*options, "--speculative", "mtp:2", "--lengths", "512")
    assert out.count("256.00x (max_num_seqs)") == 2


def test_lengths_beyond_the_maximum_are_warned_of() -> None:
    report = plan_report(*QWEN, "--lengths", "4k,1M")
    (warning,) = (line for line in report["warnings"] if "an engine refuses" in line)
    assert warning.startswith("1,048,576 tokens exceed the maximum length of 262,144")
