import runpy
import sys

import hybrid_blocks
import pytest


def test_build_info_names_the_version_that_the_package_reports() -> None:
    assert hybrid_blocks.build_info()["version"] == hybrid_blocks.__version__


def test_the_package_runs_as_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hybrid_blocks", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("hybrid_blocks", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"hybrid-blocks {hybrid_blocks.__version__}\n"


@pytest.mark.wheel
def test_the_wheel_is_a_release_build() -> None:
    assert hybrid_blocks.build_info()["profile"] == "release"
