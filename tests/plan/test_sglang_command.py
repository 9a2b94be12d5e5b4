"""``hybrid-blocks plan -- python -m sglang.launch_server …``."""

import json
from typing import Any

import pytest
from hybrid_blocks.cli import app
from hybrid_blocks.model import PlanError, load_model
from hybrid_blocks.pasted import sglang_command
from hybrid_blocks.pasted.command import SEQUENCES, read_command
from hybrid_blocks.pasted.features import read_features
from hybrid_blocks.pasted.log_lines import read_lines
from hybrid_blocks.pasted.log_report import report_log
from hybrid_blocks.pasted.options import recorded
from hybrid_blocks.plan import Deployment
from hybrid_blocks.plan.deployment import SglangOptions
from hybrid_blocks.plan.sglang import plan_sglang
from typer.testing import CliRunner

MEMORY = 24 * 2**30
_SERVER = "python -m sglang.launch_server --model-path Qwen/Qwen3.5-27B"


def _deployment(**options: Any) -> Deployment:
    own = SglangOptions(**options.pop("sglang", {}))
    return Deployment(**{"max_num_seqs": SEQUENCES, **options}, sglang=own)


@pytest.mark.parametrize(
    ("text", "deployment"),
    [
        (_SERVER, _deployment()),
        (
            f"{_SERVER} --tp 2 --mamba-full-memory-ratio 0.5 --max-running-requests 64 --port 80",
            _deployment(tp=2, max_num_seqs=64, sglang={"ratio": 0.5, "max_running": 64}),
        ),
        (
            "SGLANG_ENABLE_SPEC_V2=1 sglang serve --model Qwen/Qwen3.5-27B "
            "--tensor-parallel-size=4 --mem-fraction-static 0.8 "
            "--context-length 128K --kv-cache-dtype fp8_e4m3 "
            "--mamba-ssm-dtype bfloat16 --mamba-scheduler-strategy extra_buffer_lazy",
            _deployment(
                tp=4,
                max_model_len=131_072,
                kv_cache_dtype="fp8_e4m3",
                mamba_ssm_dtype="bfloat16",
                sglang={"strategy": "extra_buffer_lazy"},
            ),
        ),
        (
            f"docker run --gpus all lmsysorg/sglang:latest {_SERVER} --disable-radix-cache "
            "--chunked-prefill-size 4096 --host 0.0.0.0 --reasoning-parser qwen3",
            _deployment(mamba_cache_mode="none", max_num_batched_tokens=4096),
        ),
        (
            f"{_SERVER} --speculative-algorithm NEXTN --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            _deployment(num_speculative_tokens=3, sglang={"max_running": 48}),
        ),
        (
            f"bash -c '{_SERVER} --kv-cache-dtype bf16 --chunked-prefill-size -1 2>&1 | tee log'",
            _deployment(kv_cache_dtype="bfloat16"),
        ),
    ],
)
def test_a_command_of_sglangs_is_read(text: str, deployment: Deployment) -> None:
    command = read_command([text])
    assert command.engine == "SGLang"
    assert command.model.name == "Qwen3.5-27B"
    assert command.deployment == deployment


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--max-total-tokens 40000", "--max-total-tokens 40000: it cuts the pool of tokens"),
        ("--max-mamba-cache-size 50", "--max-mamba-cache-size 50: it sets the state slots"),
        ("--dp 2 --enable-dp-attention", "--enable-dp-attention: attention of several"),
        ("--pp-size 2", "--pp-size 2: pipeline stages are not planned"),
        ("--max-model-len 8192", "SGLang 0.5.23 has no such option"),
        ("--mamba-ratio 0.5", "near it: --mamba-full-memory-ratio"),
        ("--mamba 0.5", "--mamba may be --mamba-"),
        ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8: SGLang takes auto, fp8_e5m2, fp8_e4m3"),
        ("--tp-size two", "--tp-size 'two' is no whole number"),
        ("--tp-size 2 4", "--tp-size takes one value: 2 4"),
        ("--speculative-algorithm NEXTN", "lacks --speculative-num-draft-tokens"),
        ("--speculative-algorithm EAGLE3", "the layers of its drafter cannot be planned"),
        ("--json-model-override-args {a:1}", "--json-model-override-args {a:1}: no JSON"),
    ],
)
def test_what_cannot_be_planned_is_named(options: str, complaint: str) -> None:
    with pytest.raises(PlanError) as raised:
        read_command([f"{_SERVER} {options}"])
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sglang serve Qwen/Qwen3.5-27B", "write --model-path Qwen/Qwen3.5-27B"),
        ("sglang serve --tp 2", "names no model: --model-path MODEL"),
        (
            "sglang serve --model-path LiquidAI/LFM2-8B-A1B --mamba-radix-cache-strategy "
            "extra_buffer",
            "extra_buffer: SGLang has auto, no_buffer for LFM2-8B-A1B",
        ),
        (
            "sglang serve --model-path microsoft/phi-4 --speculative-algorithm NEXTN "
            "--speculative-num-draft-tokens 4",
            "Phi-4 has no draft head of its own",
        ),
    ],
)
def test_what_the_model_lacks_is_named(text: str, complaint: str) -> None:
    with pytest.raises(PlanError) as raised:
        read_command([text])
    assert complaint in str(raised.value)


def test_every_option_that_counts_is_one_of_sglangs() -> None:
    names = set(recorded("SGLang").named())
    assert len(names) > 500
    assert names > sglang_command.MAPPED | set(sglang_command.REFUSED)
    assert not sglang_command.MAPPED & set(sglang_command.REFUSED)


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_the_column_is_that_of_the_commands_own_options() -> None:
    text = f"{_SERVER} --mamba-full-memory-ratio 2 --mamba-radix-cache-strategy no_buffer"
    code, out, _ = _run("--memory", "24GiB", "--json", "-", "--", text)
    assert code == 0
    first = json.loads(out)["sglang"]["strategies"][0]
    plan = plan_sglang(
        load_model("Qwen3.5-27B"),
        MEMORY,
        Deployment(max_num_seqs=SEQUENCES),
        strategy="no_buffer",
        ratio=2,
    )
    assert (first["strategy"], first["ratio"]) == ("no_buffer", 2)
    assert (first["state_slots"], first["tokens"]) == (plan.state_slots, plan.tokens)
    assert first["max_running"] == plan.max_running > 15


def test_a_formula_takes_the_commands_options() -> None:
    text = f"{_SERVER} --mamba-full-memory-ratio 2"
    code, out, _ = _run("--memory", "24GiB", "--why", "state slots", "--", text)
    assert code == 0
    assert "x 2 / 3" in out


def test_the_share_of_the_card_gives_an_estimate_without_activations() -> None:
    text = f"{_SERVER} --tp 2 --mem-fraction-static 0.8"
    code, out, _ = _run("--gpu", "2xH100-80GB", "--json", "-", "--", text)
    assert code == 0
    (note,) = [one for one in json.loads(out)["notes"] if "are an estimate" in one]
    assert "0.8 x 79.11 GiB" in note
    assert "leaves activations and CUDA graphs out" in note


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((), "sum of 'KV Cache is allocated' and 'Mamba Cache is allocated'"),
        (("--gpu", "H100-80GB"), "without --mem-fraction-static"),
    ],
)
def test_a_command_without_memory_says_what_to_give(given: tuple[str, ...], complaint: str) -> None:
    code, out, error = _run(*given, "--", _SERVER)
    assert (code, out) == (2, "")
    assert complaint in error


def test_the_column_of_a_log_is_that_of_the_logged_options() -> None:
    lines = [
        "[2026-11-20 10:11:12] server_args=ServerArgs(model_path='Qwen/Qwen3.5-27B', tp_size=1, "
        "mamba_full_memory_ratio=0.5, mamba_radix_cache_strategy='no_buffer')",
        "[2026-11-20 10:11:20] Mamba Cache is allocated. max_mamba_cache_size: 53, "
        "conv_state size: 0.15GB, ssm_state size: 7.60GB",
        "[2026-11-20 10:11:21] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 262000, "
        "K size: 8.00 GB, V size: 8.00 GB",
    ]
    report = report_log(read_lines(lines), None, {}).report
    assert report is not None
    assert report.sglang is not None
    first = report.sglang.strategies[0]
    assert (first.strategy, first.ratio) == ("no_buffer", 0.5)


def test_doctor_asks_about_vllm_alone() -> None:
    with pytest.raises(PlanError, match="doctor asks about vLLM; plan reads it"):
        read_features([_SERVER])
