import hybrid_blocks


def test_build_info_names_the_version_that_the_package_reports() -> None:
    assert hybrid_blocks.build_info()["version"] == hybrid_blocks.__version__
    assert hybrid_blocks.build_info()["profile"] == "release"
