"""The command doctor says which level an engine reaches, and why."""

import re

import pytest
from command import answer, refusal
from hybrid_blocks import __version__, build_info
from hybrid_blocks.tools.cli import doctor
from hybrid_blocks.tools.doctor import environment, packages
from hybrid_blocks.tools.doctor.packages import EXTRAS, Extra
from hybrid_blocks.vllm.surface import Tier
from patients import fails, is_killed, needs_a_variable, prints_and_exits, works


def diagnose(monkeypatch: pytest.MonkeyPatch, *extras: Extra) -> str:
    monkeypatch.setattr(doctor, "EXTRAS", extras)
    return answer("doctor")


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
    output = diagnose(monkeypatch, *(Extra(name, at, "tests", it) for name, at, it, _ in tried))
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
def test_the_quickest_usable_one_moves(cupy: str, triton: str, torch: str, expected: str) -> None:
    lines = [
        ("cupy-cuda13x", "1", cupy, ""),
        ("triton", "1", triton, ""),
        ("torch", "1", torch, ""),
    ]
    assert packages.kernels_by(lines) == expected


def test_doctor_says_which_package_moves_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    output = diagnose(monkeypatch, Extra("torch", "no_such_module", "kernels", works))
    assert output.splitlines()[-1].startswith("kernels       none: the kernels need torch (cupy: ")


def test_what_a_package_needs_is_found_by_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
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
        (["--images"], "--images without --model: say of which model's engine"),
        (["--model", "Qwen3.5-27"], "near it: Qwen3.5-27B"),
        (
            ["--", "vllm", "serve", "gpt-oss-20b", "--spec-method", "mtp", "--spec-tokens", "2"],
            "gpt-oss-20b has no draft head",
        ),
        (
            ["--", "vllm", "serve", "Qwen3.5-27B", "--pipeline-parallel-size", "100"],
            "--pp 100 exceeds the 64 layers of Qwen3.5",
        ),
        (["--model", "Qwen3.5-27B", "--memory", "1MiB"], "1 MiB hold no slab"),
        (["--model", "Qwen3.5-27B", "--memory", "1GiB"], "KV of one request does not fit"),
        (["--", "vllm", "serve", "Phi-4", "--kv-cache-memory-bytes", "1G"], "does not fit"),
        (["--", "vllm", "serve", "Phi-4", "--max-model-len", "0"], "must be positive: 0"),
        (["--", "vllm", "serve", "Phi-4", "-dcp", "2", "--kv-cache-dtype", "x"], "unknown dtype"),
    ],
)
def test_an_engine_that_cannot_be_is_one_clear_line(arguments: list[str], complaint: str) -> None:
    assert complaint in refusal("doctor", *arguments)


def test_a_vllm_is_usable_with_what_the_adapter_needs(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert names == {*("torch", "triton", "cupy", "vllm"), *("bokeh", "prometheus-client")}


def test_the_extras_that_commands_draw_with_are_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = [one for one in EXTRAS if one.distribution in {"bokeh", "prometheus-client"}]
    output = diagnose(monkeypatch, *drawing)
    drawn = r"bokeh +\S+ +yes: pages can be drawn +plan --html, replay --html, view *\n"
    assert re.search(drawn, output)
    assert re.search(r"prometheus-client +\S+ +yes: metrics can be read +top *\n", output)


@pytest.mark.parametrize("words", [["--model", "Phi-4"], ["--", "vllm", "serve", "Qwen3.5-27B"]])
def test_an_engine_is_asked_of_vllm_only(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(environment, "find_spec", lambda _: None)
    assert refusal("doctor", *words) == (
        "error: vLLM is not installed; pip install vllm, or read docs/coverage.md: the level of "
        "every built-in model with every feature\n"
    )


def test_variables_that_are_set_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_BLOCKS_EVENTS", "usable")
    told = "HYBRID_BLOCKS_EVENTS=usable: The blocks that KV-cache events name"
    assert told in diagnose(monkeypatch)
