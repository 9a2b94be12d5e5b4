"""SGLang's column in a plan: its pools at its defaults."""

import json

import pytest
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.sglang import plan_sglang
from typer.testing import CliRunner

FIGURES = [
    ("Qwen3.5-27B", 24, {}, (78, 207_645, None, 15)),
    ("Qwen3.5-27B", 80, {"tp": 2, "kv_cache_dtype": "fp8"}, (527, 2_762_336, None, 105)),
    ("Qwen3.5-27B", 80, {"num_speculative_tokens": 3}, (144, 656_593, None, 28)),
    ("Qwen3.5-27B", 80, {"mamba_cache_mode": "none"}, (256, 707_027, None, 256)),
    ("LFM2-1.2B", 24, {}, (149_007, 1_103_765, None, 256)),
    ("gpt-oss-20b", 24, {}, (None, 582_542, 466_033, 256)),
    ("DeepSeek-V3", 80, {}, (None, 1_222_383, None, 256)),
]
"""What SGLang's functions return: state slots, tokens, tokens of windows, most requests."""


@pytest.mark.parametrize(("name", "gib", "options", "figures"), FIGURES, ids=str)
def test_pools_have_the_sizes_of_sglangs_own_functions(
    name: str,
    gib: int,
    options: dict[str, int | str],
    figures: tuple[int | None, ...],
) -> None:
    plan = plan_sglang(load_model(name), gib * 2**30, Deployment(**options))  # type: ignore[arg-type]
    assert (plan.state_slots, plan.tokens, plan.window_tokens, plan.max_running) == figures


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_plan_shows_sglang_next_to_vllm() -> None:
    options = ("Qwen3.5-27B", "--memory", "24GiB", "--lengths", "1366")
    rows = [" ".join(line.split()) for line in _run(*options).splitlines()]
    assert "natural vLLM gain SGLang" in rows
    assert "requests of 1,366 104.83x 99.40x +5 % 15.00x" in rows
    pools = json.loads(_run(*options, "--json", "-"))["sglang"]
    assert (pools["strategy"], pools["slots_per_request"]) == ("extra_buffer", 5)


def test_windows_have_a_pool_of_their_own() -> None:
    pools = json.loads(_run("gpt-oss-20b", "--memory", "24GiB", "--json", "-"))["sglang"]
    assert pools["window_tokens"] == int(pools["tokens"] * 0.8)
    assert pools["strategy"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("Jamba-1.5-Mini",), "jamba models are not planned for SGLang"),
        (("Qwen3.5-27B", "--pp", "2"), "pipeline stages are not planned for SGLang"),
        (("Qwen3.5-27B", "--kv-cache-dtype", "nvfp4"), "nvfp4 is not planned for SGLang"),
    ],
)
def test_a_plan_without_sglang_says_why(options: tuple[str, ...], told: str) -> None:
    out = _run(*options, "--memory", "40GiB", "--max-model-len", "4k")
    assert told in out
