import hybrid_blocks
import pytest


def test_build_info_names_the_version_that_the_package_reports() -> None:
    assert hybrid_blocks.build_info()["version"] == hybrid_blocks.__version__


@pytest.mark.wheel
def test_the_wheel_is_a_release_build() -> None:
    assert hybrid_blocks.build_info()["profile"] == "release"
