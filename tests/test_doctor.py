from collections.abc import Callable
from typing import Any

import pytest
from hybrid_blocks import __version__
from hybrid_blocks.cli import app, doctor
from hybrid_blocks.cli.doctor import EXTRAS, Extra
from typer.testing import CliRunner


def works(_: Any) -> str:
    return "as it should"


def fails(_: Any) -> str:
    raise RuntimeError("the moon is full\nand more")


def diagnose(monkeypatch: pytest.MonkeyPatch, *extras: Extra) -> str:
    monkeypatch.setattr(doctor, "EXTRAS", extras)
    result = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_the_build_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    output = diagnose(monkeypatch)
    assert f"hybrid_blocks {__version__}" in output
    assert "release" in output
    assert "cpu features" in output


@pytest.mark.parametrize(
    ("distribution", "module", "check", "verdict"),
    [
        ("numpy", "numpy", works, "yes: as it should"),
        ("numpy", "numpy", fails, "no: the moon is full"),
        ("numpy", "no_such_module", works, "no: No module named 'no_such_module'"),
        ("no-such-package", "numpy", works, "no: not installed"),
    ],
)
def test_a_package_is_usable_or_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch,
    distribution: str,
    module: str,
    check: Callable[[Any], str],
    verdict: str,
) -> None:
    assert verdict in diagnose(monkeypatch, Extra(distribution, module, "tests", check))


def test_another_vllm_than_the_known_ones_is_not_usable() -> None:
    check = next(extra.check for extra in EXTRAS if extra.distribution == "vllm")

    class Old:
        __version__ = "0.31.1"

    class Known:
        __version__ = "0.33.0"

    assert "knows" in check(Known)
    with pytest.raises(RuntimeError, match=r"stays off for 0\.31\.1"):
        check(Old)


def test_the_extras_are_those_that_the_project_can_use() -> None:
    names = {extra.distribution for extra in EXTRAS}
    assert names == {"torch", "triton", "cuda-bindings", "vllm", "matplotlib"}
