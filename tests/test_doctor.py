import re
from pathlib import Path

import pytest
from hybrid_blocks import __version__, build_info
from hybrid_blocks.cli import app, doctor, installed
from hybrid_blocks.model import load_model
from hybrid_blocks.reach import packages, recorded
from hybrid_blocks.reach.named import FEATURES
from hybrid_blocks.reach.packages import EXTRAS, Extra
from hybrid_blocks.vllm.surface import Tier
from patients import fails, is_killed, needs_a_variable, prints_and_exits, works
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]


def diagnose(monkeypatch: pytest.MonkeyPatch, *extras: Extra) -> str:
    monkeypatch.setattr(doctor, "EXTRAS", extras)
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_build_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    output = diagnose(monkeypatch)
    assert f"hybrid_blocks {__version__}" in output
    assert build_info()["profile"] in output
    assert "cpu features" in output


def test_a_package_is_usable_or_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [
        ("numpy", "numpy", works, "yes: as it should"),
        ("numpy", "numpy", fails, "no: the moon is full"),
        ("numpy", "no_such_module", works, "no: No module named 'no_such_module'"),
        ("no-such-package", "numpy", works, "no: not installed"),
        ("numpy", "numpy", is_killed, "no: SIGILL killed its process: it needs instructions that"),
        ("numpy", "numpy", prints_and_exits, "no: its process ended with code 3"),
    ]
    output = diagnose(
        monkeypatch, *(Extra(name, module, "tests", it) for name, module, it, _ in tried)
    )
    lines = output.splitlines()[-len(tried) - 1 : -1]
    for line, (name, _, _, verdict) in zip(lines, tried, strict=True):
        assert line.startswith(name)
        assert verdict in line


@pytest.mark.parametrize(
    ("cupy", "triton", "torch", "expected"),
    [
        ("yes: NVRTC", "yes: compiles", "yes: a card", "cupy"),
        ("no: not installed", "yes: compiles", "yes: a card", "triton (cupy: not installed)"),
        ("no: no GPU", "no: no driver", "yes: slow", "torch (cupy: no GPU; triton: no driver)"),
        ("yes: NVRTC", "yes: compiles", "no: not installed", "none: the kernels need torch"),
        (
            *("no: no GPU", "no: no driver", "no: not installed"),
            "none: the kernels need torch (cupy: no GPU; triton: no driver; torch: not installed)",
        ),
    ],
)
def test_the_quickest_usable_package_moves_the_blocks(
    cupy: str, triton: str, torch: str, expected: str
) -> None:
    lines = [
        ("cupy-cuda13x", "1", cupy, ""),
        ("triton", "1", triton, ""),
        ("torch", "1", torch, ""),
    ]
    assert packages.kernels_by(lines) == expected


def test_doctor_says_which_package_moves_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    output = diagnose(monkeypatch, Extra("torch", "no_such_module", "kernels", works))
    assert output.splitlines()[-1].startswith("kernels       none: the kernels need torch (cupy: ")


def test_what_a_package_needs_in_the_environment_is_found_by_a_second_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MOON", raising=False)
    extra = Extra("numpy", "numpy", "tests", needs_a_variable, {"MOON": "full"})
    output = diagnose(monkeypatch, extra, Extra("typer", "typer", "tests", works))
    assert "yes: as it should, with MOON=full (without it: SIGILL killed its process" in output
    assert output.count("yes: ") == 2


def test_a_package_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PATIENCE_S", 0.0)
    assert "no: it gave no answer" in diagnose(monkeypatch, Extra("typer", "typer", "tests", works))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--lora"], "--lora without --model: say of which model's engine"),
        (["--pp", "2", "--speculative", "mtp:2"], "--speculative, --pp without --model"),
        (["--no-prefix-caching"], "--no-prefix-caching without --model"),
        (["--table", "--model", "Phi-4"], "--model beside --table"),
        (
            ["--model", "gpt-oss-20b", "--speculative", "mtp:2"],
            "--speculative mtp:2: gpt-oss-20b has no draft head for multi-token prediction",
        ),
        (["--model", "Qwen3.5-27B", "--pp", "100"], "--pp 100 exceeds the 64 layers of Qwen3.5"),
    ],
)
def test_an_engine_that_cannot_be_is_one_clear_line_and_exit_code_2(
    arguments: list[str], complaint: str
) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_a_vllm_is_usable_where_it_has_what_the_adapter_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = next(extra.check for extra in EXTRAS if extra.distribution == "vllm")
    found: dict[Tier, list[str]] = {tier: [] for tier in Tier}
    monkeypatch.setattr("hybrid_blocks.vllm.surface.differences", lambda _: found)

    class Tested:
        __version__ = "0.33.0"

    class Newer:
        __version__ = "0.41.0"

    assert check(Tested) == "a tested version"
    assert check(Newer) == "untested, but equal in all that is used to 0.33"
    found[Tier.MANAGER].append("KVCacheManager.free is gone")
    with pytest.raises(RuntimeError, match=r"tier manager needs: KVCacheManager\.free is gone"):
        check(Newer)


def test_the_extras_are_those_that_the_project_can_use() -> None:
    # CuPy has a distribution for each major version of CUDA.
    names = {extra.distribution.partition("-cuda")[0] for extra in EXTRAS}
    assert names == {
        *("torch", "triton", "cupy", "vllm"),
        *("matplotlib", "bokeh", "prometheus-client"),
    }


def test_the_extras_that_commands_draw_with_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [extra for extra in EXTRAS if extra.distribution in {"bokeh", "prometheus-client"}]
    output = diagnose(monkeypatch, *drawn)
    assert re.search(
        r"bokeh +\S+ +yes: pages can be drawn +plan --html, replay --html, view *\n", output
    )
    assert re.search(r"prometheus-client +\S+ +yes: metrics can be read +top *\n", output)


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda _: None)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HYBRID_BLOCKS", raising=False)
    monkeypatch.delenv("HYBRID_BLOCKS_EVENTS", raising=False)


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.output


@pytest.mark.usefixtures("no_vllm")
def test_without_vllm_the_table_says_what_an_engine_reaches_and_what_its_log_will_say() -> None:
    code, output = asked("--model", "Qwen3.5-27B", "--speculative", "mtp:2", "--lora")
    assert code == 0
    assert "the table of this package for vLLM 0.33; vLLM is not installed" in output
    assert "natural        yes" in output
    version = f"hybrid_blocks {__version__} in vLLM 0.33"
    assert f"log            {version}: level natural; groups: …" in output
    assert f"log by default {version}: level manager; groups: …" in output
    assert "HYBRID_BLOCKS_EVENTS=all" in output
    found = re.search(r"in 24 GiB (\d+) requests of 8,192 tokens .* natural, and (\d+) at", output)
    assert found
    assert int(found[1]) > int(found[2]) > 0


@pytest.mark.usefixtures("no_vllm")
def test_several_features_keep_an_engine_from_what_each_of_them_does() -> None:
    code, output = asked("--model", "Qwen3.5-27B", "--lora", "--connector", "nixl", "--pp", "4")
    assert code == 0  # nothing more than the default was asked for
    assert "natural        no: the KV connector NixlConnector" in output
    assert "HYBRID_BLOCKS=natural reaches level manager" in output


@pytest.mark.usefixtures("no_vllm")
def test_drafts_keep_an_engine_that_reads_prompts_of_others_at_level_manager() -> None:
    engine = ("--model", "Qwen3.5-27B", "--connector", "hybrid-nixl")
    assert "HYBRID_BLOCKS=natural reaches level natural" in asked(*engine)[1]
    _, output = asked(*engine, "--speculative", "ngram:4")
    assert "natural        no: drafts beside HybridNixlConnector" in output
    assert "HYBRID_BLOCKS=natural reaches level manager" in output


@pytest.mark.usefixtures("no_vllm")
def test_less_than_what_is_asked_for_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ("--model", "Phi-4", "--pcp", "2")
    assert asked(*refused)[0] == 0
    code, output = asked(*refused, "--level", "natural")
    assert code == 3
    assert "the engine reaches less than that" in output
    monkeypatch.setenv("HYBRID_BLOCKS", "natural")
    assert asked(*refused)[0] == 3
    assert asked("--model", "Phi-4")[0] == 0
    command = ("vllm", "serve", "Qwen/Qwen3.5-27B", "--kv-offloading-size", "64")
    assert asked("--", "HYBRID_BLOCKS=natural", *command)[0] == 3
    assert asked("--", "HYBRID_BLOCKS=natural", "HYBRID_BLOCKS_OFFLOAD=1", *command)[0] == 0


@pytest.mark.usefixtures("no_vllm")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "Phi-4", "--connector", "lmcache"], "LMCacheConnectorV1 is not in the table"),
        (["--model", "Llama-4-Scout-17B-16E", "--dcp", "2"], "vLLM makes no scheduler: DCP with"),
    ],
)
def test_what_the_table_does_not_tell_is_an_error(arguments: list[str], complaint: str) -> None:
    code, output = asked(*arguments)
    assert code == 2
    assert complaint in output


def test_the_wheel_has_the_table_of_the_page() -> None:
    table = recorded.recorded()
    assert table == recorded.of_page((ROOT / "docs/coverage.md").read_text()), "make reference"
    assert {line.feature for line in table.lines} == set(FEATURES)
    for features in FEATURES.values():
        assert recorded.look_up(table, load_model("Qwen3.5-27B"), features)


def test_variables_that_are_set_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS_EVENTS", "usable")
    assert "HYBRID_BLOCKS_EVENTS=usable: The blocks that KV-cache events name" in diagnose(
        monkeypatch
    )
