"""One vocabulary of options: vLLM's name works wherever a short one does; shells complete it."""

import json
from typing import Any

import pytest
import typer
from command import answer, refusal
from hybrid_blocks.tools.cli import FUNCTIONS, app
from typer.testing import CliRunner

ALIASES = (
    {"--tp", "--tensor-parallel-size"},
    {"--pp", "--pipeline-parallel-size"},
    {"--mamba-ssm-dtype", "--mamba-ssm-cache-dtype"},
    {"--retention", "--prefix-cache-retention-interval"},
    {"--requests", "--max-num-seqs"},
    {"--num-blocks", "--num-gpu-blocks-override"},
)
"""A short name and vLLM's."""


def options(command: str) -> set[str]:
    group: Any = typer.main.get_command(app)
    parameters = group.get_command(None, command).params
    return {name for it in parameters for name in it.opts if it.param_type_name == "option"}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_each_command_takes_vllms_name_where_it_has_a_short_one(command: str) -> None:
    known = options(command)
    for names in ALIASES:
        short = min(names, key=len)
        assert short not in known or names <= known, names


@pytest.mark.parametrize("command", ["plan", "replay", "profile"])
def test_commands_about_an_engine_take_its_method_of_drafts(command: str) -> None:
    assert "--speculative" in options(command)


@pytest.mark.parametrize(("method", "full"), [("mtp", 17), ("ngram", 16)])
def test_drafts_are_planned_as_a_command_of_vllms_is(method: str, full: int) -> None:
    """Only ``mtp`` loads the model's own head, a layer of full attention."""
    command = f"vllm serve Qwen3.5-27B --spec-method {method} --spec-tokens 2".split()
    found = [
        json.loads(answer("plan", "--memory", "24GiB", "--json", "-", *engine))
        for engine in (["Qwen3.5-27B", "--speculative", f"{method}:2"], ["--", *command])
    ]
    assert [report["layers"]["full"] for report in found] == [full, full]
    assert found[0]["natural"]["groups"] == found[1]["natural"]["groups"]


REFUSED = {
    "plan": ("Phi-4", "--memory", "24GiB"),
    "replay": ("--model", "Phi-4", "--memory", "24GiB"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_drafts_that_cannot_be_are_refused(command: str) -> None:
    words = (command, *REFUSED[command])
    assert "Phi-4 has no draft head" in refusal(*words, "--speculative", "mtp:2")
    assert "its drafter cannot be planned" in refusal(*words, "--speculative", "eagle:3")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("re", {"replay"}),
        ("plan --tens", {"--tensor-parallel-size"}),
        ("replay --on-error s", {"skip"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(words: str, completed: set[str]) -> None:
    line = f"hybrid-blocks {words}"
    found = CliRunner().invoke(
        app,
        prog_name="hybrid-blocks",
        env={
            "_HYBRID_BLOCKS_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        },
    )
    assert set(found.stdout.split()) == completed
