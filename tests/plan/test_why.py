"""``hybrid-blocks plan --why``: one figure explained."""

import json
import re
from typing import Any

import pytest
from hybrid_blocks.tools.cli import app
from hybrid_blocks.tools.plan.report.figures import PARTS
from hybrid_blocks.tools.plan.report.why_formulas import HOLDS
from typer.testing import CliRunner

QWEN = ("Qwen3.5-27B", "--memory", "24GiB", "--tp", "2")


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.stdout, result.stderr


def _report(*arguments: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(_run(*arguments, "--json", "-")[1])
    return report


def _printed(*arguments: str) -> list[str]:
    """Names of the rows of all tables."""
    names: dict[str, None] = {}
    for table in _run(*arguments, "--all")[1].split("\n\n")[1:]:
        _, _, rows = table.partition("\u2500\n")
        if rows:
            names |= dict.fromkeys(re.split(" {2,}", row.strip())[0] for row in rows.splitlines())
    return list(names)


@pytest.mark.parametrize("model", ["Qwen3.5-27B", "gpt-oss-20b", "Gemma-3-27B"])
def test_every_figure_that_is_printed_can_be_asked(model: str) -> None:
    asked = (model, "--memory", "24GiB", "--max-model-len", "4k")
    names = _printed(*asked, "--lengths", "512")
    assert len(names) > 16
    for name in names:
        code, out, error = _run(*asked, "--why", name)
        assert code == 0, error
        lines = out.splitlines()
        assert re.split(" of | for ", name)[0].lower() in lines[0].lower()
        assert any(line.startswith(("natural: ", "vLLM: ")) for line in lines)
        assert "source: " in out


def test_the_memory_is_explained_where_it_is_estimated_and_where_it_is_given() -> None:
    _, out, _ = _run("gpt-oss-20b", "--gpu", "A100-80GB", "--why", "memory")
    assert "0.92 x 79.25 GiB of A100-80GB = 72.91 GiB, less 12.80 GiB of weights" in out
    assert "source: docs/planner.md, Your cards\n" in out
    _, out, _ = _run(*QWEN, "--why", "memory")
    assert "memory: 24.00 GiB of each GPU, as given" in out


def test_a_gain_is_the_ratio_of_the_requests() -> None:
    _, out, _ = _run("Qwen3.5-27B", "--memory", "24GiB", "--why", "gain of 1k")
    assert out.startswith("gain of 1,024: 115.71 / 99.40 requests - 1 = +16 %\nrequests of 1,024:")
    assert "gain of 262,144: 1.48 / 1.47" in _run("Qwen3.5-27B", *QWEN[1:3], "--why", "gain")[1]


@pytest.mark.parametrize("part", [*PARTS, HOLDS])
def test_bytes_are_those_of_the_table_that_is_printed(part: str) -> None:
    at = _report(*QWEN, "--lengths", "1k,16k")["natural"]["lengths"]
    for asked, length in ((part, 1024), (f"{part} of 16k", 16384)):
        _, out, _ = _run(*QWEN, "--why", asked)
        budget = next(one for one in at if one["length"] == length)["budget"]
        value = budget["requests" if part == HOLDS else part]
        assert out.startswith(f"{part} of {length:,}: ")
        assert f"{value:,} " in out.splitlines()[1], out
    _, out, _ = _run(*QWEN, "--lengths", "512,4k", "--why", part)
    assert out.startswith(f"{part} of 512: ")


@pytest.mark.parametrize("length", [1024, 4096, 16384, 262144])
@pytest.mark.parametrize("model", ["Qwen3.5-27B", "gpt-oss-20b", "DeepSeek-V3"])
def test_the_formula_of_requests_can_be_computed(model: str, length: int) -> None:
    length = min(length, 131072) if model == "gpt-oss-20b" else min(length, 163840)
    _, out, _ = _run(
        model, "--memory", "70GiB", "--max-num-seqs", "9999", "--why", f"requests of {length}"
    )
    found = re.search(r"1 \+ \(([\d,]+) - ([\d.]+) of .* / ([\d.]+) of each other", out)
    shown = re.match(r"requests of [\d,]+: ([\d,.]+)x \(natural\)", out)
    assert found is not None, out
    assert shown is not None, out
    slabs, first, each = (float(number.replace(",", "")) for number in found.groups())
    assert float(shown[1].replace(",", "")) == pytest.approx(1 + (slabs - first) / each, rel=1e-3)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("State_Slots", "state slots"),
        ("state-slots", "state slots"),
        ("longest", "longest request"),
        ("cuda graphs", "max_num_seqs for CUDA graphs"),
        ("requests-of-4k", "requests of 4,096"),
        ("MEMORY_HOLDS of 1k", "memory holds"),
        ("Vllm logs", "vLLM logs"),
        ("State X 4", "state x 4"),
    ],
)
def test_a_name_is_known_as_a_person_types_it(typed: str, name: str) -> None:
    asked = ("Qwen3.5-27B", "--memory", "24GiB", "--why")
    code, out, error = _run(*asked, typed)
    assert code == 0, error
    assert out == _run(*asked, name)[1]


def test_a_group_is_explained_on_both_sides() -> None:
    _, out, _ = _run("Gemma-3-27B", "--memory", "30GiB", "--tp", "2", "--why", "full")
    natural, source, vllm, _ = out.splitlines()
    assert "a slab holds floor(17,039,360 / 655,360) = 26; " in natural
    assert "1,890 slabs x 26 blocks x 16 tokens = 786,240 token slots" in natural
    assert source.startswith("  source: docs/planner.md")
    assert "49,152 blocks x 16 tokens = 786,432 token slots" in vllm


def test_the_formula_gives_the_figure_of_the_tables() -> None:
    report = _report(*QWEN)
    _, out, _ = _run(*QWEN, "--why", "tokens")
    assert f"= {report['natural']['tokens']:,};" in out
    assert f"= {report['vllm']['tokens']:,};" in out
    _, out, _ = _run(*QWEN, "--why", "vLLM logs for 262,144")
    assert f"= {report['vllm']['logged_tokens']:,} tokens" in out
    _, out, _ = _run(*QWEN, "--why", "SLABS")
    assert f"= {report['natural']['num_slabs']:,}, one of them" in out


def test_the_layers_are_explained_as_one_rank_stores_them() -> None:
    _, out, _ = _run(*QWEN, "--speculative", "mtp:2", "--why", "layers")
    assert out.splitlines() == [
        "48 gated_delta_net: conv 5 x 5120 bfloat16 + recurrent 24 x 128 x 128 float32 = "
        "1,624,064 bytes a state",
        "17 full: 2 of 4 heads (tp 2) x (256 + 256 in bfloat16: 1,024 bytes) = 2,048 bytes a token",
        "  source: docs/planner.md, From config.json to bytes",
    ]


def test_what_vllm_logs_is_explained_group_by_group() -> None:
    _, out, _ = _run(*QWEN, "--speculative", "mtp:2", "--why", "vllm logs")
    assert "of a request of 262,144 tokens (3 x 4 states + ceil(262,144 / 800)) = " in out
    _, out, _ = _run("Gemma-3-27B", "--memory", "24GiB", "--why", "vllm logs")
    window = "(ceil(min(1,024 - 1 + 16,384, 131,072) / 16) + 1)"
    assert f"(6 x {window} + ceil(131,072 / 16)) = 1.34x" in out


def test_a_cap_on_what_runs_is_named() -> None:
    _, out, _ = _run(*QWEN, "--max-num-seqs", "8", "--why", "requests of 512")
    assert "max_num_seqs 8 caps it" in out


def test_a_figure_of_a_pasted_command_is_explained() -> None:
    command = ["vllm", "serve", "Qwen/Qwen3.5-27B", "-tp", "2"]
    code, out, _ = _run("--memory", "24GiB", "--why", "blocks", "--", *command)
    assert code == 0
    assert "widest group's block" in out


def test_a_figure_that_a_model_lacks_is_named() -> None:
    _, _, error = _run("Gemma-3-27B", "--memory", "80GiB", "--why", "state slots")
    assert "Gemma-3-27B has no such figure" in error


def test_lengths_say_nothing_of_one_figure_and_are_left_aside() -> None:
    asked = ("Qwen3.5-27B", "--memory", "24GiB", "--why", "requests of 4k")
    assert _run(*asked, "--lengths", "512,8k") == _run(*asked)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--why", "bloks"), "did you mean 'blocks'?"),
        (("--why", "requests of many"), "no number of tokens"),
        (("--why", "live of -5"), "no number of tokens"),
        (("--why", "livee"), "did you mean 'live'?"),
        (("--why", "tokens", "--all"), "--all beside --why"),
        (("--why", "tokens", "--json", "-"), "--json beside --why"),
    ],
)
def test_a_question_that_has_no_answer_is_one_clear_line(
    arguments: tuple[str, ...], complaint: str
) -> None:
    code, out, error = _run("Qwen3.5-27B", "--memory", "24GiB", *arguments)
    assert code == 2
    assert out == ""
    assert complaint in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("state slots", "- 153,944,064 of a slot of padding) / 153,944,064 bytes of a state) = 78"),
        (
            "requests of 1366",
            "min(floor(78 state slots / 5), max_num_seqs 256, 207,645 tokens / 1,366) = 15.00",
        ),
        ("tokens", "= 207,645; min(floor(78 state slots / 5), max_num_seqs 256, "),
        ("longest request", "min(207,645 tokens of the pool, 262,144 that an engine takes)"),
        ("state slots", "extra_buffer keeps 5 for each running request"),
    ],
)
def test_figures_of_sglang_are_explained(name: str, told: str) -> None:
    code, out, _ = _run("Qwen3.5-27B", "--memory", "24GiB", "--why", name)
    assert code == 0
    (line,) = (line for line in out.splitlines() if line.startswith("SGLang: "))
    assert told in line
    assert "source: SGLang 0.5.23" in out


def test_drafts_and_windows_stand_in_sglangs_formulas() -> None:
    drafts = ("--speculative", "mtp:3", "--why", "state slots")
    assert "(1 + 4 to verify a draft / 5)" in _run("Qwen3.5-27B", "--memory", "24GiB", *drafts)[1]
    windows = _run("gpt-oss-20b", "--memory", "24GiB", "--why", "requests of 4k")[1]
    assert "tokens of windows / 258) = " in windows
