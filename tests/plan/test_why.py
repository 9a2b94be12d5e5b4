"""``hybrid-blocks plan --why``: one figure explained."""

import re
from functools import partial

import pytest
from command import answer, as_json, refusal
from hybrid_blocks.tools.plan.report.figures import PARTS
from hybrid_blocks.tools.plan.report.why_formulas import HOLDS

plan, plan_refusal = partial(answer, "plan"), partial(refusal, "plan")
plan_report = partial(as_json, "plan")


QWEN = ("Qwen3.5-27B", "--memory", "24GiB", "--tp", "2")


def _printed(*arguments: str) -> list[str]:
    """Names of the rows of all tables."""
    names: dict[str, None] = {}
    for table in plan(*arguments, "--all").split("\n\n")[1:]:
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
        out = plan(*asked, "--why", name)
        lines = out.splitlines()
        assert re.split(" of | for ", name)[0].lower() in lines[0].lower()
        assert any(line.startswith(("natural: ", "vLLM: ")) for line in lines)
        assert "source: " in out


def test_the_memory_is_explained_where_it_is_estimated_and_where_it_is_given() -> None:
    out = plan("gpt-oss-20b", "--gpu", "A100-80GB", "--why", "memory")
    assert "0.92 x 79.25 GiB of A100-80GB = 72.91 GiB, less 12.80 GiB of weights" in out
    assert "source: docs/planner.md, Your cards\n" in out
    out = plan(*QWEN, "--why", "memory")
    assert "memory: 24.00 GiB of each GPU, as given" in out


def test_a_gain_is_the_ratio_of_the_requests() -> None:
    out = plan("Qwen3.5-27B", "--memory", "24GiB", "--why", "gain of 1k")
    assert out.startswith("gain of 1,024: 115 / 99 requests - 1 = +16 %\nrequests of 1,024:")
    assert "gain of 262,144: 1 / 1" in plan("Qwen3.5-27B", *QWEN[1:3], "--why", "gain")


@pytest.mark.parametrize("part", [*PARTS, HOLDS])
def test_bytes_are_those_of_the_table_that_is_printed(part: str) -> None:
    at = plan_report(*QWEN, "--lengths", "1k,16k")["natural"]["lengths"]
    for asked, length in ((part, 1024), (f"{part} of 16k", 16384)):
        out = plan(*QWEN, "--why", asked)
        budget = next(one for one in at if one["length"] == length)["budget"]
        value = budget["requests" if part == HOLDS else part]
        assert out.startswith(f"{part} of {length:,}: ")
        assert f"{value:,} " in out.splitlines()[1], out
    out = plan(*QWEN, "--lengths", "512,4k", "--why", part)
    assert out.startswith(f"{part} of 512: ")


@pytest.mark.parametrize("length", [1024, 4096, 16384, 262144])
@pytest.mark.parametrize("model", ["Qwen3.5-27B", "gpt-oss-20b", "DeepSeek-V3"])
def test_the_formula_of_requests_can_be_computed(model: str, length: int) -> None:
    length = min(length, 131072) if model == "gpt-oss-20b" else min(length, 163840)
    asked = (model, "--memory", "70GiB", "--max-num-seqs", "9999")
    out = plan(*asked, "--why", f"requests of {length}")
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
    out = plan(*asked, typed)
    assert out == plan(*asked, name)


def test_a_group_is_explained_on_both_sides() -> None:
    out = plan("Gemma-3-27B", "--memory", "30GiB", "--tp", "2", "--why", "full")
    natural, source, vllm, _ = out.splitlines()
    assert "a slab holds floor(17,039,360 / 655,360) = 26; " in natural
    assert "1,890 slabs x 26 blocks x 16 tokens = 786,240 token slots" in natural
    assert source.startswith("  source: docs/planner.md")
    assert "49,152 blocks x 16 tokens = 786,432 token slots" in vllm


def test_the_formula_gives_the_figure_of_the_tables() -> None:
    report = plan_report(*QWEN)
    out = plan(*QWEN, "--why", "tokens")
    assert f"= {report['natural']['tokens']:,};" in out
    assert f"= {report['vllm']['tokens']:,};" in out
    out = plan(*QWEN, "--why", "vLLM logs for 262,144")
    assert f"= {report['vllm']['logged_tokens']:,} tokens" in out
    out = plan(*QWEN, "--why", "SLABS")
    assert f"= {report['natural']['num_slabs']:,}, one of them" in out


def test_the_layers_are_explained_as_one_rank_stores_them() -> None:
    out = plan(*QWEN, "--speculative", "mtp:2", "--why", "layers")
    assert out.splitlines() == [
        "48 gated_delta_net: conv 5 x 5120 bfloat16 + recurrent 24 x 128 x 128 float32 = "
        "1,624,064 bytes a state",
        "17 full: 2 of 4 heads (tp 2) x (256 + 256 in bfloat16: 1,024 bytes) = 2,048 bytes a token",
        "  source: docs/planner.md, From config.json to bytes",
    ]


def test_what_vllm_logs_is_explained_group_by_group() -> None:
    out = plan(*QWEN, "--speculative", "mtp:2", "--why", "vllm logs")
    assert "of a request of 262,144 tokens (3 x 4 states + ceil(262,144 / 800)) = " in out
    out = plan("Gemma-3-27B", "--memory", "24GiB", "--why", "vllm logs")
    window = "(ceil(min(1,024 - 1 + 16,384, 131,072) / 16) + 1)"
    assert f"(6 x {window} + ceil(131,072 / 16)) = 1.34x" in out


def test_a_cap_on_what_runs_is_named() -> None:
    out = plan(*QWEN, "--max-num-seqs", "8", "--why", "requests of 512")
    assert "max_num_seqs 8 caps it" in out


def test_a_figure_of_a_pasted_command_is_explained() -> None:
    command = ["vllm", "serve", "Qwen/Qwen3.5-27B", "-tp", "2"]
    out = plan("--memory", "24GiB", "--why", "blocks", "--", *command)
    assert "widest group's block" in out


def test_a_figure_that_a_model_lacks_is_named() -> None:
    assert "Gemma-3-27B has no such figure" in plan_refusal(
        "Gemma-3-27B", "--memory", "80GiB", "--why", "state slots"
    )


def test_lengths_say_nothing_of_one_figure_and_are_left_aside() -> None:
    asked = ("Qwen3.5-27B", "--memory", "24GiB", "--why", "requests of 4k")
    assert plan(*asked, "--lengths", "512,8k") == plan(*asked)


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
def test_a_question_without_answer_is_one_line(arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in plan_refusal("Qwen3.5-27B", "--memory", "24GiB", *arguments)


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
    out = plan("Qwen3.5-27B", "--memory", "24GiB", "--why", name)
    (line,) = (line for line in out.splitlines() if line.startswith("SGLang: "))
    assert told in line
    assert "source: SGLang 0.5.23" in out


def test_drafts_and_windows_stand_in_sglangs_formulas() -> None:
    drafts = ("--speculative", "mtp:3", "--why", "state slots")
    assert "(1 + 4 to verify a draft / 5)" in plan("Qwen3.5-27B", "--memory", "24GiB", *drafts)
    windows = plan("gpt-oss-20b", "--memory", "24GiB", "--why", "requests of 4k")
    assert "tokens of windows / 258) = " in windows
